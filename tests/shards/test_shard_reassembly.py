"""The slices of any plan, unpacked and joined, are the source tensors bit for bit."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from packed_records import Record, RecordShape, e4m3_values, read_record
from shard_helpers import MakeCheckpoint, convert_plan, duck_specs
from synthetic_checkpoint import CheckpointSpec

from duckctl.shards.checkpoint import MatrixSource, open_checkpoint
from duckctl.shards.layout import BLOCK, DIRECTORY_BYTES
from duckctl.shards.native import PackLibrary
from duckctl.shards.plan import DuckSpec, ShardPlan, equal_plan, weighted_plan

Floats = npt.NDArray[np.float32]
# MoE sizes of DeepSeek-V3.2, Qwen3-30B-A3B, Qwen3.5-35B-A3B, ducklet; and one with a partial block.
CASES = [
    *((2048, count) for count in (1, 32)),
    *((768, count) for count in (1, 24)),
    *((512, count) for count in (1, 16)),
    *((256, count) for count in (2, 4, 8)),
    (224, 7),
]
SLOW_CASES = [
    *((2048, count) for count in (2, 4, 8, 16, 64)),
    *((768, count) for count in (2, 3, 4, 6, 8, 12)),
    *((512, count) for count in (2, 4, 8)),
    (256, 1),
]


def spec_of(moe: int) -> CheckpointSpec:
    return CheckpointSpec(hidden=256, moe=moe, experts=2, layers=2, dense=1, mtp=1)


def tensor_bytes(source: MatrixSource) -> npt.NDArray[np.uint8]:
    with source.path.open("rb") as file:
        file.seek(source.offset)
        return np.frombuffer(file.read(source.size_bytes), np.uint8)


def source_scale(source: MatrixSource) -> Floats:
    entry = source.scale
    assert entry is not None
    with entry.path.open("rb") as file:
        file.seek(entry.offset)
        return np.frombuffer(file.read(entry.size_bytes), np.float32).reshape(entry.shape)


def bits(values: Floats) -> npt.NDArray[np.uint32]:
    return np.ascontiguousarray(values).view(np.uint32)


def assert_same(found: Floats, expected: Floats) -> None:
    """Equal to the bit, so that -0.0 is not 0.0."""
    assert np.array_equal(bits(found), bits(expected))


def records_of(
    directory: Path, plan: ShardPlan, layer: int, expert: int
) -> list[npt.NDArray[np.uint8]]:
    found = []
    for part, layout in zip(plan.slices, plan.layouts, strict=True):
        path = directory / f"slice-{part.index:02d}" / f"layer-{layer:03d}.bin"
        data = np.fromfile(path, np.uint8)
        assert len(data) == layout.segment_bytes
        found.append(data[expert * layout.record_bytes : (expert + 1) * layout.record_bytes])
    return found


def check_scales(records: Sequence[Record], plan: ShardPlan, scales: Sequence[Floats]) -> None:
    gate, up, down = scales
    for part, record in zip(plan.slices, records, strict=True):
        panels = [(part.first_row + 32 * p) // BLOCK for p in range(part.rows // 32)]
        assert_same(record.gate_scale, gate[panels])
        assert_same(record.up_scale, up[panels])
        last = (part.first_row + part.rows - 1) // BLOCK
        assert_same(record.down_scale, down[:, part.first_row // BLOCK : last + 1])
        assert not record.padding.any()


def check_plan(model_dir: Path, plan: ShardPlan, cache_dir: Path) -> None:
    """Converts and joins every expert of every layer again."""
    result = convert_plan(model_dir, plan, cache_dir)
    checkpoint = open_checkpoint(model_dir)
    library = PackLibrary()
    for layer in checkpoint.shape.layers:
        for source in checkpoint.experts(layer):
            raw = records_of(result.cache_file.parent, plan, layer, source.expert)
            records = [
                read_record(
                    data, RecordShape(plan.fmt, plan.shape.hidden_size, part.first_row, part.rows)
                )
                for data, part in zip(raw, plan.slices, strict=True)
            ]
            values = [
                e4m3_values()[tensor_bytes(matrix)].reshape(matrix.rows, matrix.columns)
                for matrix in source.matrices
            ]
            assert_same(np.concatenate([record.gate for record in records]), values[0])
            assert_same(np.concatenate([record.up for record in records]), values[1])
            assert_same(np.concatenate([record.down for record in records], axis=1), values[2])
            scales = [source_scale(matrix) for matrix in source.matrices]
            check_scales(records, plan, scales)
            # The library's own unpacking sees code * scale in float32.
            weights = [
                value * scale.repeat(BLOCK, 0)[: len(value)].repeat(BLOCK, 1)[:, : value.shape[1]]
                for value, scale in zip(values, scales, strict=True)
            ]
            unpacked = [
                library.unpack_record(layout, data)
                for layout, data in zip(plan.layouts, raw, strict=True)
            ]
            assert_same(np.concatenate([part[0] for part in unpacked]), weights[0])
            assert_same(np.concatenate([part[1] for part in unpacked]), weights[1])
            assert_same(np.concatenate([part[2] for part in unpacked], axis=1), weights[2])
    assert json.loads(result.cache_file.read_text())["report"]["lossless"] is True


@pytest.mark.parametrize("fmt", ["fp8", "fp9"])
@pytest.mark.parametrize(
    ("moe", "count"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_CASES)],
)
def test_equal_slices_join_to_the_source(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, moe: int, count: int, fmt: str
) -> None:
    model_dir = make_checkpoint(spec_of(moe))
    plan = equal_plan(open_checkpoint(model_dir).shape, fmt, duck_specs(count))
    check_plan(model_dir, plan, tmp_path)


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12))]
)
def test_uneven_slices_join_to_the_source(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, seed: int
) -> None:
    random_source = random.Random(seed)  # the seed is in the test's name
    moe = random_source.choice((2048, 768, 512, 256, 224))
    count = random_source.randint(2, min(31, moe // 32))
    model_dir = make_checkpoint(spec_of(moe))
    ducks = [DuckSpec(f"d{i}", weight=random_source.uniform(1, 4)) for i in range(count)]
    fmt = random_source.choice(("fp8", "fp9"))
    plan = weighted_plan(open_checkpoint(model_dir).shape, fmt, ducks)
    check_plan(model_dir, plan, tmp_path)


@pytest.mark.parametrize("fmt", ["fp8", "fp9"])
def test_directory_describes_the_region(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, fmt: str
) -> None:
    model_dir = make_checkpoint(spec_of(768))
    plan = equal_plan(open_checkpoint(model_dir).shape, fmt, duck_specs(3))
    result = convert_plan(model_dir, plan, tmp_path)
    for part, layout in zip(plan.slices, plan.layouts, strict=True):
        directory = result.cache_file.parent / f"slice-{part.index:02d}" / "directory.bin"
        raw = np.fromfile(directory, np.uint8)
        assert len(raw) == DIRECTORY_BYTES
        PackLibrary().check_directory(raw, layout.region_bytes)
        words = raw[:32].view(np.uint32).tolist()
        code = {"fp8": 8, "fp9": 9}[fmt]
        assert words == [0x31445244, 1, code, 256, part.first_row, part.rows, 2, 2]
        assert raw[128:132].view(np.uint16).tolist() == [1, 2]
