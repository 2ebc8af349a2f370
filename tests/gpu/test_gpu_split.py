"""Inputs that their maker splits into halves give products what the plain inputs give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gpu_kit import DEVICE, HAS_CUDA, fp8, needs_triton, normal, relative_error
from test_gpu_linear import TOLERANCE, build

from host_runtime.ops.norm import rms_norm

pytestmark = [needs_triton, pytest.mark.usefixtures("compiled_kernels")]
EPS = 1e-6
SHAPES = (
    ((2240, 7168, 64), (4096, 7168, 256), (7, 256, 3)) if HAS_CUDA else ((7, 256, 3), (70, 2048, 5))
)
HEADS, ROWS = (128, 7168) if HAS_CUDA else (16, 160)  # of the output projection


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e15])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_residual_sum_is_split_for_the_next_product(
    shape: tuple[int, int, int], size: float
) -> None:
    from host_runtime.ops.gpu.linear import linear
    from host_runtime.ops.gpu.mailbox import add_parts, adds_parts
    from host_runtime.ops.gpu.split import split_rows

    columns = shape[1]
    matrix, meant = build(5, *shape)
    x, added, gain = normal(6, 1, columns), normal(7, 2, columns), normal(8, columns)
    x, added = x * size, added * size
    kernels, split = adds_parts(x), split_rows(1, columns, DEVICE)
    assert kernels is not None
    assert split is not None
    total = x.double() + added.double().sum(0, keepdim=True)
    add_parts(kernels, x, added, gain=gain, split=split)
    found = linear(x, matrix, prologue="norm", gain=gain, eps=EPS * size, split=split)
    assert relative_error(found, rms_norm(total, gain.double(), EPS * size) @ meant.T) < TOLERANCE
    again = linear(x, matrix, prologue="norm", gain=gain, eps=EPS * size)
    assert relative_error(found, again) < 1e-6


@pytest.mark.parametrize("prologue", ["norm", "none"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_two_split_rows_have_the_bits_of_each_alone(
    shape: tuple[int, int, int], prologue: Any
) -> None:
    """Also as partial sums, and in whatever memory a card has."""
    from host_runtime.ops.gpu.linear import linear, partial_linear
    from host_runtime.ops.gpu.mailbox import add_parts, adds_parts
    from host_runtime.ops.gpu.split import split_rows

    columns = shape[1]
    matrix, _ = build(5, *shape)
    x, added, ones = normal(6, 2, columns), normal(7, 2, 1, columns), torch.ones(columns)
    gain = normal(8, columns) if prologue == "norm" else ones.to(DEVICE)
    kernels, splits = adds_parts(x[:1]), split_rows(2, columns, DEVICE)
    assert kernels is not None
    assert splits is not None
    alone = [slice(row, row + 1) for row in range(2)]
    for row in range(2):
        one = splits.part(row, row + 1)
        add_parts(kernels, x[alone[row]], added[row], gain=gain, split=one)

    def product(rows: slice) -> torch.Tensor:
        split = splits.part(rows.start, rows.stop)
        if prologue == "norm":
            return linear(x[rows], matrix, prologue="norm", gain=gain, eps=EPS, split=split)
        out = torch.full((rows.stop - rows.start, 2, matrix.rows), torch.nan, device=DEVICE)
        return partial_linear(x[rows], matrix, out, split=split)

    both = product(slice(0, 2))
    assert both.isfinite().all()
    assert torch.equal(both, torch.cat([product(one) for one in alone]))


@pytest.mark.parametrize("nope", [128, 96], ids=str)
def test_attention_splits_its_values_for_the_output_projection(nope: int) -> None:
    """Bit by bit what the product makes of the values itself. With 96 the values' rows lie in two
    blocks of scales."""
    from host_runtime.ops.gpu.attend import SPLITS, merge_values
    from host_runtime.ops.gpu.linear import partial_linear
    from host_runtime.ops.gpu.product import column_parts
    from host_runtime.ops.gpu.split import split_rows
    from host_runtime.ops.matrix import Matrix

    heads, latent, value = HEADS, 512, 128
    parts = normal(1, SPLITS, heads, latent)
    sums = torch.stack((normal(2, SPLITS, heads), normal(3, SPLITS, heads).abs()), -1)
    codes, scale, kv_meant = fp8(4, heads * (nope + value), latent)
    kv_b = Matrix(codes, scale, torch.empty(0, latent, dtype=torch.bfloat16, device=DEVICE))
    out = torch.full((heads, value), torch.nan, device=DEVICE)
    split = merge_values(parts, sums, kv_b, nope, out, split_rows(1, heads * value, DEVICE))
    assert split is not None

    counts = (sums[..., 0] - sums[..., 0].amax(0)).double().exp()[..., None]  # [S, H, 1]
    mixed = (parts * counts).sum(0) / (counts * sums[..., 1:]).sum(0)  # [H, L]
    w_uv = kv_meant.view(heads, nope + value, latent)[:, nope:]
    assert relative_error(out, torch.einsum("hl,hvl->hv", mixed, w_uv)) < 1e-5

    matrix, meant = build(9, ROWS, heads * value, 0)
    sums_of_parts = torch.full((1, column_parts(heads * value), ROWS), torch.nan, device=DEVICE)
    row = out.view(1, -1)
    found = partial_linear(row, matrix, sums_of_parts, split=split).clone()
    assert torch.equal(found, partial_linear(row, matrix, sums_of_parts))
    assert relative_error(found.sum(1), row.double() @ meant.T) < TOLERANCE


@pytest.mark.parametrize("columns", [128, 384, 7000])
def test_rows_that_are_no_whole_chunks_are_not_split(columns: int) -> None:
    from host_runtime.ops.gpu.split import split_rows

    assert split_rows(1, columns, DEVICE) is None
