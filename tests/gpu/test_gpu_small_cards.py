"""Cards with 100 KB of shared memory: attention takes fewer rows, products have shorter rings."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

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

pytestmark = [needs_triton, pytest.mark.slow]
SHARED_BYTES = 101376


@pytest.fixture(autouse=True)
def small_card(compiled_kernels: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    device = torch.empty(0, device=DEVICE).device  # with its index, as the tensors' own
    kernels = importlib.import_module("host_runtime.ops.gpu.attend").compiled(device)
    assert kernels is not None
    monkeypatch.setattr(kernels, "shared_per_block", SHARED_BYTES)
    monkeypatch.setattr(kernels, "shared_per_multiprocessor", SHARED_BYTES + 1024)
    product._cut.cache_clear()
    yield kernels
    product._cut.cache_clear()


@pytest.fixture
def launched(small_card: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that are launched: nothing else would notice a silent stand-in."""
    names: list[str] = []
    launch = small_card.launch

    def record(source: str, name: str, *rest: Any) -> None:
        names.append(name)
        launch(source, name, *rest)

    monkeypatch.setattr(small_card, "launch", record)
    return names


@pytest.mark.parametrize("context", [1, 63, 64, 300, 2100])
def test_attention(context: int, launched: list[str]) -> None:
    query, cache = attention_case(context, torch.bfloat16)
    rows = cache[BASE : BASE + context].double()
    latent, rope_key = rows[:, :LATENT], rows[:, LATENT:]
    mixed = attend_prefix(query.double()[None], latent, rope_key, context - 1, 0.1352)
    found = run_attention(query, cache, context, None)
    assert relative_error(found, values_of(mixed)) < BF16_TOLERANCE
    assert launched == ["attend_64", "merge_values"]


@pytest.mark.parametrize(
    ("shape", "stages"),
    [((60, 256, 3), 6), ((60, 2560, 0), 5), ((60, 4096, 0), 4), ((60, 7168, 5), 3)],
    ids=str,
)
@pytest.mark.parametrize("rows", [1, 2])
def test_products_with_rings_of_every_length(
    shape: tuple[int, int, int], stages: int, rows: int, small_card: Any
) -> None:
    from host_runtime.ops.gpu.linear import linear

    matrix, meant = build(11, *shape)
    x = normal(13, rows, shape[1])
    cut = product._cut(small_card, *product._sizes(matrix), 1, 1, False)
    assert cut is not None
    assert cut.stages == stages
    assert relative_error(linear(x, matrix), x.double() @ meant.T) < TOLERANCE


@pytest.mark.parametrize(
    ("columns", "plain", "stages"), [(5120, 0, 2), (7168, 60, 2), (7168, 0, None)], ids=str
)
def test_two_rows_with_the_shortest_rings(
    columns: int, plain: int, stages: int | None, small_card: Any, launched: list[str]
) -> None:
    """The head of V3.2 (bf16, 7168 columns) is read once for both rows; what does not fit is read
    for each. A row's bits are the same."""
    from host_runtime.ops.gpu.linear import linear

    matrix, meant = build(11, 0 if plain else 60, columns, plain)
    cut = product._cut(small_card, *product._sizes(matrix), 2, 1, False)
    assert (cut.stages if cut else None) == stages
    x = normal(13, 2, columns)
    found = linear(x, matrix)
    assert launched == (["product_2_none"] if stages else ["product_1_none"] * 2)
    assert relative_error(found, x.double() @ meant.T) < TOLERANCE
    for row in range(2):
        assert torch.equal(linear(x[row : row + 1], matrix)[0], found[row])
