"""CUDA C++ kernels of this folder, compiled by NVRTC (which PyTorch ships) when first needed.

    kernels = compiled(device)             # None: they cannot be had; Triton does the work
    kernels.launch("choose.cu", "choose_positions", programs, threads, shared_bytes, [argument])

Arguments are ctypes structures that mirror the ones in the source; the compiler checks their sizes.
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import torch

from host_runtime.errors import HostError

SOURCES = (
    "product.cu", "prepare.cu", "attend.cu", "merge.cu", "norm.cu", "choose.cu", "mailbox.cu",
)  # fmt: skip
SETTING = "DUCKCTL_GPU_KERNELS"
HEADERS = (
    "machine.cuh",
    "support.cuh",
    "split.cuh",
    "tiles.cuh",
    "codes.cuh",
    "plain.cuh",
    "route.cuh",
)
_FOLDER = Path(__file__).parent
# CUfunction_attribute
_STATIC_SHARED_SIZE, _MAX_DYNAMIC_SHARED_SIZE, _PREFERRED_SHARED_CARVEOUT = 1, 8, 9
# CUdevice_attribute
_MULTIPROCESSORS, _SHARED_PER_MULTIPROCESSOR, _SHARED_PER_BLOCK = 16, 81, 97
_PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CUlaunchAttributeID


class _LaunchAttribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16))


class _LaunchConfig(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    )


class Kernels:
    """Functions of the compiled modules, on one device."""

    def __init__(self, device: torch.device, nvrtc: ctypes.CDLL, cuda: ctypes.CDLL) -> None:
        self.device, self._cuda = device, cuda
        torch.cuda.synchronize(device)  # makes the context that the driver's calls below need
        self._context = ctypes.c_void_p()
        self._check(cuda.cuCtxGetCurrent(ctypes.byref(self._context)), "cuCtxGetCurrent")
        self.multiprocessors = self._attribute(_MULTIPROCESSORS)
        self.shared_per_multiprocessor = self._attribute(_SHARED_PER_MULTIPROCESSOR)
        self.shared_per_block = self._shared_max = self._attribute(_SHARED_PER_BLOCK)
        capability = torch.cuda.get_device_capability(device)
        self._early = capability >= (9, 0)
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._modules: dict[str, ctypes.c_void_p] = {}
        for name in SOURCES:
            image = compile_source(nvrtc, name, capability)
            module = self._modules[name] = ctypes.c_void_p()
            self._check(cuda.cuModuleLoadData(ctypes.byref(module), image), f"loading {name}")

    def launch(
        self,
        source: str,
        name: str,
        programs: int,
        threads: int,
        shared_bytes: int,
        arguments: Sequence[ctypes.Structure],
    ) -> None:
        """Launch a kernel of `source` on the current stream, in line with its early launches.

        Can be captured.
        """
        early = _LaunchAttribute(_PROGRAMMATIC_STREAM_SERIALIZATION, 0, (ctypes.c_int * 16)(1))
        config = _LaunchConfig(
            (programs, 1, 1), (threads, 1, 1), shared_bytes,
            torch.cuda.current_stream(self.device).cuda_stream,
            ctypes.pointer(early), 1 if self._early else 0,
        )  # fmt: skip
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        self._cuda.cuCtxSetCurrent(self._context)
        error = self._cuda.cuLaunchKernelEx(
            ctypes.byref(config), self._function(source, name), pointers, None
        )
        self._check(error, f"launching {name}")

    def _function(self, source: str, name: str) -> ctypes.c_void_p:
        if name not in self._functions:
            function = ctypes.c_void_p()
            error = self._cuda.cuModuleGetFunction(
                ctypes.byref(function), self._modules[source], name.encode()
            )
            self._check(error, f"{name} of {source}")
            static = ctypes.c_int()
            self._cuda.cuFuncGetAttribute(ctypes.byref(static), _STATIC_SHARED_SIZE, function)
            # Kernels that run side by side need one division of the multiprocessor's memory.
            for attribute, value in (
                (_MAX_DYNAMIC_SHARED_SIZE, self._shared_max - static.value),
                (_PREFERRED_SHARED_CARVEOUT, 100),
            ):
                self._check(self._cuda.cuFuncSetAttribute(function, attribute, value), name)
            self._functions[name] = function
        return self._functions[name]

    def _attribute(self, which: int) -> int:
        value, device = ctypes.c_int(), ctypes.c_int()
        self._check(self._cuda.cuCtxGetDevice(ctypes.byref(device)), "cuCtxGetDevice")
        self._check(
            self._cuda.cuDeviceGetAttribute(ctypes.byref(value), which, device),
            f"attribute {which}",
        )
        return value.value

    def _check(self, error: int, doing: str) -> None:
        if error:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(error, ctypes.byref(text))
            raise HostError(f"{doing}: {(text.value or b'unknown error').decode()} ({error})")


@cache
def compiled(device: torch.device) -> Kernels | None:
    """The kernels for this card, or None (and a warning) where they cannot be had.

    DUCKCTL_GPU_KERNELS=triton leaves them out. HostError for other values than that and `cuda`.
    """
    wanted = os.environ.get(SETTING, "cuda")
    if wanted not in ("cuda", "triton"):
        raise HostError(f"{SETTING} is '{wanted}', expected cuda or triton")
    if device.type != "cuda" or wanted == "triton":
        return None
    nvrtc, cuda = load_nvrtc(), _first_library(["libcuda.so.1"])
    try:
        if nvrtc is None or cuda is None:
            raise HostError("NVRTC or the driver's library is missing")
        return Kernels(device, nvrtc, cuda)
    except HostError as error:
        warnings.warn(f"slower Triton kernels stand in: {error.message}", stacklevel=2)
        return None


def load_nvrtc() -> ctypes.CDLL | None:
    """PyTorch's run-time compiler, or one of the system; None if there is none."""
    return _first_library(_nvrtc_names())


