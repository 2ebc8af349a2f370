"""Cards with 100 KB of shared memory: attention takes fewer rows, products have shorter rings."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest
import torch
from gpu_kit import DEVICE, needs_triton, normal, relative_error
from test_gpu_attention import (
    BASE,
    BF16_TOLERANCE,
    LATENT,
    attention_case,
    run_attention,
    values_of,
)
from test_gpu_linear import TOLERANCE, build

from host_runtime.ops.attention import attend_prefix
from host_runtime.ops.gpu import product

pytestmark = needs_triton
SHARED_BYTES = 101376


@pytest.fixture(autouse=True)
def small_card(compiled_kernels: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kernels = importlib.import_module("host_runtime.ops.gpu.attend").compiled(DEVICE)
    assert kernels is not None
    monkeypatch.setattr(kernels, "shared_per_block", SHARED_BYTES)
    monkeypatch.setattr(kernels, "shared_per_multiprocessor", SHARED_BYTES + 1024)
    product._cut.cache_clear()
    yield
    product._cut.cache_clear()


@pytest.mark.parametrize("context", [1, 63, 64, 300, 2100])
def test_attention(context: int) -> None:
    query, cache = attention_case(context, torch.bfloat16)
    rows = cache[BASE : BASE + context].double()
    latent, rope_key = rows[:, :LATENT], rows[:, LATENT:]
    mixed = attend_prefix(query.double()[None], latent, rope_key, context - 1, 0.1352)
    found = run_attention(query, cache, context, None)
    assert relative_error(found, values_of(mixed)) < BF16_TOLERANCE


@pytest.mark.parametrize("shape", [(40, 256, 3), (24, 7168, 5), (40, 8192, 0)], ids=str)
@pytest.mark.parametrize("rows", [1, 2])
def test_products(shape: tuple[int, int, int], rows: int) -> None:
    from host_runtime.ops.gpu.linear import linear

    matrix, meant = build(11, *shape)
    x = normal(13, rows, shape[1])
    assert product.streams(matrix) is not None
    assert relative_error(linear(x, matrix), x.double() @ meant.T) < TOLERANCE
