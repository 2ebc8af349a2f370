"""Which cards run the CUDA path, and a named reason for each that does not."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import torch

from host_runtime.errors import HostError

CAPABILITY_MIN = (8, 0)  # bf16 matrix units; no operation needs anything newer
_FALLBACK = "run with device cpu, which is complete, or "


class GpuUnavailableError(HostError):
    """The CUDA path cannot run on this machine; the message says what is missing."""


@dataclass(frozen=True)
class GpuCapability:
    """The card in use. early_launch and native_fp8 are used where present, never required."""

    name: str
    capability: tuple[int, int]
    total_bytes: int
    free_bytes: int
    native_fp8: bool
    early_launch: bool


def check_gpu(index: int = 0) -> GpuCapability:
    """Look at the card. Raises GpuUnavailableError: no driver, no card, too old, no Triton."""
    if torch.version.cuda is None:
        raise GpuUnavailableError(
            f"this PyTorch ({torch.__version__}) is built without CUDA",
            _FALLBACK + "install a CUDA build of PyTorch",
        )
    if not torch.cuda.is_available():
        raise GpuUnavailableError(f"no usable CUDA card: {_cuda_problem()}", _FALLBACK + "see it")
    count = torch.cuda.device_count()
    if index >= count:
        raise GpuUnavailableError(f"CUDA card {index} was asked for, there are {count}")
    capability = torch.cuda.get_device_capability(index)
    name = torch.cuda.get_device_name(index)
    check_capability(name, capability)
    if importlib.util.find_spec("triton") is None:
        raise GpuUnavailableError(
            "the package triton is missing; the CUDA path's operations are written in it",
            _FALLBACK + "install triton (it comes with PyTorch's CUDA wheels)",
        )
    free, total = torch.cuda.mem_get_info(index)
    return GpuCapability(name, capability, total, free, capability >= (8, 9), capability >= (9, 0))


def check_capability(name: str, capability: tuple[int, int]) -> None:
    """Refuse cards without bf16 matrix units."""
    if capability < CAPABILITY_MIN:
        raise GpuUnavailableError(
            f"{name} has compute capability {capability[0]}.{capability[1]}, "
            f"the CUDA path needs {CAPABILITY_MIN[0]}.{CAPABILITY_MIN[1]} or later",
            _FALLBACK + "use a newer card",
        )


def _cuda_problem() -> str:
    """Why CUDA does not start, in the driver's words (no card, driver too old, ...)."""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    return "the driver lists none"