def _nvrtc_names() -> Iterator[str]:
    major = (torch.version.cuda or "13").partition(".")[0]
    for folder in sys.path:
        for path in sorted(Path(folder).glob(f"nvidia/*/lib/libnvrtc.so.{major}*")):
            yield str(path)
    yield f"libnvrtc.so.{major}"


def _first_library(names: Iterator[str] | Sequence[str]) -> ctypes.CDLL | None:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def argument_sizes() -> dict[str, int]:
    """Bytes of every argument structure, by name: the sources assert them."""
    from host_runtime.ops.gpu import attend, index, mailbox, norm, prepare, product

    found = (
        product.Product, product.Route, prepare.Prepare, attend.Attend, attend.Merge,
        norm.AddNorm, index.Choice, mailbox.Addition,
    )  # fmt: skip
    return {one.__name__: ctypes.sizeof(one) for one in found}


def compile_source(nvrtc: ctypes.CDLL, name: str, capability: tuple[int, int]) -> bytes:
    """Machine code of one source file. HostError with the compiler's words."""
    texts = [(_FOLDER / header).read_bytes() for header in HEADERS]
    program = ctypes.c_void_p()
    count = len(HEADERS)
    nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), (_FOLDER / name).read_bytes(), name.encode(), count,
        (ctypes.c_char_p * count)(*texts),
        (ctypes.c_char_p * count)(*(header.encode() for header in HEADERS)),
    )  # fmt: skip
    sizes = [f"-D{key.upper()}_BYTES={value}" for key, value in argument_sizes().items()]
    options = [f"-arch=sm_{capability[0]}{capability[1]}", "-std=c++17", *sizes]
    error = nvrtc.nvrtcCompileProgram(
        program, len(options), (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
    )
    size = ctypes.c_size_t()
    if error:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise HostError(f"{name} does not compile: {log.value.decode()}")
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    image = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, image)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return image.raw
