"""The exported host weights equal the checkpoint's, whole or not at all, and damage is named."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_v32 import write_tiny

from host_runtime.config import load_config
from host_runtime.cuda.host_file import (
    DATA_NAME,
    INDEX_NAME,
    LOCK_NAME,
    HostFileWeights,
    host_file_bytes,
    key_of,
    write_host_file,
)
from host_runtime.cuda.memory_plan import plan_memory
from host_runtime.cuda.parts import Fused, Table, ends, everything, mtp_parts
from host_runtime.cuda.weights import CheckpointWeights
from host_runtime.errors import WeightsError
from host_runtime.weights import Checkpoint

DUCKLET = Path(__file__).parents[2] / "duckctl" / "models" / "ducklet"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("host") / "weights"
    write_host_file(DUCKLET, folder)
    return folder


def copy_of(exported: Path, folder: Path) -> Path:
    for name in (INDEX_NAME, DATA_NAME):
        (folder / name).write_bytes((exported / name).read_bytes())
    return folder


def test_every_array_equals_the_checkpoints(exported: Path) -> None:
    """Each request gives the same bits, types and row starts from the file as from the model."""
    config = load_config(DUCKLET)
    file = HostFileWeights(exported, Checkpoint(DUCKLET), CPU)
    source = CheckpointWeights(Checkpoint(DUCKLET), CPU, fp8=config.fp8)
    seen = set()
    for request in everything(config):
        assert key_of(request) not in seen
        seen.add(key_of(request))
        if isinstance(request, Fused):
            found, starts = file.fused(request.parts, request.columns)
            expected, expected_starts = source.fused(request.parts, request.columns)
            assert starts == expected_starts
            pairs = [
                (found.codes, expected.codes),
                (found.scale, expected.scale),
                (found.plain, expected.plain),
            ]
        elif isinstance(request, Table):
            shape = (request.name, request.rows, request.columns)
            pairs = [(file.table(*shape), source.table(*shape))]
        else:
            size = (request.name, request.size)
            pairs = [(file.vector(*size), source.vector(*size))]
        for mine, theirs in pairs:
            assert mine.dtype == theirs.dtype
            assert torch.equal(mine, theirs)
    for layer in config.moe_layers:
        source.leave(f"model.layers.{layer}.mlp.experts.")
    source.finish()  # nothing of the host's part is left out


def test_the_mtp_modules_copies_are_in_the_file_once(exported: Path) -> None:
    """Embedding and head: the same memory, and no more bytes than the plan for the card counts."""
    config, file = load_config(DUCKLET), HostFileWeights(exported, Checkpoint(DUCKLET), CPU)
    (table, _, head), mtp = ends(config), mtp_parts(config)
    tables = [file.table(one.name, one.rows, one.columns) for one in (table, mtp.embedding)]
    heads = [file.fused(one.parts, one.columns)[0].plain for one in (head, mtp.head)]
    for first, second in (tables, heads):
        assert first.data_ptr() == second.data_ptr()
        assert torch.equal(first, second)
    size = host_file_bytes(exported)
    assert size == (exported / DATA_NAME).stat().st_size
    planned = plan_memory(config, 1, 2).weights_bytes
    assert 0 <= size - planned < table.rows * table.columns  # norms, gaps; not half a table


@pytest.mark.slow
def test_copies_that_differ_are_in_the_file_as_they_are(tmp_path: Path) -> None:
    """One number in the MTP module's head: that array is written, the embedding is not."""
    model = tmp_path / "model"
    model.mkdir()
    write_tiny(model, 1)
    config = load_config(model)
    (table, _, head), mtp = ends(config), mtp_parts(config)
    entry = Checkpoint(model).entries[mtp.head.parts[0].name]
    with entry.path.open("r+b") as file:
        file.seek(entry.offset + entry.size_bytes - 2)
        file.write(b"\x12\x34")
    write_host_file(model, tmp_path)
    exported = HostFileWeights(tmp_path, Checkpoint(model), CPU)
    source = CheckpointWeights(Checkpoint(model), CPU, fp8=True)
    own, _ = exported.fused(mtp.head.parts, mtp.head.columns)
    expected, _ = source.fused(mtp.head.parts, mtp.head.columns)
    assert torch.equal(own.plain, expected.plain)
    assert not torch.equal(own.plain, exported.fused(head.parts, head.columns)[0].plain)
    shape = (table.rows, table.columns)
    first, second = exported.table(table.name, *shape), exported.table(mtp.embedding.name, *shape)
    assert first.data_ptr() == second.data_ptr()


