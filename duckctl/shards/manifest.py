"""What a cache is made of: its key, its manifest (cache.json), and what it was made from.

cache.json is read by the host runtime; docs/reference/weight-cache.md describes every field.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from duckctl.shards.checkpoint import Checkpoint
from duckctl.shards.errors import CacheError
from duckctl.shards.layout import LAYOUT_VERSION
from duckctl.shards.plan import ShardPlan
from duckctl.shards.safetensors import FileHeader, open_regular, read_exactly

CONVERTER_VERSION = 2
SCHEMA_VERSION = 1
CACHE_NAME = "cache.json"
SOURCE_NAME = "source.json"
PLAN_NAME = "plan.json"
JOURNAL_NAME = "journal.jsonl"
LOCK_NAME = "lock"
FULL_DIGEST_BYTES_MAX = 256 << 20  # smaller checkpoints are fingerprinted whole
SAMPLE_BYTES = 4096
SAMPLES_PER_FILE = 64


@dataclass(frozen=True)
class Fingerprint:
    """Digest that tells checkpoints apart quickly; ``complete`` when it covers every byte."""

    sha256: str
    complete: bool


def fingerprint(checkpoint: Checkpoint) -> Fingerprint:
    """Digest over config, headers, sizes and the payload, sampled when the checkpoint is large.

    Full digests of the experts are taken while converting; this one is cheap enough to take at
    every start (64 reads of 4 KiB per file) and does not depend on file times.
    """
    complete = checkpoint.payload_bytes <= FULL_DIGEST_BYTES_MAX
    digest = hashlib.sha256(checkpoint.config_sha256.encode())
    for file in checkpoint.files:
        digest.update(f"{file.path.name}:{file.size_bytes}:".encode())
        digest.update(file.header)
        _digest_payload(digest, file, complete)
    return Fingerprint(digest.hexdigest(), complete)


def _digest_payload(digest: hashlib._Hash, file: FileHeader, complete: bool) -> None:
    start = 8 + len(file.header)
    size = file.size_bytes - start
    buffer = bytearray(min(size, (1 << 20) if complete else SAMPLE_BYTES))
    if complete or size <= SAMPLES_PER_FILE * SAMPLE_BYTES:
        offsets = range(start, start + size, max(1, len(buffer)))
    else:
        step = (size - SAMPLE_BYTES) // (SAMPLES_PER_FILE - 1)
        offsets = range(start, start + (SAMPLES_PER_FILE - 1) * step + 1, step)
    descriptor = open_regular(file.path)
    try:
        for offset in offsets:
            view = memoryview(buffer)[: min(len(buffer), file.size_bytes - offset)]
            read_exactly(descriptor, view, offset, file.path)
            digest.update(view)
    finally:
        os.close(descriptor)


def plan_key(checkpoint: Checkpoint, mark: Fingerprint, plan: ShardPlan) -> str:
    """Key known before converting: names the directory. Another key never shares a byte."""
    parts = [
        "duckctl shards",
        CONVERTER_VERSION,
        LAYOUT_VERSION,
        checkpoint.revision,
        mark.sha256,
        plan.digest(),
    ]
    return _digest_json(parts)


def cache_key(key: str, layer_digests: Mapping[int, str]) -> str:
    """Key of the finished cache: the plan key and every source tensor's digest."""
    return _digest_json([key, [[layer, layer_digests[layer]] for layer in sorted(layer_digests)]])


def layer_digest(tensor_digests: Mapping[str, str]) -> str:
    """Digest over the digests of one layer's expert tensors, scales included."""
    return _digest_json(sorted(tensor_digests.items()))


def _digest_json(value: object) -> str:
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True)
class Piece:
    """A file that holds bytes [offset, offset + size) of a slice's weights region."""

    slice_index: int
    layer: int | None  # None: the directory
    file: str
    offset: int
    size_bytes: int


def pieces_of(plan: ShardPlan) -> list[Piece]:
    """All pieces in slice and region order."""
    result = []
    for part, layout in zip(plan.slices, plan.layouts, strict=True):
        folder = f"slice-{part.index:02d}"
        result.append(
            Piece(
                part.index,
                None,
                f"{folder}/directory.bin",
                0,
                layout.segment_offset(layout.layers[0]),
            )
        )
        for layer in layout.layers:
            result.append(
                Piece(
                    part.index, layer, f"{folder}/layer-{layer:03d}.bin",
                    layout.segment_offset(layer), layout.segment_bytes,
                )
            )  # fmt: skip
    return result


