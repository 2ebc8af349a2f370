"""What all Triton operations share: E4M3 decoding, early launch, and checks of their arguments."""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

BLOCK = 128  # rows and columns of one FP8 scale


@cache
def native_fp8(device: torch.device) -> bool:
    """True where the hardware converts E4M3 (compute capability 8.9 and later)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


@cache
def early_launch(device: torch.device) -> bool:
    """True where a kernel may start while its predecessor drains (capability 9.0 and later)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def launch_options(device: torch.device) -> dict[str, bool]:
    """Keyword arguments of every launch: EARLY for the kernel, launch_pdl for the launcher."""
    early = early_launch(device)
    return {"EARLY": early, "launch_pdl": early} if device.type == "cuda" else {"EARLY": False}


@triton.jit
def follow(EARLY: tl.constexpr):
    """First statement of every kernel: let the next one start, wait for the previous one's results.

    Each kernel of a chain waits, so all earlier ones are complete too.
    """
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def decode_e4m3(codes, NATIVE: tl.constexpr):
    """float32 of E4M3 codes in uint8.

    Without hardware support: sign, exponent and mantissa are moved into a half, whose exponent bias
    is 8 higher; the factor 256 makes up for it. Exact for all finite codes, subnormals too.
    """
    if NATIVE:
        return codes.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    wide = codes.to(tl.int16)
    half = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    return half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0


@triton.jit
def split_bf16(x):
    """x (float32) as the sum of three bf16 values: all 24 bits of the significand."""
    high = x.to(tl.bfloat16)
    rest = x - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
    return high, middle, low


def require(holds: bool, operation: str, problem: str) -> None:
    """Refuse arguments that a kernel would read out of bounds with."""
    if not holds:
        raise ValueError(f"{operation}: {problem}")


def power_of_two(value: int, least: int = 1) -> int:
    """The smallest power of two that is at least `value` and `least`."""
    return max(least, 1 << (value - 1).bit_length())
