"""A Hugging Face checkpoint directory: the safetensors files and what lies where in them.

All headers are read and compared with the index and with the file sizes before any tensor is, so
that a truncated download or a missing shard is told in the first second, by name.

File layout (safetensors): u64 header size (little-endian), JSON header, tensor bytes.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from host_runtime.errors import WeightsError

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
HEADER_BYTES_MAX = 100 * 1024 * 1024  # the limit of the reference implementation
_DOWNLOAD_HINT = "download the file again and compare its size with the source"

DTYPES: dict[str, torch.dtype] = {
    "F8_E4M3": torch.float8_e4m3fn,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
}
_ITEM_BYTES = {
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "BOOL": 1, "BF16": 2, "F16": 2,
    "I16": 2, "U16": 2, "F32": 4, "I32": 4, "U32": 4, "F64": 8, "I64": 8, "U64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies: `dtype` as safetensors names it, `offset` from the file's start."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


class Checkpoint:
    """Entries of all tensors of a directory; `read` brings one of them into memory."""

    def __init__(self, model_dir: Path) -> None:
        self.model_dir = model_dir
        self.entries: dict[str, TensorEntry] = {}
        index = _read_index(model_dir)
        for file_name in sorted(set(index.values())) if index else [SINGLE_FILE]:
            self._add_file(model_dir / file_name, index)
        for name, file_name in index.items():
            if name not in self.entries:
                raise WeightsError(
                    f"{model_dir / file_name}: tensor {name} is missing, but {INDEX_FILE} lists it",
                    _DOWNLOAD_HINT,
                )

    def _add_file(self, path: Path, index: dict[str, str]) -> None:
        for entry in _read_header(path):
            if index and index.get(entry.name) != path.name:
                listed = index.get(entry.name)
                place = f"lists it in {listed}" if listed else "does not list it"
                raise WeightsError(f"{path}: holds tensor {entry.name}, but {INDEX_FILE} {place}")
            self.entries[entry.name] = entry

    def read(self, name: str) -> torch.Tensor:
        """The tensor as stored, on the CPU. WeightsError: unsupported dtype, short read."""
        entry = self.entries[name]
        if entry.dtype not in DTYPES:
            raise WeightsError(
                f"{entry.path}: tensor {name} has dtype {entry.dtype}, "
                f"expected one of {', '.join(DTYPES)}"
            )
        buffer = self._bytes(entry, entry.size_bytes)
        return torch.frombuffer(buffer, dtype=DTYPES[entry.dtype]).view(entry.shape)

    def sample(self, name: str, bytes_max: int) -> bytearray:
        """The tensor's first bytes, as stored. WeightsError: short read."""
        entry = self.entries[name]
        return self._bytes(entry, min(bytes_max, entry.size_bytes))

    def _bytes(self, entry: TensorEntry, size: int) -> bytearray:
        buffer = bytearray(size)
        with entry.path.open("rb") as file:
            file.seek(entry.offset)
            count = file.readinto(buffer)
        if count != size:
            raise WeightsError(
                f"{entry.path}: tensor {entry.name}: read {count} of {size} bytes", _DOWNLOAD_HINT
            )
        return buffer


def _read_index(model_dir: Path) -> dict[str, str]:
    """weight_map of the index, {} when the checkpoint is one file without an index."""
    path = model_dir / INDEX_FILE
    if not path.exists():
        if (model_dir / SINGLE_FILE).exists():
            return {}
        raise WeightsError(
            f"{model_dir}: neither {INDEX_FILE} nor {SINGLE_FILE} is there",
            "give the directory of a Hugging Face safetensors checkpoint",
        )
    try:
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise WeightsError(f"{path}: not a safetensors index: {error!r}") from error
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{path}: weight_map is not an object with entries")
    for name, file_name in weight_map.items():
        if not isinstance(file_name, str) or Path(file_name).name != file_name:
            raise WeightsError(
                f"{path}: {name} is in {file_name!r}, which is not a plain file name"
            )
    return weight_map


def _read_header(path: Path) -> list[TensorEntry]:
    try:
        with path.open("rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            header_bytes = int.from_bytes(file.read(8), "little")
            if file_bytes < 8 or not 2 <= header_bytes <= min(HEADER_BYTES_MAX, file_bytes - 8):
                raise WeightsError(
                    f"{path}: {file_bytes} bytes, not a whole safetensors file", _DOWNLOAD_HINT
                )
            header = json.loads(file.read(header_bytes))
    except FileNotFoundError:
        raise WeightsError(f"{path}: missing shard file", _DOWNLOAD_HINT) from None
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: header cannot be read: {error}", _DOWNLOAD_HINT) from error
    if not isinstance(header, dict):
        raise WeightsError(f"{path}: header is not a JSON object", _DOWNLOAD_HINT)
    header.pop("__metadata__", None)
    data_offset = 8 + header_bytes
    entries = [_entry(path, name, value, data_offset) for name, value in header.items()]
    _check_extents(path, entries, data_offset, file_bytes)
    return entries


def _entry(path: Path, name: str, value: Any, data_offset: int) -> TensorEntry:
    try:
        dtype, shape = str(value["dtype"]), tuple(int(size) for size in value["shape"])
        begin, end = (int(offset) for offset in value["data_offsets"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise WeightsError(f"{path}: tensor {name}: malformed header entry {value!r}") from error
    if dtype not in _ITEM_BYTES:
        raise WeightsError(f"{path}: tensor {name}: unknown dtype {dtype}")
    if min(shape, default=1) < 0 or end - begin != math.prod(shape) * _ITEM_BYTES[dtype]:
        raise WeightsError(
            f"{path}: tensor {name}: {end - begin} bytes do not hold {dtype} {list(shape)}"
        )
    return TensorEntry(name, path, dtype, shape, data_offset + begin, end - begin)


def _check_extents(path: Path, entries: list[TensorEntry], begin: int, file_bytes: int) -> None:
    """The tensors must cover the file without holes, overlaps or a missing end."""
    for entry in sorted(entries, key=lambda entry: (entry.offset, entry.size_bytes)):
        if entry.offset != begin:
            raise WeightsError(
                f"{path}: tensor {entry.name} starts at byte {entry.offset}, expected {begin}"
            )
        begin += entry.size_bytes
    if begin != file_bytes:
        raise WeightsError(
            f"{path}: the file has {file_bytes} bytes, its header describes {begin}", _DOWNLOAD_HINT
        )