def cache_document(
    checkpoint: Checkpoint,
    plan: ShardPlan,
    key: str,
    digests: Mapping[str, str],
    report: Mapping[str, object],
) -> dict[str, object]:
    """cache.json. ``digests``: piece file -> sha256 in hex."""
    pieces = pieces_of(plan)
    slices = []
    for part, layout in zip(plan.slices, plan.layouts, strict=True):
        own = [piece for piece in pieces if piece.slice_index == part.index]
        raw = b"".join(bytes.fromhex(digests[piece.file]) for piece in own)
        slices.append(
            {
                "slice": part.index,
                "first_row": part.first_row,
                "rows": part.rows,
                "region_bytes": layout.region_bytes,
                "set_id": hashlib.sha256(raw).hexdigest(),
                "pieces": [_piece_document(piece, digests[piece.file]) for piece in own],
            }
        )
    return {
        "schema_version": SCHEMA_VERSION,
        "cache_key": key,
        "model": {
            "name": checkpoint.name,
            "model_type": checkpoint.shape.model_type,
            "revision": checkpoint.revision,
            "config_sha256": checkpoint.config_sha256,
        },
        "format": plan.fmt,
        "layout_version": LAYOUT_VERSION,
        "converter_version": CONVERTER_VERSION,
        "hidden_size": plan.shape.hidden_size,
        "moe_intermediate_size": plan.shape.moe_intermediate_size,
        "expert_count": plan.shape.expert_count,
        "layers": list(plan.shape.layers),
        "slices": slices,
        "report": dict(report),
    }


def _piece_document(piece: Piece, sha256: str) -> dict[str, object]:
    document: dict[str, object] = {"file": piece.file}
    if piece.layer is not None:
        document["layer"] = piece.layer
    return document | {"offset": piece.offset, "bytes": piece.size_bytes, "sha256": sha256}


@dataclass(frozen=True)
class CachedPiece:
    """A piece as a finished cache describes it."""

    path: Path
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class CacheSummary:
    """What the commands need of a finished cache's cache.json."""

    directory: Path
    cache_key: str
    model: str
    fmt: str
    layout_version: int
    converter_version: int
    slice_rows: tuple[tuple[int, int], ...]  # (first_row, rows)
    pieces: tuple[CachedPiece, ...]

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.pieces)


def read_cache(directory: Path) -> CacheSummary:
    """Reads cache.json; raises CacheError naming the file and what is odd about it."""
    path = directory / CACHE_NAME
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value["schema_version"] != SCHEMA_VERSION:
            raise CacheError(
                f"{path} has schema version {value['schema_version']}, expected {SCHEMA_VERSION}",
                "convert the model again with this duckctl",
            )
        pieces = tuple(
            CachedPiece(
                _inside(directory, piece["file"]), int(piece["bytes"]), str(piece["sha256"])
            )
            for part in value["slices"]
            for piece in part["pieces"]
        )
        return CacheSummary(
            directory,
            str(value["cache_key"]),
            str(value["model"]["name"]),
            str(value["format"]),
            int(value["layout_version"]),
            int(value["converter_version"]),
            tuple((int(part["first_row"]), int(part["rows"])) for part in value["slices"]),
            pieces,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else repr(error)
        raise CacheError(
            f"{path} cannot be used: {reason}", "convert the model again: duckctl shard-weights"
        ) from error


def _inside(directory: Path, name: str) -> Path:
    if name.startswith("/") or ".." in Path(name).parts:
        raise ValueError(f"piece '{name}' lies outside of the cache")
    return directory / name


def tensor_digests_name(layer: int) -> str:
    """File in a cache with the BLAKE3 digest of each source tensor of a layer."""
    return f"source/layer-{layer:03d}.json"


def source_document(
    checkpoint: Checkpoint, key: str, complete: bool, layer_digests: Mapping[int, str]
) -> dict[str, object]:
    """source.json: what a cache was made from. Tensor digests are in source/layer-NNN.json."""
    return {
        "schema_version": SCHEMA_VERSION,
        "plan_key": key,
        "fingerprint_complete": complete,
        "files": file_states(checkpoint.files),
        "layers": {str(layer): layer_digests[layer] for layer in sorted(layer_digests)},
    }


def file_states(files: Sequence[FileHeader]) -> list[list[object]]:
    """Name, size and time of each source file: equal states need no second full read."""
    return [[file.path.name, file.size_bytes, file.mtime_ns] for file in files]
