"""A model directory: config, index and files, checked as a whole before a byte is converted.

Nothing here reads tensor payloads except scales (small); ``ExpertSource`` says where each routed
expert's matrices lie, as byte ranges.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from duckctl.shards.architectures import (
    Architecture,
    ConfigReader,
    ModelShape,
    architecture_of,
    expected_host_tensors,
    expert_tensor,
    fused_tensor,
    ignore_reason,
    is_host_pattern,
    model_shape,
    text_config_of,
)
from duckctl.shards.errors import CheckpointError
from duckctl.shards.layout import BLOCK, ceil_div
from duckctl.shards.safetensors import (
    DOWNLOAD_AGAIN,
    FileHeader,
    TensorEntry,
    load_json_object,
    open_regular,
    read_header,
)

CONFIG_NAME = "config.json"
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
SCALE_SUFFIX = "_scale_inv"
JSON_BYTES_MAX = 256_000_000
FLOAT_DTYPES = ("BF16", "F16", "F32")
EXPERT_DTYPES = ("F8_E4M3", "BF16")
SCALE_DTYPES = ("F32", "BF16")
SUPPORTED_WEIGHTS = "supported: F8_E4M3 with 128x128 block scales, or BF16; use such a checkpoint"


@dataclass(frozen=True, slots=True)
class MatrixSource:
    """One expert matrix [rows, columns], row-major, as a byte range of a file."""

    name: str
    dtype: str  # F8_E4M3 with ``scale``, or BF16 without
    rows: int
    columns: int
    path: Path
    offset: int
    size_bytes: int
    scale: TensorEntry | None


@dataclass(frozen=True, slots=True)
class ExpertSource:
    """gate and up are [moe, hidden], down is [hidden, moe]."""

    layer: int
    expert: int
    gate: MatrixSource
    up: MatrixSource
    down: MatrixSource

    @property
    def matrices(self) -> tuple[MatrixSource, MatrixSource, MatrixSource]:
        return (self.gate, self.up, self.down)

    @property
    def size_bytes(self) -> int:
        return sum(
            matrix.size_bytes + (matrix.scale.size_bytes if matrix.scale else 0)
            for matrix in self.matrices
        )


@dataclass(frozen=True)
class Accounting:
    """Where every tensor of the checkpoint goes."""

    sharded: tuple[str, ...]
    host: tuple[str, ...]
    ignored: Mapping[str, str]  # name -> reason


@dataclass(frozen=True)
class Checkpoint:
    """A checked model directory."""

    model_dir: Path
    name: str
    revision: str | None
    config_sha256: str
    shape: ModelShape
    files: tuple[FileHeader, ...]
    tensors: Mapping[str, TensorEntry]
    accounting: Accounting
    _experts: Mapping[int, tuple[ExpertSource, ...]]

    def experts(self, layer: int) -> tuple[ExpertSource, ...]:
        return self._experts[layer]

    @property
    def expert_bytes(self) -> int:
        return sum(source.size_bytes for layer in self._experts.values() for source in layer)

    @property
    def payload_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.tensors.values())


def open_checkpoint(model_dir: Path) -> Checkpoint:
    """Reads config, index and all headers; raises CheckpointError at the first thing wrong."""
    if not model_dir.is_dir():
        raise CheckpointError(
            f"{model_dir} is not a directory",
            "give the directory that holds config.json and the .safetensors files",
        )
    raw_config = _read_small(model_dir / CONFIG_NAME)
    outer = ConfigReader(
        model_dir / CONFIG_NAME, load_json_object(model_dir / CONFIG_NAME, raw_config, "the text")
    )
    architecture = architecture_of(outer)
    config = text_config_of(outer, architecture)
    shape = model_shape(config, architecture)
    files = tuple(read_header(path) for path in _tensor_files(model_dir))
    tensors = _merge(model_dir, files)
    builder = _ExpertBuilder(architecture, shape, tensors, _fp8_blocks(outer))
    experts = {layer: builder.layer(layer) for layer in shape.layers}
    accounting = _account(architecture, config, shape, tensors, builder)
    return Checkpoint(
        model_dir,
        _model_name(model_dir),
        _revision(model_dir),
        hashlib.sha256(raw_config).hexdigest(),
        shape,
        files,
        tensors,
        accounting,
        experts,
    )


def _read_small(path: Path) -> bytes:
    descriptor = open_regular(path)
    with os.fdopen(descriptor, "rb") as file:
        raw = file.read(JSON_BYTES_MAX + 1)
    if not raw:
        raise CheckpointError(f"{path} is empty", DOWNLOAD_AGAIN)
    if len(raw) > JSON_BYTES_MAX:
        raise CheckpointError(f"{path} is larger than {JSON_BYTES_MAX} bytes", DOWNLOAD_AGAIN)
    return raw


def _model_name(model_dir: Path) -> str:
    """The directory's name; in a Hugging Face cache (models--org--name/snapshots/..) the name."""
    path = model_dir.resolve()
    if path.parent.name == "snapshots" and path.parent.parent.name.startswith("models--"):
        return path.parent.parent.name.split("--")[-1]
    return path.name


