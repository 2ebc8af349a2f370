"""Every tensor of a checkpoint finds its place, and each damage is told with tensor and file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_v32 import INDEX_FILE, TINY, TinyCheckpoint, save, write_tiny

from host_runtime.errors import WeightsError
from host_runtime.models import load_model
from host_runtime.weights import Checkpoint, WeightSource
from host_runtime.weights.source import dequantise

SEED = 5
KV_A = "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"
GATE_BIAS = "model.layers.3.mlp.gate.e_score_correction_bias"
EXPERT = "model.layers.2.mlp.experts.3.up_proj.weight"
EH_PROJ = "model.layers.4.eh_proj.weight"


@pytest.fixture(scope="module")
def tiny_files(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoint:
    torch.set_num_threads(1)
    return write_tiny(tmp_path_factory.mktemp("tiny"), SEED)


def _file_of(path: Path, tensor: str) -> str:
    return str(json.loads((path / INDEX_FILE).read_text())["weight_map"][tensor])


def test_all_values(tiny_files: TinyCheckpoint) -> None:
    source = WeightSource(Checkpoint(tiny_files.path), torch.device("cpu"), fp8=True)
    for name, expected in tiny_files.weights.items():
        if expected.dim() == 1:
            actual = source.vector(name, expected.shape[0])
        else:
            actual = source.matrix(name, *expected.shape)
        assert actual.dtype == torch.float32
        assert torch.equal(actual, expected), name
    source.finish()


@pytest.mark.parametrize(("rows", "columns"), [(576, 256), (64, 128), (129, 130), (1, 1), (128, 7)])
def test_partial_blocks(rows: int, columns: int) -> None:
    generator = torch.Generator().manual_seed(SEED)
    codes = torch.randn(rows, columns, generator=generator).to(torch.float8_e4m3fn)
    scale = torch.rand(-(-rows // 128), -(-columns // 128), generator=generator)
    actual = dequantise(codes, scale)
    for row in (0, rows // 2, rows - 1):
        for column in (0, columns // 2, columns - 1):
            expected = codes[row, column].float() * scale[row // 128, column // 128]
            assert actual[row, column] == expected


def test_remote_mode_leaves_exactly_the_routed_experts(tiny_files: TinyCheckpoint) -> None:
    loaded = load_model(tiny_files.path, routed_experts="remote")
    assert loaded.local_experts is None


def test_equal_copies_of_the_mtp_module_are_held_once(tiny_files: TinyCheckpoint) -> None:
    model = load_model(tiny_files.path, routed_experts="remote").model
    assert model.mtp is not None
    assert model.mtp.embedding is model.embedding
    assert model.mtp.head is model.head


def test_other_copies_of_the_mtp_module_are_used(
    tiny_files: TinyCheckpoint, tmp_path: Path
) -> None:
    name = "model.layers.4.shared_head.head.weight"
    save(tmp_path, TINY, tiny_files.stored | {name: -tiny_files.stored[name]})
    model = load_model(tmp_path, routed_experts="remote").model
    assert model.mtp is not None
    assert torch.equal(model.mtp.head, -model.head)


Tensors = dict[str, torch.Tensor]


def _without(*names: str) -> Callable[[Tensors], Tensors]:
    return lambda stored: {name: value for name, value in stored.items() if name not in names}


def _with(
    name: str, change: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[Tensors], Tensors]:
    return lambda stored: stored | {name: change(stored[name]).contiguous()}


def _nan_code(codes: torch.Tensor) -> torch.Tensor:
    raw = codes.view(torch.uint8).clone()
    raw[3, 4] = 0x7F
    return raw.view(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("change", "tensor", "message"),
    [
        (_without(KV_A), KV_A, "is missing (expected [192, 256])"),
        (_without(f"{KV_A}_scale_inv"), KV_A, f"has no {KV_A}_scale_inv"),
        (_without(GATE_BIAS), GATE_BIAS, "is missing (expected [16])"),
        (_without(EH_PROJ), EH_PROJ, "is missing"),
        (_without(EXPERT), EXPERT, "is missing"),
        (_without(f"{EXPERT}_scale_inv"), EXPERT, "has no"),
        (_with(KV_A, lambda w: w[:160]), KV_A, "has shape [160, 256], expected [192, 256]"),
        (_with(GATE_BIAS, lambda w: w.to(torch.float16)), GATE_BIAS, "has dtype F16, expected"),
        (_with(EH_PROJ, lambda w: w.to(torch.float64)), EH_PROJ, "has dtype F64, expected"),
        (
            _with(f"{KV_A}_scale_inv", lambda s: s[:1]),
            f"{KV_A}_scale_inv",
            "has shape [1, 2], expected [2, 2]",
        ),
        (
            _with(f"{KV_A}_scale_inv", lambda s: s * torch.inf),
            f"{KV_A}_scale_inv",
            "has NaN or infinite values",
        ),
        (_with(KV_A, _nan_code), KV_A, "has NaN or infinite values"),
        (_with("model.norm.weight", lambda w: w * torch.nan), "model.norm.weight", "NaN"),
        (
            lambda stored: stored | {"model.layers.9.eh_proj.weight": torch.ones(2)},
            "model.layers.9.eh_proj.weight",
            "the model does not use 1 tensor(s)",
        ),
        (
            _with(KV_A, lambda w: w.to(torch.bfloat16)),
            f"{KV_A}_scale_inv",
            "the model does not use 1 tensor(s)",
        ),
    ],
)
def test_wrong_tensors(
    tiny_files: TinyCheckpoint,
    tmp_path: Path,
    change: Callable[[Tensors], Tensors],
    tensor: str,
    message: str,
) -> None:
    save(tmp_path, TINY, change(tiny_files.stored))
    with pytest.raises(WeightsError) as error:
        load_model(tmp_path, routed_experts="local")
    assert tensor in error.value.message
    assert message in error.value.message
    assert str(tmp_path) in error.value.message


def test_mtp_tensors_that_the_configuration_does_not_announce(
    tiny_files: TinyCheckpoint, tmp_path: Path
) -> None:
    save(tmp_path, TINY | {"num_nextn_predict_layers": 0}, tiny_files.stored)
    with pytest.raises(WeightsError, match=r"does not use \d+ tensor.*model\.layers\.4\."):
        load_model(tmp_path, routed_experts="remote")


def test_fp8_tensors_without_quantization_config(
    tiny_files: TinyCheckpoint, tmp_path: Path
) -> None:
    save(tmp_path, TINY | {"quantization_config": None}, tiny_files.stored)
    with pytest.raises(WeightsError, match=r"is FP8, but config\.json has no quantization_config"):
        load_model(tmp_path, routed_experts="local")


def test_a_whole_bf16_checkpoint_in_one_file(tiny_files: TinyCheckpoint, tmp_path: Path) -> None:
    plain = {
        name: value if value.dtype == torch.float32 else value.to(torch.bfloat16)
        for name, value in tiny_files.stored.items()
        if not name.endswith("_scale_inv")
    }
    save(tmp_path, TINY | {"quantization_config": None}, plain)
    loaded = load_model(tmp_path, routed_experts="local")
    assert torch.equal(loaded.model.layers[0].attention.q_a, plain[_Q_A].float())


_Q_A = "model.layers.0.self_attn.q_a_proj.weight"


def test_missing_shard_file(tiny_files: TinyCheckpoint, tmp_path: Path) -> None:
    save(tmp_path, TINY, tiny_files.stored)
    lost = tmp_path / _file_of(tmp_path, KV_A)
    lost.unlink()
    with pytest.raises(WeightsError) as error:
        load_model(tmp_path, routed_experts="local")
    assert f"{lost}: missing shard file" in error.value.message


@pytest.mark.parametrize("kept_bytes", [0, 7, 100, -1, -4096])
def test_truncated_shard_file(tiny_files: TinyCheckpoint, tmp_path: Path, kept_bytes: int) -> None:
    save(tmp_path, TINY, tiny_files.stored)
    broken = tmp_path / "model-00002-of-00003.safetensors"
    content = broken.read_bytes()
    broken.write_bytes(content[:kept_bytes])
    with pytest.raises(WeightsError) as error:
        load_model(tmp_path, routed_experts="local")
    assert str(broken) in error.value.message
    assert "download" in error.value.hint


def test_header_and_index_disagree(tiny_files: TinyCheckpoint, tmp_path: Path) -> None:
    save(tmp_path, TINY, tiny_files.stored)
    index = json.loads((tmp_path / INDEX_FILE).read_text())
    place = index["weight_map"].pop(KV_A)
    (tmp_path / INDEX_FILE).write_text(json.dumps(index))
    with pytest.raises(WeightsError, match=rf"{place}: holds tensor {KV_A}, but .* does not list"):
        Checkpoint(tmp_path)
    index["weight_map"] |= {KV_A: place, "model.extra": place}
    (tmp_path / INDEX_FILE).write_text(json.dumps(index))
    with pytest.raises(WeightsError, match=rf"{place}: tensor model\.extra is missing"):
        Checkpoint(tmp_path)
    index["weight_map"]["model.extra"] = "../elsewhere.safetensors"
    (tmp_path / INDEX_FILE).write_text(json.dumps(index))
    with pytest.raises(WeightsError, match="not a plain file name"):
        Checkpoint(tmp_path)


def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"neither .* nor model\.safetensors"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}, "8 bytes do not hold F32 [3]"),
        ({"dtype": "F4", "shape": [2], "data_offsets": [0, 8]}, "unknown dtype F4"),
        ({"dtype": "F32", "shape": [2]}, "malformed header entry"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}, "starts at byte"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "its header describes"),
        ({"dtype": "F32", "shape": [-2, -1], "data_offsets": [0, 8]}, "do not hold"),
        ({"dtype": "F32", "shape": [math.inf], "data_offsets": [0, 8]}, "malformed header entry"),
    ],
)
def test_headers_that_do_not_add_up(tmp_path: Path, entry: dict[str, object], message: str) -> None:
    header = json.dumps({"a": entry}).encode()
    (tmp_path / "model.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + bytes(8)
    )
    with pytest.raises(WeightsError) as error:
        Checkpoint(tmp_path)
    assert message in error.value.message


def test_a_header_nested_too_deep(tmp_path: Path) -> None:
    """No reader goes that deep: the file is named."""
    header = b'{"a":' + b"[" * 100_000
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(WeightsError, match="header cannot be read"):
        Checkpoint(tmp_path)
