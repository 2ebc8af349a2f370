"""Random weights, lane states and references for the tests of the Triton operations."""

from __future__ import annotations

import importlib.util

import pytest
import torch

HAS_TRITON = importlib.util.find_spec("triton") is not None
HAS_CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if HAS_CUDA else "cpu")

needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="the package triton is not installed")
needs_cuda = pytest.mark.skipif(
    not (HAS_CUDA and HAS_TRITON), reason="no CUDA device (or no triton): nvidia-smi shows none"
)


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    """Host memory as the card sees it."""
    return tensor.pin_memory() if HAS_CUDA else tensor


def finish() -> None:
    """Wait for the card, if there is one."""
    if HAS_CUDA:
        torch.cuda.synchronize()


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(seed: int, *shape: int) -> torch.Tensor:
    """Standard normal numbers on the device, the same ones on every device."""
    return torch.randn(*shape, generator=generator(seed)).to(DEVICE)


def fp8(seed: int, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes uint8, scale, and the float64 matrix that they mean."""
    codes = (normal(seed, rows, columns) * 2).to(torch.float8_e4m3fn)
    grid = (-(-rows // 128), -(-columns // 128))
    scale = (torch.rand(*grid, generator=generator(seed + 1)) + 0.5).to(DEVICE) / 64
    spread = scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
    return codes.view(torch.uint8), scale, codes.double() * spread.double()


def state(base: int, position: int, token: int = 0) -> torch.Tensor:
    """A lane's state: first cache row, position, token, unused."""
    return torch.tensor([base, position, token, 0], dtype=torch.int32, device=DEVICE)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """||found - expected|| / ||expected||; NaN counts as infinite."""
    error = (found.double() - expected.double()).norm() / expected.double().norm()
    return float(error.nan_to_num(nan=float("inf")))
