"""Matrix products with FP8 block-scaled and plain weights: y = x . W^T in float32.

Shapes: M rows, K inputs, N outputs. Weights are decoded in registers; activations stay float32.

Up to GEMV_ROWS_MAX rows a GEMV streams the weights once: product.cu where it can (see `streams`),
else Triton. Its sums run in an order that does not depend on the number of rows. More rows go
through the matrix units: each activation is split into three bf16 parts, which together hold all
its bits, so that only the order of sums differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import triton
import triton.language as tl

from host_runtime.ops.gpu.product import Route, column_parts, multiply, streams
from host_runtime.ops.gpu.split import SplitRows
from host_runtime.ops.gpu.support import (
    BLOCK,
    decode_e4m3,
    follow,
    launch_options,
    native_fp8,
    require,
    split_bf16,
)
from host_runtime.ops.matrix import Matrix

GEMV_ROWS_MAX = 2
Prologue = Literal["none", "norm", "silu"]
_PROLOGUES = {"none": 0, "norm": 1, "silu": 2}


@dataclass(frozen=True)
class _GemvShape:
    """How a GEMV is cut: rows per program, warps, blocks of columns at once, and how often that is
    unrolled."""

    rows: int
    warps: int
    blocks: int
    unroll: int


def _gemv_shape(rows: int, columns: int) -> _GemvShape:
    """By measurement on V3.2's matrices (docs/reference/gpu-runtime.md).

    The same for one row of x and for two, or a row's sums would run in another order.
    """
    if columns > 8192:
        return _GemvShape(2, 8, 8, 2)
    if columns <= 2048:
        return _GemvShape(8, 1, 2, 2) if rows > 16384 else _GemvShape(8, 4, 2, 2)
    return _GemvShape(4, 4, 8, 1) if rows <= 3000 else _GemvShape(2, 4, 4, 2)


def linear(
    x: torch.Tensor,
    matrix: Matrix,
    out: torch.Tensor | None = None,
    *,
    prologue: Prologue = "none",
    gain: torch.Tensor | None = None,
    eps: float = 0.0,
    route: Route | None = None,
    split: SplitRows | None = None,
) -> torch.Tensor:
    """y [M, N] of x [M, >= K] float32, whose rows may be strided.

    prologue "norm": x is RMS-normed with `gain` [K] and eps first. "silu": x is [M, 2 K], gate
    then up, and silu(gate) * up is the input. Both only for up to GEMV_ROWS_MAX rows. `route`
    (only where `streams` takes the matrix): what route_payload makes, done beside the product.
    `split`: x, times the gain, as its maker has split it; the result is the same.
    """
    rows, columns = x.shape[0], matrix.columns
    width = 2 * columns if prologue == "silu" else columns
    require(x.dim() == 2 and x.shape[1] >= width, "linear", f"x {list(x.shape)}, K {columns}")
    require(x.dtype == torch.float32 and x.stride(1) == 1, "linear", "x must be float32 rows")
    require((prologue == "norm") == (gain is not None), "linear", "norm needs a gain, others none")
    if out is None:
        out = torch.empty(rows, matrix.rows, dtype=torch.float32, device=x.device)
    require(out.shape == (rows, matrix.rows), "linear", f"out has shape {list(out.shape)}")
    if rows <= GEMV_ROWS_MAX:
        kernels = streams(matrix)
        if kernels is not None:
            multiply(kernels, x, matrix, out, prologue, gain, eps, route=route, split=split)
        else:
            require(route is None, "linear", "no kernel sends the payload here")
            _launch_gemv(x, matrix, out, prologue, gain, eps)
    else:
        require(prologue == "none", "linear", f"prologue {prologue} for {rows} rows")
        _launch_gemm(x, matrix, out)
    return out


def partial_linear(
    x: torch.Tensor,
    matrix: Matrix,
    out: torch.Tensor,
    *,
    prologue: Literal["none", "silu"] = "none",
    route: Route | None = None,
    split: SplitRows | None = None,
) -> torch.Tensor:
    """`linear` of up to GEMV_ROWS_MAX rows x as a few sums over parts of the columns.

    out [M, at least column_parts(K), N]; returns the sums that were written, [M, parts, N]. `route`
    (only for one row, where can_route_beside): the choice of experts beside the product.
    """
    kernels = streams(matrix, column_parts(matrix.columns))
    if kernels is None:
        require(route is None, "partial_linear", "no kernel chooses experts here")
        linear(x, matrix, out[:, 0], prologue=prologue)
        return out[:, :1]
    out = out[:, : partial_sums(matrix)]
    multiply(
        kernels, x, matrix, out, prologue, None, 0.0, parts=out.shape[1], wide=True, route=route,
        split=split,
    )  # fmt: skip
    return out


def can_route_beside(before: Matrix, matrix: Matrix) -> bool:
    """True if linear of `before` and partial_linear of `matrix` take a `route`."""
    parts = column_parts(matrix.columns)
    return streams(before) is not None and streams(matrix, parts) is not None


def partial_sums(matrix: Matrix) -> int:
    """How many sums partial_linear writes for each row."""
    parts = column_parts(matrix.columns)
    return parts if streams(matrix, parts) else 1


def _launch_gemv(
    x: torch.Tensor,
    matrix: Matrix,
    out: torch.Tensor,
    prologue: Prologue,
    gain: torch.Tensor | None,
    eps: float,
) -> None:
    rows8, plain, columns = matrix.codes.shape[0], matrix.plain.shape[0], matrix.columns
    shape = _gemv_shape(matrix.rows, columns)
    per_program, warps, group = shape.rows, shape.warps, shape.blocks
    column_blocks = -(-columns // BLOCK)
    while column_blocks % group:
        group //= 2
    grid = (-(-rows8 // per_program) + -(-plain // per_program),)
    _gemv_kernel[grid](
        x, gain if gain is not None else x, matrix.codes, matrix.scale, matrix.plain, out,
        rows8, plain, eps, x.stride(0), out.stride(0),
        K=columns, ROWS=x.shape[0], BN=per_program, KB=group, UNROLL=shape.unroll,
        PROLOGUE=_PROLOGUES[prologue], NATIVE=native_fp8(x.device), num_warps=warps,
        **launch_options(x.device),
    )  # fmt: skip


@triton.jit
def _input(x_ptr, gain_ptr, k, inside, K: tl.constexpr, PROLOGUE: tl.constexpr):
    """One tile of the input row, before normalisation by its root mean square."""
    x = tl.load(x_ptr + k, mask=inside, other=0.0)
    if PROLOGUE == 2:
        up = tl.load(x_ptr + K + k, mask=inside, other=0.0)
        x = x * (1.0 / (1.0 + tl.exp(-x))) * up
    return x


@triton.jit
def _finish(acc, squares, eps, K: tl.constexpr, PROLOGUE: tl.constexpr):
    """[BN] sums of acc [BN, KB, 128], divided by the root mean square if asked for."""
    y = tl.sum(tl.sum(acc, 2), 1)
    if PROLOGUE == 1:
        mean = tl.sum(tl.sum(squares, 1), 0) / K
        y = y * tl.rsqrt(mean + eps)
    return y


@triton.jit
def _dot_rows(
    x_ptr, gain_ptr, w_ptr, scale_ptr, y_ptr, first, count, eps, x_stride, y_stride,
    K: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, KB: tl.constexpr,
    UNROLL: tl.constexpr, PROLOGUE: tl.constexpr, NATIVE: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """BN output rows from `first` on. w [count, K]; y_ptr already points to this part's outputs."""
    n = first + tl.arange(0, BN)
    block = tl.arange(0, KB)
    column = block[:, None] * 128 + tl.arange(0, 128)[None, :]  # [KB, 128]
    w_rows = (n.to(tl.int64) * K)[:, None, None]
    n_inside = (n < count)[:, None, None]
    scale_row = scale_ptr + (first // 128) * ((K + 127) // 128)
    acc0 = tl.zeros((BN, KB, 128), tl.float32)
    acc1 = tl.zeros((BN, KB, 128), tl.float32)
    squares0 = tl.zeros((KB, 128), tl.float32)
    squares1 = tl.zeros((KB, 128), tl.float32)
    STEP: tl.constexpr = KB * 128
    for outer in range(0, K, STEP * UNROLL):
        for inner in tl.static_range(UNROLL):
            k = outer + inner * STEP + column
            inside = k < K
            w = tl.load(w_ptr + w_rows + k[None, :, :], mask=n_inside & inside[None, :, :], other=0)
            if SCALED:
                at = (outer + inner * STEP) // 128 + block
                scale = tl.load(scale_row + at, mask=at * 128 < K, other=0.0)[:, None]
                w = decode_e4m3(w, NATIVE)
            else:
                w = w.to(tl.float32)
            gain = 1.0
            if PROLOGUE == 1:
                gain = tl.load(gain_ptr + k, mask=inside, other=0.0)
            x = _input(x_ptr, gain_ptr, k, inside, K, PROLOGUE)
            if PROLOGUE == 1:
                squares0 += x * x
                x = x * gain
            if SCALED:
                x = x * scale
            acc0 += w * x[None, :, :]
            if ROWS == 2:
                x = _input(x_ptr + x_stride, gain_ptr, k, inside, K, PROLOGUE)
                if PROLOGUE == 1:
                    squares1 += x * x
                    x = x * gain
                if SCALED:
                    x = x * scale
                acc1 += w * x[None, :, :]
    tl.store(y_ptr + n, _finish(acc0, squares0, eps, K, PROLOGUE), mask=n < count)
    if ROWS == 2:
        y = _finish(acc1, squares1, eps, K, PROLOGUE)
        tl.store(y_ptr + y_stride + n, y, mask=n < count)


@triton.jit
def _gemv_kernel(
    x_ptr, gain_ptr, codes_ptr, scale_ptr, plain_ptr, y_ptr, rows8, plain_rows, eps,
    x_stride, y_stride,
    K: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, KB: tl.constexpr,
    UNROLL: tl.constexpr, PROLOGUE: tl.constexpr, NATIVE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    follow(EARLY)
    program = tl.program_id(0)
    programs8 = tl.cdiv(rows8, BN)
    if program < programs8:
        _dot_rows(
            x_ptr, gain_ptr, codes_ptr, scale_ptr, y_ptr, program * BN, rows8, eps,
            x_stride, y_stride, K, ROWS, BN, KB, UNROLL, PROLOGUE, NATIVE, True,
        )  # fmt: skip
    else:
        _dot_rows(
            x_ptr, gain_ptr, plain_ptr, scale_ptr, y_ptr + rows8, (program - programs8) * BN,
            plain_rows, eps, x_stride, y_stride, K, ROWS, BN, KB, UNROLL, PROLOGUE, NATIVE, False,
        )  # fmt: skip


def _launch_gemm(x: torch.Tensor, matrix: Matrix, out: torch.Tensor) -> None:
    rows = x.shape[0]
    tile_rows = 16 if rows <= 16 else 64
    for weights, first, scaled in (
        (matrix.codes, 0, True),
        (matrix.plain, matrix.codes.shape[0], False),
    ):
        if weights.shape[0]:
            # two stages of the tiles must fit 99 KiB, the least shared memory of these cards
            tile = 128 if rows > 16 and scaled else 64
            grid = (-(-rows // tile_rows), -(-weights.shape[0] // tile))
            _gemm_kernel[grid](
                x, weights, matrix.scale, out[:, first:], rows, weights.shape[0],
                x.stride(0), out.stride(0), K=matrix.columns, BM=tile_rows, BN=tile,
                SCALED=scaled, NATIVE=native_fp8(x.device),
                EXACT=not scaled and weights.dtype == torch.float32,
                num_warps=4 if rows <= 16 else 8, num_stages=2, **launch_options(x.device),
            )  # fmt: skip


@triton.jit
def _gemm_kernel(
    x_ptr, w_ptr, scale_ptr, y_ptr, rows, count, x_stride, y_stride,
    K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    SCALED: tl.constexpr, NATIVE: tl.constexpr, EXACT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    follow(EARLY)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    first = tl.program_id(1) * BN
    n = first + tl.arange(0, BN)
    k = tl.arange(0, 128)
    x_at = x_ptr + m.to(tl.int64)[:, None] * x_stride + k[None, :]
    w_at = w_ptr + n.to(tl.int64)[:, None] * K + k[None, :]
    scale_row = scale_ptr + (first // 128) * ((K + 127) // 128)
    acc = tl.zeros((BM, BN), tl.float32)
    for block in range(0, (K + 127) // 128):
        inside = block * 128 + k < K
        x = tl.load(x_at + block * 128, mask=(m < rows)[:, None] & inside[None, :], other=0.0)
        w = tl.load(w_at + block * 128, mask=(n < count)[:, None] & inside[None, :], other=0)
        if EXACT:
            acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
        else:
            if SCALED:
                w = decode_e4m3(w, NATIVE).to(tl.bfloat16)
            high, middle, low = split_bf16(x)
            w = tl.trans(w)
            part = tl.dot(low, w)
            part = tl.dot(middle, w, part)
            part = tl.dot(high, w, part)
            if SCALED:
                part = part * tl.load(scale_row + block)
            acc += part
    y_at = y_ptr + m.to(tl.int64)[:, None] * y_stride + n[None, :]
    tl.store(y_at, acc, mask=(m < rows)[:, None] & (n < count)[None, :])
