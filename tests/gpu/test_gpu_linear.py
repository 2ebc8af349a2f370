"""FP8 and plain products equal float64, for any shape, and a row's bits ignore its neighbours."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gpu_kit import DEVICE, HAS_CUDA, fp8, needs_cuda, needs_triton, normal, relative_error

pytestmark = [needs_triton, pytest.mark.usefixtures("kernels")]

# float32 sums of K products: about sqrt(K) * 2^-24 of the norm
TOLERANCE = 3e-6
V32 = ((2240, 7168, 64), (32768, 1536, 0), (7168, 16384, 0), (4096, 7168, 256), (7168, 2048, 0))
SMALL = ((40, 256, 3), (160, 384, 0), (24, 320, 5), (0, 128, 20), (5, 16, 0), (100, 528, 7))
SHAPES = (V32 + SMALL) if HAS_CUDA else SMALL
PARTIAL = ((24, 256, 0), (60, 18432, 0), (7168, 16384, 0))[: 3 if HAS_CUDA else 2]


def build(seed: int, rows: int, columns: int, plain: int) -> tuple[Any, torch.Tensor]:
    from host_runtime.ops.matrix import Matrix

    codes, scale, meant = fp8(seed, rows, columns)
    extra = normal(seed + 2, plain, columns).to(torch.bfloat16)
    return Matrix(codes, scale, extra), torch.cat((meant, extra.double()))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
# the interpreter has no bf16 products
@pytest.mark.parametrize("rows", [1, 2, 3, 8, 70] if HAS_CUDA else [1, 2])
def test_linear_equals_float64(shape: tuple[int, int, int], rows: int) -> None:
    from host_runtime.ops.gpu.linear import linear

    matrix, meant = build(11, *shape)
    x = normal(13, rows, shape[1])
    out = torch.full((rows, meant.shape[0]), torch.nan, device=DEVICE)
    linear(x, matrix, out)
    assert relative_error(out, x.double() @ meant.T) < TOLERANCE


@pytest.mark.parametrize("rows", [1, 2])
def test_norm_prologue(rows: int) -> None:
    from host_runtime.ops.gpu.linear import linear
    from host_runtime.ops.norm import rms_norm

    matrix, meant = build(17, 48, 384, 4)
    x, gain = normal(18, rows, 400), normal(19, 384)
    found = linear(x, matrix, prologue="norm", gain=gain, eps=1e-6)
    expected = rms_norm(x[:, :384].double(), gain.double(), 1e-6) @ meant.T
    assert relative_error(found, expected) < TOLERANCE


@pytest.mark.parametrize("rows", [1, 2])
def test_silu_prologue(rows: int) -> None:
    from host_runtime.ops.gpu.linear import linear

    matrix, meant = build(23, 48, 256, 0)
    x = normal(24, rows, 512)
    gate, up = x.double().chunk(2, -1)
    expected = (torch.nn.functional.silu(gate) * up) @ meant.T
    assert relative_error(linear(x, matrix, prologue="silu"), expected) < TOLERANCE


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_do_not_depend_on_each_other(shape: tuple[int, int, int]) -> None:
    from host_runtime.ops.gpu.linear import linear

    matrix, _ = build(29, *shape)
    x = normal(30, 2, shape[1])
    both = linear(x, matrix)
    for row in range(2):
        assert torch.equal(linear(x[row : row + 1].clone(), matrix)[0], both[row])
    if not HAS_CUDA:
        return
    many = linear(x.repeat(4, 1), matrix)
    assert torch.equal(many[0], many[2])
    assert torch.equal(many, linear(x.repeat(4, 1), matrix))


def test_every_code_is_decoded_exactly() -> None:
    from host_runtime.ops.gpu.linear import linear
    from host_runtime.ops.matrix import Matrix

    codes = torch.arange(256, dtype=torch.uint8, device=DEVICE)
    codes = torch.where(codes % 128 == 127, 0, codes).to(torch.uint8)  # the two NaN
    matrix = Matrix(
        codes.repeat(128, 1).T.contiguous(),
        torch.ones(2, 1, device=DEVICE),
        torch.empty(0, 128, dtype=torch.bfloat16, device=DEVICE),
    )
    x = torch.zeros(1, 128, device=DEVICE)
    x[0, 5] = 1
    assert torch.equal(linear(x, matrix)[0], codes.view(torch.float8_e4m3fn).float())


def test_wrong_shapes_are_refused() -> None:
    from host_runtime.ops.gpu.linear import linear

    matrix, _ = build(31, 16, 128, 0)
    with pytest.raises(ValueError, match="K 128"):
        linear(normal(1, 1, 64), matrix)
    with pytest.raises(ValueError, match="float32"):
        linear(normal(1, 1, 128).to(torch.bfloat16), matrix)
    with pytest.raises(ValueError, match="prologue silu for 3 rows"):
        linear(normal(1, 3, 256), matrix, prologue="silu")


@needs_cuda
def test_the_matrices_of_v32_are_streamed(kernels: str) -> None:
    """On a card the products run in CUDA C++; nothing else would notice a silent stand-in."""
    from host_runtime.ops.gpu.linear import can_route_beside, partial_sums
    from host_runtime.ops.gpu.product import streams

    first, _, output, gate_up, down = (build(41, *shape)[0] for shape in V32)
    expected = kernels == "cuda"
    assert [streams(one) is not None for one in (first, gate_up, down)] == [expected] * 3
    assert can_route_beside(gate_up, down) == expected
    assert partial_sums(output) == (2 if expected else 1)


@pytest.mark.parametrize("shape", PARTIAL, ids=str)
@pytest.mark.parametrize("prologue", ["none", "silu"])
@pytest.mark.parametrize("rows", [1, 2])
def test_partial_sums_equal_float64(shape: tuple[int, int, int], prologue: Any, rows: int) -> None:
    """And a row's bits are those of the row alone."""
    from host_runtime.ops.gpu.linear import partial_linear, partial_sums

    matrix, meant = build(51, *shape)
    x = normal(52, rows, shape[1] * (2 if prologue == "silu" else 1)) * 3
    out = torch.full((rows, 4, shape[0]), torch.nan, device=DEVICE)
    found = partial_linear(x, matrix, out, prologue=prologue)
    assert found.shape == (rows, partial_sums(matrix), shape[0])
    assert found.data_ptr() == out.data_ptr()
    gate, up = x.double().chunk(2, -1)
    value = torch.nn.functional.silu(gate) * up if prologue == "silu" else x.double()
    assert relative_error(found.sum(1), value @ meant.T) < TOLERANCE
    for row in range(rows):
        alone = torch.full_like(out[:1], torch.nan)
        own = partial_linear(x[row : row + 1].clone(), matrix, alone, prologue=prologue)
        assert torch.equal(own[0], found[row])


@pytest.mark.parametrize("size", [1e-30, 1e-6, 1.0, 1e6, 1e30])
def test_inputs_of_any_size(size: float) -> None:
    """x far from 1, and blocks of 128 columns of very different sizes."""
    from host_runtime.ops.gpu.linear import linear

    matrix, meant = build(61, 160, 384, 0)
    x = normal(62, 1, 384) * size
    x[:, 128:256] *= 1e-5
    x[:, 200] = 0
    assert relative_error(linear(x, matrix), x.double() @ meant.T) < TOLERANCE
    x[0, 3] = torch.nan
    assert not linear(x, matrix).isfinite().any()
