"""bf16 sources: nearest codes, whole-block scales, slicing without influence, error reported."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from damaged_model import Model
from packed_records import Floats, RecordShape, e4m3_values, read_record
from shard_helpers import MakeCheckpoint, convert_equal, equal_plan_of
from synthetic_checkpoint import CheckpointSpec, write_checkpoint

from duckctl.shards.checkpoint import MatrixSource, open_checkpoint
from duckctl.shards.errors import CheckpointError
from duckctl.shards.native import PackLibrary

QWEN3 = CheckpointSpec(model_type="qwen3_moe", dtype="BF16", dense=0, mtp=0, layers=2, moe=192)
QWEN3_5 = CheckpointSpec(
    model_type="qwen3_5_moe", dtype="BF16", dense=0, mtp=0, layers=2, moe=192, fused=True
)


def bf16_source(path: Path, offset: int, rows: int, columns: int) -> np.ndarray:
    with path.open("rb") as file:
        file.seek(offset)
        raw = np.frombuffer(file.read(2 * rows * columns), np.uint16)
    return (raw.astype(np.uint32) << 16).view(np.float32).reshape(rows, columns)


@pytest.mark.parametrize("spec", [QWEN3, QWEN3_5], ids=["per-expert", "fused"])
@pytest.mark.parametrize("fmt", ["fp8", "fp9"])
def test_weights_stay_near_their_source(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, spec: CheckpointSpec, fmt: str
) -> None:
    model = make_checkpoint(spec)
    result = convert_equal(model, fmt, 1, tmp_path)
    report = json.loads(result.cache_file.read_text())["report"]
    assert report["lossless"] is False
    plan = equal_plan_of(model, fmt, 1)
    shape = RecordShape(fmt, spec.hidden, 0, spec.moe)
    checkpoint = open_checkpoint(model)
    for layer in checkpoint.shape.layers:
        data = np.fromfile(result.cache_file.parent / f"slice-00/layer-{layer:03d}.bin", np.uint8)
        squared_error = squared_sum = 0.0
        for source in checkpoint.experts(layer):
            size = plan.layout(0).record_bytes
            record = read_record(data[source.expert * size : (source.expert + 1) * size], shape)
            up = source.up
            expected = bf16_source(up.path, up.offset, up.rows, up.columns).astype(np.float64)
            scale = record.up_scale.repeat(32, 0).repeat(128, 1)
            error = record.up.astype(np.float64) * scale - expected
            # Three mantissa bits: half a step is 1/16 of the value, or of the smallest normal.
            amax = np.abs(expected).max()
            assert (np.abs(error) <= np.abs(expected) / 16 + amax * 2.0**-9).all()
            squared_error += float((error**2).sum())
            squared_sum += float((expected**2).sum())
        relative = math.sqrt(squared_error / squared_sum)
        assert report["relative_error"][str(layer)]["up"] == pytest.approx(relative, rel=1e-4)
        assert relative < 0.04


@pytest.mark.parametrize("fmt", ["fp8", "fp9"])
def test_slicing_does_not_change_quantised_weights(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, fmt: str
) -> None:
    model = make_checkpoint(QWEN3)
    values = {}
    for count in (1, 6):
        result = convert_equal(model, fmt, count, tmp_path)
        parts = []
        for part, layout in enumerate(equal_plan_of(model, fmt, count).layouts):
            data = np.fromfile(
                result.cache_file.parent / f"slice-{part:02d}/layer-001.bin", np.uint8
            )
            shape = RecordShape(fmt, QWEN3.hidden, layout.first_row, layout.rows)
            record = read_record(data[: layout.record_bytes], shape)
            parts.append(record.gate * record.gate_scale.repeat(32, 0).repeat(128, 1))
        values[count] = np.concatenate(parts)
    assert np.array_equal(values[1].view(np.uint32), values[6].view(np.uint32))


@pytest.mark.parametrize("fmt", ["fp7", "q6", "q4"])
def test_formats_below_eight_bits_report_their_error_and_ignore_slicing(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, fmt: str
) -> None:
    """The reported error is that of the weights which the kernels see."""
    model = make_checkpoint(CheckpointSpec(layers=2, moe=192))
    source = {
        (layer, expert.expert): expert
        for layer in open_checkpoint(model).shape.layers
        for expert in open_checkpoint(model).experts(layer)
    }
    downs = {}
    for count in (1, 6):
        result = convert_equal(model, fmt, count, tmp_path)
        parts = []
        for part, layout in enumerate(equal_plan_of(model, fmt, count).layouts):
            path = result.cache_file.parent / f"slice-{part:02d}/layer-001.bin"
            records = np.fromfile(path, np.uint8).reshape(-1, layout.record_bytes)
            parts.append([PackLibrary().unpack_record(layout, record)[2] for record in records])
        downs[count] = [np.concatenate(columns, axis=1) for columns in zip(*parts, strict=True)]
        report = json.loads(result.cache_file.read_text())["report"]
        assert report["lossless"] is False
    squared_error = squared_sum = 0.0
    for expert, found in enumerate(downs[1]):
        assert np.array_equal(found.view(np.uint32), downs[6][expert].view(np.uint32))
        exact = fp8_weights(source[(1, expert)].down)
        squared_error += float(((found.astype(np.float64) - exact) ** 2).sum())
        squared_sum += float((exact.astype(np.float64) ** 2).sum())
    relative = math.sqrt(squared_error / squared_sum)
    assert report["relative_error"]["1"]["down"] == pytest.approx(relative, rel=1e-3)


@pytest.mark.parametrize("fmt", ["fp8", "fp9", "fp7", "q6", "q4"])
def test_a_block_of_zeros_may_have_the_scale_zero(
    make_checkpoint: MakeCheckpoint, tmp_path: Path, fmt: str
) -> None:
    """A pruned expert's: its weights are zeros, its error too, and the report is JSON."""
    model = Model(shutil.copytree(make_checkpoint(CheckpointSpec(layers=2)), tmp_path / "model"))
    tensor = "model.layers.1.mlp.experts.1.gate_proj.weight"
    model.poke(tensor + "_scale_inv", 0, bytes(4))
    result = convert_equal(model.path, fmt, 1, tmp_path / "cache")
    report = json.loads(result.cache_file.read_text(), parse_constant=pytest.fail)["report"]
    errors = (report.get("relative_error") or {}).get("1", {})
    lossless = fmt in ("fp8", "fp9")
    assert set(errors) == (set() if lossless else {"gate", "up", "down"})
    assert all(0 <= error < 0.2 for error in errors.values())
    (layout,) = equal_plan_of(model.path, fmt, 1).layouts
    records = np.fromfile(result.cache_file.parent / "slice-00/layer-001.bin", np.uint8)
    record = records.reshape(-1, layout.record_bytes)[1]
    gate = PackLibrary().unpack_record(layout, record)[0]
    assert not gate[:128, :128].any()
    assert gate[:, 128:].any()