def _revision(model_dir: Path) -> str | None:
    """Commit of a Hugging Face snapshot directory, where the path tells it."""
    path = model_dir.resolve()
    if path.parent.name == "snapshots" and re.fullmatch(r"[0-9a-f]{40}", path.name):
        return path.name
    return None


def _tensor_files(model_dir: Path) -> list[Path]:
    """Files named by the index (or the single file); others in the directory are refused."""
    index_path = model_dir / INDEX_NAME
    present = {path.name for path in model_dir.glob("*.safetensors")}
    if not index_path.is_symlink() and not index_path.exists():
        if present == {SINGLE_NAME}:
            return [model_dir / SINGLE_NAME]
        raise CheckpointError(
            f"{index_path} is missing and there is no single {SINGLE_NAME}",
            "download the model again: the index names the weight files",
        )
    named = sorted(set(_weight_map(index_path).values()))
    for name in named:
        if "/" in name or "\\" in name or name in ("", ".", ".."):
            raise CheckpointError(
                f"{index_path} names the file '{name}'; a plain file name was expected",
                DOWNLOAD_AGAIN,
            )
    missing = [name for name in named if name not in present]
    if missing:
        raise CheckpointError(
            f"{index_path} names {len(missing)} of {len(named)} files that are not there: "
            f"{', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}",
            "finish the download of the model",
        )
    surplus = sorted(present - set(named))
    if surplus:
        raise CheckpointError(
            f"{model_dir / surplus[0]} is not named by {INDEX_NAME}",
            "remove the file, or download the matching index",
        )
    return [model_dir / name for name in named]


def _weight_map(index_path: Path) -> dict[str, str]:
    index = load_json_object(index_path, _read_small(index_path), "the text")
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index_path} has no 'weight_map'", DOWNLOAD_AGAIN)
    for name, file in weight_map.items():
        if not isinstance(file, str):
            raise CheckpointError(
                f"{index_path}: the file of '{name}' is {file!r}, expected a name", DOWNLOAD_AGAIN
            )
    return weight_map


def _merge(model_dir: Path, files: tuple[FileHeader, ...]) -> dict[str, TensorEntry]:
    """All tensors by name; index and headers must agree."""
    tensors: dict[str, TensorEntry] = {}
    for file in files:
        for entry in file.tensors:
            if entry.name in tensors:
                raise CheckpointError(
                    f"tensor '{entry.name}' is in {tensors[entry.name].path.name} and again in "
                    f"{entry.path.name}",
                    DOWNLOAD_AGAIN,
                )
            tensors[entry.name] = entry
    index_path = model_dir / INDEX_NAME
    if not index_path.exists():
        return tensors
    weight_map = _weight_map(index_path)
    for name, file_name in weight_map.items():
        found = tensors.get(name)
        if found is None or found.path.name != file_name:
            where = f"it is in {found.path.name}" if found else "no file has it"
            raise CheckpointError(
                f"{index_path} places tensor '{name}' in {file_name}, but {where}", DOWNLOAD_AGAIN
            )
    for name, entry in tensors.items():
        if name not in weight_map:
            raise CheckpointError(
                f"tensor '{name}' in {entry.path} is not in {INDEX_NAME}", DOWNLOAD_AGAIN
            )
    return tensors


