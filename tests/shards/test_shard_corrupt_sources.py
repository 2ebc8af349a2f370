"""Every kind of damaged checkpoint is refused before a piece is finished, naming what is wrong."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damaged_model import INDEX, Model
from shard_helpers import MakeCheckpoint, convert_equal
from synthetic_checkpoint import CheckpointSpec

from duckctl.errors import DuckError
from duckctl.shards.checkpoint import open_checkpoint
from duckctl.shards.errors import CheckpointError

SPEC = CheckpointSpec(hidden=128, moe=96, experts=2, layers=2, dense=1, mtp=1, file_bytes_max=99999)
EXPERT = "model.layers.1.mlp.experts.1.up_proj.weight"
NORM = "model.layers.0.input_layernorm.weight"


@pytest.fixture
def model(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> Model:
    return Model(Path(shutil.copytree(make_checkpoint(SPEC), tmp_path / "model")))


def truncated_file(model: Model) -> str:
    file = model.file_of(EXPERT)
    os.truncate(file, file.stat().st_size - 1)
    return "is truncated"


def surplus_bytes(model: Model) -> str:
    with model.file_of(EXPERT).open("ab") as file:
        file.write(b"\0")
    return "surplus bytes"


def zero_byte_file(model: Model) -> str:
    os.truncate(model.file_of(EXPERT), 0)
    return "has 0 bytes"


def header_length_bomb(model: Model) -> str:
    file = model.file_of(EXPERT)
    file.write_bytes(struct.pack("<Q", 1 << 60) + file.read_bytes()[8:])
    return "claims a header of 1152921504606846976 bytes"


def header_longer_than_file(model: Model) -> str:
    file = model.file_of(EXPERT)
    file.write_bytes(struct.pack("<Q", 50_000_000) + file.read_bytes()[8:])
    return "claims a header of 50000000 bytes"


def header_not_json(model: Model) -> str:
    model.file_of(EXPERT).write_bytes(struct.pack("<Q", 4) + b"{{{{")
    return "the header of"


def header_deeply_nested(model: Model) -> str:
    raw = b'{"a":' * 100_000
    model.file_of(EXPERT).write_bytes(struct.pack("<Q", len(raw)) + raw)
    return "is not valid"


def header_names_tensor_twice(model: Model) -> str:
    file = model.file_of(EXPERT)
    raw = file.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    text = raw[8 : 8 + length].rstrip()[:-1] + b', "twice": 1, "twice": 2}'
    file.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])
    return "'twice' appears twice"


def swapped_offsets(model: Model) -> str:
    def edit(entries: dict[str, Any], _: bytearray) -> None:
        entries[EXPERT]["data_offsets"].reverse()

    model.rewrite(model.file_of(EXPERT), edit)
    return "are not [begin, end]"


def offsets_do_not_match_shape(model: Model) -> str:
    model.edit_entry(EXPERT, shape=[96, 127])
    return "needs 12192 bytes, data_offsets give 12288"


def overlapping_tensors(model: Model) -> str:
    def edit(entries: dict[str, Any], _: bytearray) -> None:
        begin, end = entries[EXPERT]["data_offsets"]
        entries[EXPERT]["data_offsets"] = [begin - 4, end - 4]

    model.rewrite(model.file_of(EXPERT), edit)
    return "overlaps"


def hole_between_tensors(model: Model) -> str:
    def edit(entries: dict[str, Any], payload: bytearray) -> None:
        first = min(entry["data_offsets"][0] for entry in entries.values())
        assert first == 0
        payload[0:0] = bytes(16)
        for entry in entries.values():
            entry["data_offsets"] = [at + 16 for at in entry["data_offsets"]]

    model.rewrite(model.file_of(EXPERT), edit)
    return "leaves a hole"


def negative_shape(model: Model) -> str:
    model.edit_entry(EXPERT, shape=[-96, -128])
    return "is not a list of sizes"


def fractional_offset(model: Model) -> str:
    def edit(entries: dict[str, Any], _: bytearray) -> None:
        entries[EXPERT]["data_offsets"][0] += 0.5

    model.rewrite(model.file_of(EXPERT), edit)
    return "are not [begin, end]"


def unknown_dtype(model: Model) -> str:
    model.edit_entry(EXPERT, dtype="F6_E3M2")
    return "data type 'F6_E3M2' is not supported"


def wrong_dtype_of_expert(model: Model) -> str:
    model.edit_entry(EXPERT, dtype="F8_E5M2")
    return f"'{EXPERT}' in {model.file_of(EXPERT)} is F8_E5M2, expected F8_E4M3 or BF16"


def wrong_dtype_of_scale(model: Model) -> str:
    model.edit_entry(EXPERT + "_scale_inv", dtype="I32")
    return "is I32, expected F32"


def missing_scale(model: Model) -> str:
    model.drop(EXPERT + "_scale_inv")
    return f"FP8 tensor '{EXPERT}'"


def missing_host_scale(model: Model) -> str:
    model.drop("model.layers.0.self_attn.o_proj.weight_scale_inv")
    return "has no 'model.layers.0.self_attn.o_proj.weight_scale_inv'"


def scale_of_wrong_shape(model: Model) -> str:
    name = "model.layers.0.self_attn.kv_a_proj_with_mqa.weight_scale_inv"
    model.edit_entry(name, shape=[1, 2])
    return f"'{name}' in {model.file_of(name)} has shape [1, 2], config.json needs [2, 1]"


def scale_without_weight(model: Model) -> str:
    file = model.file_of(NORM)
    name = NORM + "_scale_inv"
    model.append(file, name, "F32", [1, 1], 4)
    model.add_to_index(name, file.name)
    return f"tensor '{name}' in {file} is not part of a deepseek_v32 model"


def missing_expert(model: Model) -> str:
    model.drop(EXPERT)
    return f"tensor '{EXPERT}' is missing"


def missing_layer(model: Model) -> str:
    model.edit_config(num_hidden_layers=3)
    return "tensor 'model.layers.3.mlp.experts.0.gate_proj.weight' is missing"


def missing_mtp_tensor(model: Model) -> str:
    model.drop("model.layers.2.eh_proj.weight")
    return "tensor 'model.layers.2.eh_proj.weight' is missing"


def missing_host_tensor(model: Model) -> str:
    model.drop(NORM)
    return f"tensor '{NORM}' is missing"


def extra_tensor(model: Model) -> str:
    file = model.file_of(EXPERT)
    model.append(file, "model.layers.1.surprise", "F32", [1], 4)
    model.add_to_index("model.layers.1.surprise", file.name)
    return "tensor 'model.layers.1.surprise'"


def extra_expert(model: Model) -> str:
    model.edit_config(n_routed_experts=1)
    return "has shape [2, 128], config.json needs [1, 128]"


def tensor_not_in_index(model: Model) -> str:
    model.append(model.file_of(EXPERT), "lonely", "F32", [1], 4)
    return "tensor 'lonely'"


def duplicate_tensor(model: Model) -> str:
    other = model.file_of(NORM)
    assert other != model.file_of(EXPERT)
    model.append(other, EXPERT, "F8_E4M3", [96, 128], 96 * 128)
    return f"tensor '{EXPERT}' is in"


def index_names_missing_file(model: Model) -> str:
    model.file_of(EXPERT).unlink()
    return "files that are not there"


def index_names_wrong_file(model: Model) -> str:
    model.add_to_index(EXPERT, model.file_of(NORM).name)
    return f"places tensor '{EXPERT}'"


def index_names_missing_tensor(model: Model) -> str:
    model.add_to_index("ghost", model.file_of(NORM).name)
    return "places tensor 'ghost'"


def index_leaves_the_directory(model: Model) -> str:
    model.add_to_index(EXPERT, "../escape.safetensors")
    return "a plain file name was expected"


def index_without_weight_map(model: Model) -> str:
    model.write_json(INDEX, {"metadata": {}})
    return "has no 'weight_map'"


def index_missing(model: Model) -> str:
    (model.path / INDEX).unlink()
    return f"{INDEX} is missing"


def index_empty(model: Model) -> str:
    os.truncate(model.path / INDEX, 0)
    return f"{INDEX} is empty"


def file_without_index_entry(model: Model) -> str:
    shutil.copy(model.file_of(EXPERT), model.path / "stray.safetensors")
    return "is not named by"


def symlink_loop(model: Model) -> str:
    file = model.file_of(EXPERT)
    file.unlink()
    file.symlink_to(file.name)
    return "leads back to itself"


def dangling_symlink(model: Model) -> str:
    file = model.file_of(EXPERT)
    file.unlink()
    file.symlink_to("gone.safetensors")
    return "whose target is gone"


def folder_instead_of_file(model: Model) -> str:
    file = model.file_of(EXPERT)
    file.unlink()
    file.mkdir()
    return "is a folder"


def pipe_instead_of_file(model: Model) -> str:
    file = model.file_of(EXPERT)
    file.unlink()
    os.mkfifo(file)
    return "not a regular file"


def config_missing(model: Model) -> str:
    (model.path / "config.json").unlink()
    return "config.json is missing"


def unknown_model_type(model: Model) -> str:
    model.edit_config(model_type="gpt2")
    return "model_type 'gpt2' is not supported"


def config_without_size(model: Model) -> str:
    model.edit_config(moe_intermediate_size=None)
    return "'moe_intermediate_size' is None"


def config_with_absurd_size(model: Model) -> str:
    model.edit_config(num_hidden_layers=10**12)
    return "'num_hidden_layers' is 1000000000000"


def config_of_other_activation(model: Model) -> str:
    model.edit_config(hidden_act="gelu")
    return "'hidden_act' is 'gelu'"


def config_of_other_block_size(model: Model) -> str:
    quantization = model.json("config.json")["quantization_config"]
    model.edit_config(quantization_config=quantization | {"weight_block_size": [64, 64]})
    return "blocks [64, 64] is not supported"


def fp8_not_declared(model: Model) -> str:
    model.edit_config(quantization_config=None)
    return "is FP8 but config.json has no 'quantization_config'"


def hidden_size_not_in_blocks(model: Model) -> str:
    model.edit_config(hidden_size=100)
    return "'hidden_size' 100 is not a multiple of 128"


def moe_size_not_in_panels(model: Model) -> str:
    model.edit_config(moe_intermediate_size=100)
    return "'moe_intermediate_size' 100 is not a multiple of 32"


BEFORE_READING = [
    truncated_file, surplus_bytes, zero_byte_file, header_length_bomb, header_longer_than_file,
    header_not_json, header_deeply_nested, header_names_tensor_twice, swapped_offsets,
    offsets_do_not_match_shape, overlapping_tensors, hole_between_tensors, negative_shape,
    fractional_offset, unknown_dtype, wrong_dtype_of_expert, wrong_dtype_of_scale, missing_scale,
    missing_host_scale, scale_of_wrong_shape, scale_without_weight, missing_expert, missing_layer,
    missing_mtp_tensor, missing_host_tensor, extra_tensor, extra_expert, tensor_not_in_index,
    duplicate_tensor, index_names_missing_file, index_names_wrong_file, index_names_missing_tensor,
    index_leaves_the_directory, index_without_weight_map, index_missing, index_empty,
    file_without_index_entry, symlink_loop, dangling_symlink, folder_instead_of_file,
    pipe_instead_of_file, config_missing, unknown_model_type, config_without_size,
    config_with_absurd_size, config_of_other_activation, config_of_other_block_size,
    fp8_not_declared, hidden_size_not_in_blocks, moe_size_not_in_panels,
]  # fmt: skip


@pytest.mark.parametrize("damage", BEFORE_READING, ids=lambda damage: damage.__name__)
def test_damage_is_found_before_anything_is_converted(
    model: Model, damage: Callable[[Model], str]
) -> None:
    open_checkpoint(model.path)
    expected = damage(model)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(model.path)
    assert expected in caught.value.message
    assert caught.value.hint


def nan_code(model: Model) -> str:
    model.poke(EXPERT, 5 * 128 + 7, b"\xff")
    return f"tensor '{EXPERT}' has the non-finite value 0xFF at row 5, column 7"


def nan_code_in_down(model: Model) -> str:
    name = EXPERT.replace("up_proj", "down_proj")
    model.poke(name, 100 * 96 + 95, b"\x7f")
    return f"tensor '{name}' has the non-finite value 0x7F at row 100, column 95"


def nan_scale(model: Model) -> str:
    model.poke(EXPERT + "_scale_inv", 0, struct.pack("<f", float("nan")))
    return f"the scale of tensor '{EXPERT}' is nan in block row 0, block column 0"


def infinite_scale(model: Model) -> str:
    model.poke(EXPERT + "_scale_inv", 0, struct.pack("<f", float("inf")))
    return f"the scale of tensor '{EXPERT}' is inf"


def negative_scale(model: Model) -> str:
    model.poke(EXPERT + "_scale_inv", 0, struct.pack("<f", -1.0))
    return f"the scale of tensor '{EXPERT}' is -1.0"


@pytest.mark.parametrize(
    "damage",
    [nan_code, nan_code_in_down, nan_scale, infinite_scale, negative_scale],
    ids=lambda damage: damage.__name__,
)
def test_bad_values_name_tensor_and_position(
    model: Model, tmp_path: Path, damage: Callable[[Model], str]
) -> None:
    expected = damage(model)
    with pytest.raises(DuckError) as caught:
        convert_equal(model.path, "fp9", 3, tmp_path / "cache")
    assert expected in caught.value.message
    # Layer 1 is damaged: nothing of it may look finished.
    assert not list((tmp_path / "cache").rglob("cache.json"))
    assert not list((tmp_path / "cache").rglob("layer-001.bin*"))


def test_weights_too_large_to_measure_are_named(model: Model, tmp_path: Path) -> None:
    """A good scale, and squares of the weights that float32 cannot hold."""
    model.poke(EXPERT + "_scale_inv", 0, struct.pack("<f", 2.0**60))
    with pytest.raises(CheckpointError) as caught:
        convert_equal(model.path, "fp7", 3, tmp_path / "cache")
    assert f"tensor '{EXPERT}' has weights above 1e18" in caught.value.message
    assert "download it again" in caught.value.hint
    assert not list((tmp_path / "cache").rglob("layer-001.bin*"))


def test_a_file_that_shrinks_while_it_is_read_is_named(model: Model, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(model.path)
    source = checkpoint.experts(1)[1].up
    os.truncate(source.path, source.offset + 10)
    from duckctl.shards.reader import FileTable, digest_expert

    with (
        FileTable([file.path for file in checkpoint.files]) as files,
        pytest.raises(CheckpointError) as caught,
    ):
        digest_expert(files, checkpoint.experts(1)[1])
    assert f"{source.path} ends at byte {source.offset + 10}" in caught.value.message


def test_an_unreadable_file_is_named(model: Model) -> None:
    """Root reads everything, so the check runs in a child without privileges."""
    file = model.file_of(EXPERT)
    file.chmod(0)
    for folder in (model.path, *model.path.parents):
        if folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o055)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            open_checkpoint(model.path)
        except CheckpointError as error:
            status = 0 if f"{file} cannot be read: Permission denied" in error.message else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
