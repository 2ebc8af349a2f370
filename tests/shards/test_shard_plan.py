"""Plans cover every row exactly once, fit the ducks' memory, or are refused with what would do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shard_helpers import duck_specs

from duckctl.shards.architectures import ModelShape
from duckctl.shards.errors import PlanError
from duckctl.shards.layout import RegionLayout
from duckctl.shards.native import PackLibrary
from duckctl.shards.parse import parse_bytes
from duckctl.shards.plan import (
    GIB,
    RUNTIME_MARGIN_BYTES,
    DuckSpec,
    equal_plan,
    parse_weights,
    weighted_plan,
)

V32 = ModelShape("deepseek_v32", 7168, 2048, 256, tuple(range(3, 62)), (0, 1, 2), (61,))
QWEN3 = ModelShape("qwen3_moe", 2048, 768, 128, tuple(range(48)), (), ())


def test_v32_over_32_ducks_is_the_published_size() -> None:
    plan = equal_plan(V32, "fp9", duck_specs(32))
    assert {part.rows for part in plan.slices} == {64}
    sizes = {layout.region_bytes for layout in plan.layouts}
    assert len(sizes) == 1
    assert 23.3e9 < sizes.pop() < 23.6e9


@pytest.mark.parametrize(
    ("shape", "count", "valid"),
    [
        (V32, 31, "1, 2, 4, 8, 16, 32, 64"),
        (V32, 128, "1, 2, 4, 8, 16, 32, 64"),
        (QWEN3, 16, "1, 2, 3, 4, 6, 8, 12, 24"),
    ],
)
def test_a_duck_count_that_does_not_divide_is_refused_with_those_that_do(
    shape: ModelShape, count: int, valid: str
) -> None:
    with pytest.raises(PlanError) as caught:
        equal_plan(shape, "fp9", duck_specs(count))
    assert f"valid duck counts: {valid};" in caught.value.hint


def test_too_little_memory_is_refused_with_counts_that_fit() -> None:
    ducks = [DuckSpec(f"d{i:02d}", memory_gib=16) for i in range(32)]
    with pytest.raises(PlanError) as caught:
        equal_plan(V32, "fp9", ducks)
    assert "duck d00 has 16 GiB; its slice in fp9 needs 21.8 GiB" in caught.value.message
    assert caught.value.hint == (
        "what fits into 16 GiB per duck: fp8 on 64 ducks; fp9 on 64 ducks; "
        "fp7 on 64 ducks (rounded); q6 on 64 ducks (rounded); q4 on 32, 64 ducks (rounded)"
    )
    equal_plan(V32, "fp9", [DuckSpec(f"d{i}", memory_gib=32) for i in range(32)])


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(PlanError, match="format 'fp4' is unknown"):
        equal_plan(V32, "fp4", duck_specs(32))


@given(
    panels=st.integers(1, 64),
    weights=st.lists(st.floats(0.01, 100), min_size=1, max_size=64),
)
def test_weighted_slices_tile_the_rows(panels: int, weights: list[float]) -> None:
    shape = ModelShape("deepseek_v32", 256, 32 * panels, 4, (1, 2), (0,), (2,))
    ducks = [DuckSpec(f"d{i}", weight=weight) for i, weight in enumerate(weights)]
    if len(ducks) > panels:
        with pytest.raises(PlanError, match="cannot share"):
            weighted_plan(shape, "fp8", ducks)
        return
    plan = weighted_plan(shape, "fp8", ducks)
    row = 0
    for part in plan.slices:
        assert part.first_row == row
        assert part.rows >= 32 and part.rows % 32 == 0
        row += part.rows
    assert row == 32 * panels


def test_weighted_slices_follow_the_weights_and_the_memory() -> None:
    ducks = [DuckSpec("fast", weight=2.0), DuckSpec("a"), DuckSpec("b")]
    plan = weighted_plan(QWEN3, "fp9", ducks)
    assert [part.rows for part in plan.slices] == [384, 192, 192]

    even = [DuckSpec(f"d{i}") for i in range(31)]
    rows = [part.rows for part in weighted_plan(V32, "fp9", even).slices]
    assert sorted(set(rows)) == [64, 96]

    small = weighted_plan(V32, "fp9", [DuckSpec("small", 12, 4.0), *duck_specs(15)]).layouts[0]
    assert small.rows == 32
    assert small.region_bytes + RUNTIME_MARGIN_BYTES <= 12 * GIB


@pytest.mark.parametrize(
    ("ducks", "message"),
    [
        ([DuckSpec("a", weight=0.0), DuckSpec("b")], "the weight of duck a is 0.0"),
        ([DuckSpec("a", weight=float("nan")), DuckSpec("b")], "the weight of duck a is nan"),
        ([DuckSpec("a", memory_gib=8), DuckSpec("b", memory_gib=8)], "memory holds 0 of 64"),
    ],
)
def test_impossible_weights_are_refused(ducks: list[DuckSpec], message: str) -> None:
    with pytest.raises(PlanError) as caught:
        weighted_plan(V32, "fp9", ducks)
    assert message in caught.value.message


def test_formats_that_fit_are_named() -> None:
    """Smaller ones, not always the same."""
    small = [DuckSpec(f"d{number:02d}", memory_gib=17) for number in range(32)]
    with pytest.raises(PlanError) as caught:
        weighted_plan(V32, "fp9", small)
    assert caught.value.hint == "add ducks or memory, or try --format q6 or q4"
    tiny = [DuckSpec(f"d{number:02d}", memory_gib=8) for number in range(32)]
    with pytest.raises(PlanError) as caught:
        weighted_plan(V32, "q4", tiny)
    assert caught.value.hint == "add ducks or memory"


def test_weights_are_one_number_per_duck() -> None:
    unknown = [None, None, None]
    assert parse_weights("2, 1,1.5", unknown) == [2.0, 1.0, 1.5]
    assert parse_weights("memory", [32, 16, 8]) == [32, 16, 8]
    for text in ("2,1", "2,x,1", "", "memory"):
        with pytest.raises(PlanError):
            parse_weights(text, unknown)


def test_sizes_are_read_with_binary_units() -> None:
    texts = ("8G", "512M", "1.5GiB", "4096", "2 tb")
    assert [parse_bytes(text, "--x") for text in texts] == [
        8 << 30, 512 << 20, 3 << 29, 4096, 2 << 40,
    ]  # fmt: skip
    for text in ("", "G", "-1G", "1Q", "nan"):
        with pytest.raises(Exception, match="is not a size"):
            parse_bytes(text, "--x")


@given(
    fmt=st.sampled_from(["fp8", "fp9"]),
    hidden=st.integers(1, 64).map(lambda n: 128 * n),
    first_row=st.integers(0, 63).map(lambda n: 32 * n),
    rows=st.integers(1, 64).map(lambda n: 32 * n),
)
def test_record_sizes_are_those_of_the_library(
    fmt: str, hidden: int, first_row: int, rows: int
) -> None:
    layout = RegionLayout(fmt, hidden, 4096, 2, (0,), first_row, rows)
    assert PackLibrary().record_bytes(layout) == layout.record_bytes


def test_replicas_have_room_in_the_plan_file_and_do_not_change_the_bytes() -> None:
    from dataclasses import replace

    plan = equal_plan(QWEN3, "fp9", duck_specs(24))
    spare = replace(plan.slices[0], holders=("d00", "spare"))
    with_replica = replace(plan, slices=(spare, *plan.slices[1:]))
    assert with_replica.digest() == plan.digest()
    slices = with_replica.to_json()["slices"]
    assert isinstance(slices, list)
    assert slices[0]["holders"] == ["d00", "spare"]