def _fp8_blocks(config: ConfigReader) -> bool:
    """Whether config.json declares FP8 weights in 128x128 blocks; other schemes are refused."""
    scheme = config.values.get("quantization_config")
    if scheme is None:
        return False
    if not isinstance(scheme, dict):
        raise config.refuse("'quantization_config' is not an object")
    method, blocks = scheme.get("quant_method"), scheme.get("weight_block_size")
    if method != "fp8" or blocks != [BLOCK, BLOCK] or scheme.get("fmt", "e4m3") != "e4m3":
        raise config.refuse(
            f"quantization_config {method!r} {scheme.get('fmt', 'e4m3')!r} with blocks {blocks!r} "
            f"is not supported",
            "supported: quant_method 'fp8', fmt 'e4m3', weight_block_size [128, 128]; or bf16",
        )
    return True


class _ExpertBuilder:
    """Finds and checks the matrices of routed experts; remembers which tensors it used."""

    def __init__(
        self,
        architecture: Architecture,
        shape: ModelShape,
        tensors: Mapping[str, TensorEntry],
        fp8_declared: bool,
    ) -> None:
        self.architecture = architecture
        self.shape = shape
        self.tensors = tensors
        self.fp8_declared = fp8_declared
        self.used: set[str] = set()

    def layer(self, layer: int) -> tuple[ExpertSource, ...]:
        fused = fused_tensor(self.architecture, layer, "gate_up")
        if self.architecture.fused_experts and fused in self.tensors:
            return self._fused_layer(layer)
        return tuple(self._expert(layer, expert) for expert in range(self.shape.expert_count))

    def _expert(self, layer: int, expert: int) -> ExpertSource:
        hidden, moe = self.shape.hidden_size, self.shape.moe_intermediate_size
        sizes = {"gate": (moe, hidden), "up": (moe, hidden), "down": (hidden, moe)}
        matrices = {}
        for projection, (rows, columns) in sizes.items():
            name = expert_tensor(self.architecture, layer, expert, projection)
            entry = require(self.tensors, name)
            check_shape(entry, (rows, columns))
            scale = self.check_weight(entry, EXPERT_DTYPES)
            self.used.add(name)
            matrices[projection] = MatrixSource(
                name, entry.dtype, rows, columns, entry.path, entry.offset, entry.size_bytes, scale
            )
        source = ExpertSource(layer, expert, matrices["gate"], matrices["up"], matrices["down"])
        if len({matrix.dtype for matrix in source.matrices}) != 1:
            types = ", ".join(f"{matrix.name} {matrix.dtype}" for matrix in source.matrices)
            raise CheckpointError(f"one expert mixes data types: {types}", SUPPORTED_WEIGHTS)
        return source

    def _fused_layer(self, layer: int) -> tuple[ExpertSource, ...]:
        count = self.shape.expert_count
        hidden, moe = self.shape.hidden_size, self.shape.moe_intermediate_size
        both = require(self.tensors, fused_tensor(self.architecture, layer, "gate_up"))
        down = require(self.tensors, fused_tensor(self.architecture, layer, "down"))
        check_shape(both, (count, 2 * moe, hidden))
        check_shape(down, (count, hidden, moe))
        for entry in (both, down):
            if entry.dtype != "BF16":
                raise CheckpointError(
                    f"tensor '{entry.name}' in {entry.path} is {entry.dtype}; experts in one "
                    "tensor are supported as BF16 only",
                    SUPPORTED_WEIGHTS,
                )
            self.used.add(entry.name)
        size = 2 * moe * hidden
        result = []
        for expert in range(count):
            parts = [
                MatrixSource(
                    f"{entry.name}[{expert}]", "BF16", rows, columns, entry.path,
                    entry.offset + start, size, None,
                )
                for entry, rows, columns, start in (
                    (both, moe, hidden, 2 * expert * size),
                    (both, moe, hidden, 2 * expert * size + size),
                    (down, hidden, moe, expert * size),
                )
            ]  # fmt: skip
            result.append(ExpertSource(layer, expert, *parts))
        return tuple(result)

    def check_weight(self, entry: TensorEntry, allowed: tuple[str, ...]) -> TensorEntry | None:
        """Scale of an FP8 weight (shape and type checked), None for others."""
        if entry.dtype not in allowed:
            raise CheckpointError(
                f"tensor '{entry.name}' in {entry.path} is {entry.dtype}, "
                f"expected {' or '.join(allowed)}",
                SUPPORTED_WEIGHTS,
            )
        if entry.dtype != "F8_E4M3":
            return None
        if not self.fp8_declared:
            raise CheckpointError(
                f"tensor '{entry.name}' is FP8 but config.json has no 'quantization_config'",
                DOWNLOAD_AGAIN,
            )
        scale = self.tensors.get(entry.name + SCALE_SUFFIX)
        if scale is None:
            raise CheckpointError(
                f"FP8 tensor '{entry.name}' in {entry.path} has no '{entry.name + SCALE_SUFFIX}'",
                DOWNLOAD_AGAIN,
            )
        check_shape(scale, tuple(ceil_div(size, BLOCK) for size in entry.shape))
        if scale.dtype not in SCALE_DTYPES:
            raise CheckpointError(
                f"tensor '{scale.name}' in {scale.path} is {scale.dtype}, expected F32",
                SUPPORTED_WEIGHTS,
            )
        self.used.add(scale.name)
        return scale


