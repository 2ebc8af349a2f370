"""The host's weights in one file, in the layout of the card: exported once, loaded by one read.

host.bin    every array of cuda/parts.py, each at a multiple of ALIGN, in that order; of the MTP
            module's copies of embedding and head what differs
host.json   schema, digests of the model and of what follows, and each request's arrays (dtype,
            shape, offset)

A checkpoint's tensors lie in 163 files and are fused on loading; here that is done. Both files are
written beside the target, synced and renamed, the index last: what has an index is whole. One
export at a time writes to a folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

import torch

from host_runtime.config import ModelConfig, load_config
from host_runtime.cuda.parts import Fused, Part, Table, Vector, ends, everything, mtp_parts
from host_runtime.cuda.weights import CheckpointWeights
from host_runtime.errors import WeightsError
from host_runtime.ops.matrix import Matrix
from host_runtime.weights import Checkpoint
from host_runtime.weights.source import SCALE_SUFFIX

SCHEMA_VERSION = 3
ALIGN = 256  # of arrays: beyond what any load of the card wants
INDEX_NAME, DATA_NAME, LOCK_NAME = "host.json", "host.bin", ".host.lock"
SAMPLE_BYTES = 4096  # of each tensor, to tell models apart
INDEX_BYTES_MAX = 64 << 20
PIECE_BYTES = 64 << 20  # of a read; two such buffers are in host memory
DTYPES = {
    "uint8": torch.uint8,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
AGAIN = "export it again: duckctl shard-weights MODEL ... --host-weights"


def key_of(request: Table | Vector | Fused) -> str:
    """The name of a request in the index."""
    if isinstance(request, Fused):
        return "+".join(part.name for part in request.parts)
    return request.name


# ---- writing -----------------------------------------------------------------------------------


def write_host_file(
    model_dir: Path, folder: Path, progress: Callable[[int, int], None] = lambda _done, _all: None
) -> Path:
    """Exports the host's part of a checkpoint; returns the index. Raises WeightsError, OSError.

    Needs no card, and at any time the memory of one fused matrix and its parts.
    """
    config = load_config(model_dir)
    checkpoint = Checkpoint(model_dir)
    source = CheckpointWeights(checkpoint, torch.device("cpu"), fp8=config.fp8)
    folder.mkdir(parents=True, exist_ok=True)
    requests = list(everything(config))
    part = folder / f".{DATA_NAME}.part"
    with _locked(folder), _removed_on_errors(part):
        with part.open("w+b") as file:
            writer = _Writer(file, _copies(config))
            for number, request in enumerate(requests):
                writer.add(request, source)
                progress(number + 1, len(requests))
            file.flush()
            os.fsync(file.fileno())
        for layer in config.moe_layers:
            source.leave(f"model.layers.{layer}.mlp.experts.")
        source.finish()
        (folder / INDEX_NAME).unlink(missing_ok=True)  # it is that of other data
        part.replace(folder / DATA_NAME)
        index = {
            "schema_version": SCHEMA_VERSION,
            "model_sha256": model_digest(checkpoint, config),
            "bytes": writer.offset,
            "sha256": writer.digest.hexdigest(),
            "arrays_sha256": _arrays_digest(writer.index),
            "arrays": writer.index,
        }
        return _write_index(folder, index)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / LOCK_NAME).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WeightsError(
                f"another export writes to {folder}", "wait until it is done, or stop it"
            ) from None
        yield


@contextmanager
def _removed_on_errors(part: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def model_digest(checkpoint: Checkpoint, config: ModelConfig) -> str:
    """Tells models and revisions apart: the config, and of each tensor of the host's part its name,
    type, shape and first bytes."""
    digest = hashlib.sha256((checkpoint.model_dir / "config.json").read_bytes())
    for request in everything(config):
        parts = [part.name for part in request.parts] if isinstance(request, Fused) else []
        for name in parts or [key_of(request)]:
            for own in (name, name + SCALE_SUFFIX):
                entry = checkpoint.entries.get(own)
                if entry is not None:
                    digest.update(f"{own} {entry.dtype} {entry.shape} ".encode())
                    digest.update(checkpoint.sample(own, SAMPLE_BYTES))
    return digest.hexdigest()


def _copies(config: ModelConfig) -> dict[str, str]:
    """Of the MTP module's requests that repeat others in V3.2: the other's name by the own one."""
    if config.mtp_layer is None:
        return {}
    (table, _, head), mtp = ends(config), mtp_parts(config)
    return {key_of(mtp.embedding): key_of(table), key_of(mtp.head): key_of(head)}


def _arrays_digest(arrays: dict[str, dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(arrays, sort_keys=True).encode()).hexdigest()


class _Writer:
    """Appends arrays to a file and remembers where they are.

    `copies`: requests that may repeat earlier ones; arrays that do so are not written again.
    """

    def __init__(self, file: BinaryIO, copies: dict[str, str]) -> None:
        self.file, self._copies = file, copies
        self.offset = 0
        self.digest = hashlib.sha256()
        self.index: dict[str, dict[str, Any]] = {}

    def add(self, request: Table | Vector | Fused, source: CheckpointWeights) -> None:
        arrays: dict[str, torch.Tensor]
        entry: dict[str, Any] = {}
        if isinstance(request, Fused):
            matrix, entry["starts"] = source.fused(request.parts, request.columns)
            arrays = {"codes": matrix.codes, "scale": matrix.scale, "plain": matrix.plain}
        elif isinstance(request, Table):
            arrays = {"table": source.table(request.name, request.rows, request.columns)}
        else:
            arrays = {"vector": source.vector(request.name, request.size)}
        earlier = self.index.get(self._copies.get(key_of(request), ""), {})
        for name, tensor in arrays.items():
            entry[name] = self._array(tensor.contiguous(), earlier.get(name))
        self.index[key_of(request)] = entry

    def _array(self, tensor: torch.Tensor, earlier: dict[str, Any] | None) -> dict[str, Any]:
        """Its place, which is that of the earlier array if that is the same."""
        place = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "offset": self.offset,
        }
        data = memoryview(b"")
        if tensor.numel():
            data = tensor.view(torch.uint8).reshape(-1).numpy().data
        if (
            earlier is not None
            and earlier == place | {"offset": earlier["offset"]}
            and self._holds(earlier["offset"], data)
        ):
            return earlier
        self._bytes(data)
        self._bytes(memoryview(bytes(-self.offset % ALIGN)))
        return place

    def _holds(self, offset: int, data: memoryview) -> bool:
        """Whether the file has these bytes there."""
        self.file.seek(offset)
        pieces = (data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES))
        same = all(self.file.read(len(piece)) == piece for piece in pieces)
        self.file.seek(self.offset)
        return same

    def _bytes(self, data: memoryview) -> None:
        self.file.write(data)
        self.digest.update(data)
        self.offset += len(data)


def _write_index(folder: Path, index: dict[str, Any]) -> Path:
    target = folder / INDEX_NAME
    part = folder / f".{INDEX_NAME}.part"
    with part.open("w", encoding="utf-8") as file:
        json.dump(index, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    part.replace(target)
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return target


# ---- reading -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Index:
    model_sha256: str
    bytes: int
    sha256: str
    arrays: dict[str, dict[str, Any]]


def host_file_bytes(folder: Path) -> int:
    """What the export takes on the card. WeightsError if there is none that can be used."""
    return _read_index(folder).bytes


class HostFileWeights:
    """cuda.weights.GpuWeights of an exported file: all arrays are views of one buffer.

    The file is read once, piece by piece onto the device, and compared with its digest.
    """

    def __init__(self, folder: Path, checkpoint: Checkpoint, device: torch.device) -> None:
        self.device = device
        self._folder = folder
        index, config = _read_index(folder), load_config(checkpoint.model_dir)
        if index.model_sha256 != model_digest(checkpoint, config):
            raise WeightsError(f"{folder} holds the weights of another model or revision", AGAIN)
        self._arrays = index.arrays
        self._require_all(config)
        self._buffer = _read_data(folder / DATA_NAME, index, device)

    def fused(self, parts: Sequence[Part], columns: int) -> tuple[Matrix, list[int]]:
        """See GpuWeights."""
        entry = self._entry(key_of(Fused(tuple(parts), columns)))
        matrix = Matrix(*(self._view(entry[name]) for name in ("codes", "scale", "plain")))
        if matrix.columns != columns:
            raise self._damaged(f"{parts[0].name} has {matrix.columns} columns, not {columns}")
        return matrix, [int(start) for start in entry["starts"]]

    def table(self, name: str, rows: int, columns: int) -> torch.Tensor:
        """See GpuWeights."""
        return self._shaped(name, "table", (rows, columns))

    def vector(self, name: str, size: int) -> torch.Tensor:
        """See GpuWeights."""
        return self._shaped(name, "vector", (size,))

    def _shaped(self, name: str, kind: str, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = self._view(self._entry(name)[kind])
        if tuple(tensor.shape) != shape:
            raise self._damaged(f"{name} has shape {list(tensor.shape)}, not {list(shape)}")
        return tensor

    def _entry(self, key: str) -> dict[str, Any]:
        entry = self._arrays.get(key)
        if entry is None:
            raise self._damaged(f"'{key}' is missing")
        return entry

    def _view(self, place: dict[str, Any]) -> torch.Tensor:
        try:
            dtype, shape = DTYPES[place["dtype"]], tuple(int(size) for size in place["shape"])
            begin = int(place["offset"])
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(f"an array's place is no place: {error}") from error
        count = 1
        for size in shape:
            count *= size
        end = begin + count * dtype.itemsize
        if begin < 0 or begin % ALIGN or count < 0 or end > self._buffer.numel():
            raise self._damaged(f"an array lies at {begin} to {end}")
        return self._buffer[begin:end].view(dtype).view(shape)

    def _require_all(self, config: ModelConfig) -> None:
        missing = [key_of(r) for r in everything(config) if key_of(r) not in self._arrays]
        if missing:
            raise self._damaged(f"'{missing[0]}' is missing")

    def _damaged(self, what: str) -> WeightsError:
        return WeightsError(f"{self._folder / INDEX_NAME}: {what}", AGAIN)


def _read_index(folder: Path) -> _Index:
    path = folder / INDEX_NAME
    try:
        if path.stat().st_size > INDEX_BYTES_MAX:
            raise ValueError(f"larger than {INDEX_BYTES_MAX} bytes")
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema_version {document['schema_version']}")
        arrays = dict(document["arrays"])
        if _arrays_digest(arrays) != document["arrays_sha256"]:
            raise ValueError("its arrays do not have their digest")
        return _Index(
            str(document["model_sha256"]),
            int(document["bytes"]),
            str(document["sha256"]),
            arrays,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"{path} cannot be used: {error}", AGAIN) from error


def _read_data(path: Path, index: _Index, device: torch.device) -> torch.Tensor:
    """All bytes in one pass, on `device`; the digest is checked before they are given out.

    Pieces go through two buffers (pinned where there is a card): while one is hashed by a thread,
    the next is read, so the host needs no memory of the file's size.
    """
    try:
        size = path.stat().st_size
        if size != index.bytes:
            raise WeightsError(f"{path} has {size} bytes, expected {index.bytes}", AGAIN)
        data = torch.empty(size, dtype=torch.uint8, device=device)
        pinned = device.type == "cuda"
        stages = [
            torch.empty(min(PIECE_BYTES, size), dtype=torch.uint8, pin_memory=pinned)
            for _ in range(2)
        ]
        digest = hashlib.sha256()
        hashed: Future[None] | None = None
        with path.open("rb", buffering=0) as file, ThreadPoolExecutor(1) as hasher:
            for number, begin in enumerate(range(0, size, PIECE_BYTES)):
                piece = stages[number % 2][: min(PIECE_BYTES, size - begin)]
                _fill(file, piece, path, begin)
                data[begin : begin + piece.numel()].copy_(piece)
                if hashed is not None:
                    hashed.result()  # the other buffer is free again
                hashed = hasher.submit(digest.update, piece.numpy().data)
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror}", AGAIN) from error
    if digest.hexdigest() != index.sha256:
        raise WeightsError(f"{path} does not have the digest of its index", AGAIN)
    return data


def _fill(file: FileIO, piece: torch.Tensor, path: Path, begin: int) -> None:
    view = piece.numpy().data
    done = 0
    while done < len(view):
        got = file.readinto(view[done:])
        if not got:
            raise WeightsError(f"{path} ends at byte {begin + done}", AGAIN)
        done += got