@pytest.mark.slow
def test_two_exports_are_equal_and_leave_nothing_behind(exported: Path, tmp_path: Path) -> None:
    """The command writes the same bytes; only the two files and the lock are in the folder."""
    command = [sys.executable, "-m", "host_runtime.cuda.export", str(DUCKLET), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == str(tmp_path / INDEX_NAME)
    assert sorted(path.name for path in tmp_path.iterdir()) == [LOCK_NAME, DATA_NAME, INDEX_NAME]
    assert (tmp_path / DATA_NAME).read_bytes() == (exported / DATA_NAME).read_bytes()
    assert (tmp_path / INDEX_NAME).read_bytes() == (exported / INDEX_NAME).read_bytes()


def test_an_export_that_was_cut_off_is_none(exported: Path, tmp_path: Path) -> None:
    """Data without an index, as a kill leaves it: not used, and mended by the next export."""
    (tmp_path / f".{DATA_NAME}.part").write_bytes(b"half")
    with pytest.raises(WeightsError, match=r"host\.json cannot be used"):
        HostFileWeights(tmp_path, Checkpoint(DUCKLET), CPU)
    write_host_file(DUCKLET, tmp_path)
    HostFileWeights(tmp_path, Checkpoint(DUCKLET), CPU)


def change(index: dict[str, Any], key: str, **fields: Any) -> None:
    next(iter(index["arrays"][key].values())).update(fields)


NORM = "model.norm.weight"
DAMAGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "version": (lambda index: index.update(schema_version=2), "schema_version 2"),
    "another model": (lambda index: index.update(model_sha256="0" * 64), "another model"),
    "missing": (lambda index: index["arrays"].pop(NORM), f"'{NORM}' is missing"),
    "beyond the end": (lambda index: change(index, NORM, offset=1 << 40), "an array lies at"),
    "not aligned": (lambda index: change(index, NORM, offset=1), "an array lies at 1"),
    "negative": (lambda index: change(index, NORM, shape=[-4]), "an array lies at"),
    "type": (lambda index: change(index, NORM, dtype="int4"), "no place"),
    "shape": (lambda index: change(index, NORM, shape=[1]), "has shape"),
    "size": (lambda index: index.update(bytes=5), "expected 5"),
    "digest": (lambda index: index.update(sha256="0" * 64), "digest"),
    "no numbers": (lambda index: index.update(bytes="many"), "cannot be used"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_index_is_named(exported: Path, tmp_path: Path, damage: str) -> None:
    """Each kind with its own words, and never an array of wrong bytes."""
    folder = copy_of(exported, tmp_path)
    index = json.loads((folder / INDEX_NAME).read_text())
    alter, words = DAMAGES[damage]
    alter(index)
    index["arrays_sha256"] = arrays_digest(index["arrays"])
    (folder / INDEX_NAME).write_text(json.dumps(index))
    with pytest.raises(WeightsError, match=words) as caught:
        HostFileWeights(folder, Checkpoint(DUCKLET), CPU).vector(
            NORM, load_config(DUCKLET).hidden_size
        )
    assert "export it again: duckctl shard-weights" in caught.value.hint


def arrays_digest(arrays: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(arrays, sort_keys=True).encode()).hexdigest()


def test_an_array_that_is_said_to_lie_elsewhere_is_refused(exported: Path, tmp_path: Path) -> None:
    """Another vector of the same size, aligned: nothing but the digest can tell."""
    folder = copy_of(exported, tmp_path)
    index = json.loads((folder / INDEX_NAME).read_text())
    other = index["arrays"]["model.layers.0.input_layernorm.weight"]["vector"]["offset"]
    change(index, NORM, offset=other)
    (folder / INDEX_NAME).write_text(json.dumps(index))
    with pytest.raises(WeightsError, match="arrays do not have their digest"):
        HostFileWeights(folder, Checkpoint(DUCKLET), CPU)


def test_the_weights_of_another_revision_are_refused(tmp_path: Path) -> None:
    """Its config is the same: only the weights tell."""
    models = [tmp_path / "first", tmp_path / "second"]
    for seed, model in enumerate(models):
        model.mkdir()
        write_tiny(model, seed)
    configs = [(model / "config.json").read_bytes() for model in models]
    assert configs[0] == configs[1]
    write_host_file(models[0], tmp_path / "host")
    HostFileWeights(tmp_path / "host", Checkpoint(models[0]), CPU)
    with pytest.raises(WeightsError, match="another model or revision"):
        HostFileWeights(tmp_path / "host", Checkpoint(models[1]), CPU)


def test_one_export_at_a_time_and_none_leaves_half_a_file(tmp_path: Path) -> None:
    class Stopped(BaseException):
        pass

    def stop(done: int, in_all: int) -> None:
        if done < in_all // 2:
            return
        with pytest.raises(WeightsError, match="another export writes to"):
            write_host_file(DUCKLET, tmp_path)
        raise Stopped

    with pytest.raises(Stopped):
        write_host_file(DUCKLET, tmp_path, stop)
    assert [path.name for path in tmp_path.iterdir()] == [LOCK_NAME]
    write_host_file(DUCKLET, tmp_path)
    HostFileWeights(tmp_path, Checkpoint(DUCKLET), CPU)


@pytest.mark.slow
def test_an_export_that_is_told_to_end_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "host_runtime.cuda.export", str(DUCKLET), str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("host weights: ")
        process.terminate()
    left = {path.name for path in tmp_path.iterdir()}
    assert left in ({LOCK_NAME}, {LOCK_NAME, DATA_NAME, INDEX_NAME})  # it may have been at its end


def test_a_flipped_bit_and_a_short_file_are_named(exported: Path, tmp_path: Path) -> None:
    """The digest covers every byte."""
    folder = copy_of(exported, tmp_path)
    data = bytearray((folder / DATA_NAME).read_bytes())
    data[len(data) // 3] ^= 4
    (folder / DATA_NAME).write_bytes(data)
    with pytest.raises(WeightsError, match="digest of its index"):
        HostFileWeights(folder, Checkpoint(DUCKLET), CPU)
    (folder / DATA_NAME).write_bytes(data[:-1])
    with pytest.raises(WeightsError, match=f"has {len(data) - 1} bytes, expected {len(data)}"):
        HostFileWeights(folder, Checkpoint(DUCKLET), CPU)