def require(tensors: Mapping[str, TensorEntry], name: str) -> TensorEntry:
    entry = tensors.get(name)
    if entry is None:
        raise CheckpointError(f"tensor '{name}' is missing from the checkpoint", DOWNLOAD_AGAIN)
    return entry


def check_shape(entry: TensorEntry, expected: tuple[int, ...]) -> None:
    if entry.shape != expected:
        raise CheckpointError(
            f"tensor '{entry.name}' in {entry.path} has shape {list(entry.shape)}, "
            f"config.json needs {list(expected)}",
            DOWNLOAD_AGAIN,
        )


def _account(
    architecture: Architecture,
    config: ConfigReader,
    shape: ModelShape,
    tensors: Mapping[str, TensorEntry],
    builder: _ExpertBuilder,
) -> Accounting:
    """Every tensor is sharded, the host's, or ignored with a reason; a stranger is refused."""
    sharded = frozenset(builder.used)
    for name, size, quantised in expected_host_tensors(architecture, config, shape):
        entry = require(tensors, name)
        check_shape(entry, size)
        allowed = (*FLOAT_DTYPES, "F8_E4M3") if quantised else FLOAT_DTYPES
        builder.check_weight(entry, allowed)
        builder.used.add(name)
    host = builder.used - sharded
    ignored: dict[str, str] = {}
    for name in tensors:
        if name in builder.used:
            continue
        reason = ignore_reason(architecture, name)
        if reason is not None:
            ignored[name] = reason
        elif is_host_pattern(architecture, name):
            host.add(name)
        else:
            raise CheckpointError(
                f"tensor '{name}' in {tensors[name].path} is not part of a "
                f"{architecture.model_type} model of this config.json",
                "the checkpoint and config.json do not belong together, or a newer duckctl is "
                "needed for this model",
            )
    return Accounting(tuple(sorted(sharded)), tuple(sorted(host)), ignored)
