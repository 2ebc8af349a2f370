"""Residual sums with RMSNorm, and the embedding of a lane's token. Reference: ops/norm.py.

Shapes: D hidden size. One program per row: D numbers fit one multiprocessor's registers.
"""

from __future__ import annotations

import ctypes

import torch
import triton
import triton.language as tl

from host_runtime.ops.gpu.compiled import compiled
from host_runtime.ops.gpu.support import follow, launch_options, power_of_two, require

_WARPS = 8
_THREADS, _SIZE_MAX = 512, 8192  # as in norm.cu


class AddNorm(ctypes.Structure):
    """See norm.cu."""

    _fields_ = (
        ("x", ctypes.c_void_p), ("added", ctypes.c_void_p), ("also", ctypes.c_void_p),
        ("gain", ctypes.c_void_p), ("out", ctypes.c_void_p), ("size", ctypes.c_int),
        ("parts", ctypes.c_int), ("eps", ctypes.c_float),
    )  # fmt: skip


def add_norm(
    x: torch.Tensor,
    added: torch.Tensor,
    gain: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    also: torch.Tensor | None = None,
) -> None:
    """x += added + also; out = rms_norm(x) * gain. All [n, D] float32 contiguous, gain [D].

    For one row, added may be [parts, D]: their sum is added. `also` may lie in pinned host memory.
    """
    rows, size = x.shape
    parts = added.shape[0] if rows == 1 else 1
    require(out.shape == x.shape and added.shape[1] == size, "add_norm", "shapes differ")
    require(added.shape[0] == rows * parts, "add_norm", "parts of more than one row")
    require(added.is_contiguous() and x.is_contiguous(), "add_norm", "rows must be contiguous")
    kernels, pointers = compiled(x.device), [one.data_ptr() for one in (x, added, gain, out)]
    aligned = size % 4 == 0 and all(pointer % 16 == 0 for pointer in pointers)
    if kernels is not None and aligned and size <= _SIZE_MAX and out.is_contiguous():
        argument = AddNorm(
            x.data_ptr(), added.data_ptr(), also.data_ptr() if also is not None else None,
            gain.data_ptr(), out.data_ptr(), size, parts, eps,
        )  # fmt: skip
        kernels.launch("norm.cu", "add_norm", rows, _THREADS, 0, [argument])
        return
    _add_norm_kernel[(rows,)](
        x, added, added if also is None else also, gain, out, eps, D=size,
        BLOCK=power_of_two(size), PARTS=parts, TWO=also is not None, num_warps=_WARPS,
        **launch_options(x.device),
    )  # fmt: skip


def embed_norm(
    state: torch.Tensor,
    embedding: torch.Tensor,
    gain: torch.Tensor,
    eps: float,
    x: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """x = embedding[state[2]]; out = rms_norm(x) * gain. embedding [V, D], x and out [1, D]."""
    size = x.shape[1]
    _embed_norm_kernel[(1,)](
        state, embedding, gain, x, out, eps, D=size, BLOCK=power_of_two(size), num_warps=_WARPS,
        **launch_options(x.device),
    )  # fmt: skip


@triton.jit
def norm_row(x, gain_ptr, at, inside, eps, D: tl.constexpr):
    """RMSNorm of one row held in registers; x is 0 outside."""
    mean = tl.sum(x * x, 0) / D
    return x * tl.rsqrt(mean + eps) * tl.load(gain_ptr + at, mask=inside, other=0.0)


@triton.jit
def _add_norm_kernel(
    x_ptr, added_ptr, also_ptr, gain_ptr, out_ptr, eps,
    D: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, TWO: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    follow(EARLY)
    row = tl.program_id(0) * D
    at = tl.arange(0, BLOCK)
    inside = at < D
    x = tl.load(x_ptr + row + at, mask=inside, other=0.0)
    added = tl.load(added_ptr + row + at, mask=inside, other=0.0)
    for part in tl.static_range(1, PARTS):
        added += tl.load(added_ptr + part * D + at, mask=inside, other=0.0)
    if TWO:
        also = tl.load(also_ptr + row + at, mask=inside, other=0.0, cache_modifier=".cv")
        added += also
    x += added
    tl.store(x_ptr + row + at, x, mask=inside)
    tl.store(out_ptr + row + at, norm_row(x, gain_ptr, at, inside, eps, D), mask=inside)


@triton.jit
def _embed_norm_kernel(
    state_ptr, embedding_ptr, gain_ptr, x_ptr, out_ptr, eps,
    D: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    follow(EARLY)
    token = tl.load(state_ptr + 2).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < D
    x = tl.load(embedding_ptr + token * D + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(x_ptr + at, x, mask=inside)
    tl.store(out_ptr + at, norm_row(x, gain_ptr, at, inside, eps, D), mask=inside)