def fp8_weights(source: MatrixSource) -> Floats:
    """Code * scale of an FP8 matrix."""
    assert source.scale is not None
    codes = np.fromfile(source.path, np.uint8, source.size_bytes, offset=source.offset)
    scale = np.fromfile(
        source.scale.path, np.float32, source.scale.size_bytes // 4, offset=source.scale.offset
    ).reshape(source.scale.shape)
    values = e4m3_values()[codes].reshape(source.rows, source.columns)
    wide = scale.repeat(128, 0)[: source.rows].repeat(128, 1)[:, : source.columns]
    weights: Floats = values * wide
    return weights


def test_a_nan_in_bf16_names_tensor_and_position(
    tmp_path: Path,
) -> None:
    model = write_checkpoint(tmp_path / "model", QWEN3_5)
    source = open_checkpoint(model).experts(1)[2].down
    with source.path.open("r+b") as file:
        file.seek(source.offset + 2 * (7 * source.columns + 9))
        file.write(b"\xc0\x7f")
    with pytest.raises(CheckpointError) as caught:
        convert_equal(model, "fp9", 2, tmp_path / "cache")
    name = "model.language_model.layers.1.mlp.experts.down_proj[2]"
    assert f"tensor '{name}' has the non-finite value 0x7FC0 at row 7, column 9" in str(
        caught.value
    )
