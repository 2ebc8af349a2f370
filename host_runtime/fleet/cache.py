"""The cache file: which piece files make up each duck's weights region, with sizes and digests.

``duckctl shard-weights`` writes it last, after every piece is on disk. Reading it checks that its
numbers add up; the bytes of a piece are checked when they are read (``read_piece``).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from host_runtime import wire
from host_runtime.errors import FileFormatError, HostError
from host_runtime.jsonfile import JsonObject, read_json_object

SCHEMA_VERSION = 1
FORMATS = {fmt.name.lower(): fmt for fmt in wire.Format}
DAMAGED_HINT = "run duckctl shard-weights again; it rewrites damaged pieces and keeps the rest"


class CacheDamagedError(HostError):
    """A piece file is missing, has another length, or other bytes than its digest says."""

    def __init__(self, file: Path, problem: str) -> None:
        super().__init__(f"weight cache: {file}: {problem}", DAMAGED_HINT)
        self.file = file


@dataclass(frozen=True)
class PieceConfig:
    """Bytes ``[offset, offset + size_bytes)`` of a weights region; ``layer`` None = directory."""

    file: Path
    layer: int | None
    offset: int
    size_bytes: int
    sha256: bytes


@dataclass(frozen=True)
class SliceConfig:
    """What one duck holds: rows ``[first_row, first_row + rows)`` of every expert."""

    index: int
    first_row: int
    rows: int
    region_bytes: int
    set_id: bytes
    pieces: tuple[PieceConfig, ...]


@dataclass(frozen=True)
class CacheConfig:
    """A whole cache file; ``layers`` are model layer indices, the MTP layer included."""

    path: Path
    cache_key: str
    model_name: str
    model_type: str
    model_revision: str | None
    config_sha256: str
    format: wire.Format
    converter_version: int
    hidden_size: int
    moe_intermediate_size: int
    expert_count: int
    layers: tuple[int, ...]
    slices: tuple[SliceConfig, ...]


def load_cache(path: Path) -> CacheConfig:
    """Read and check a cache file; raises FileFormatError."""
    root = read_json_object(path, "cache file")
    root.version(SCHEMA_VERSION)
    layout = root.integer("layout_version", 0, 1 << 31)
    if layout != wire.LAYOUT_VERSION:
        raise root.fail(
            "layout_version",
            f"is {layout}, this version of duckctl reads {wire.LAYOUT_VERSION}",
            "run duckctl shard-weights again",
        )
    model = root.child("model")
    shape = _Shape(
        FORMATS[root.choice("format", sorted(FORMATS))],
        root.integer("hidden_size", wire.BLOCK, 1 << 20),
        root.integer("moe_intermediate_size", wire.PANEL_ROWS, 1 << 20),
        root.integer("expert_count", 1, wire.EXPERT_NONE),
        _layers(root),
    )
    cache = CacheConfig(
        path=path,
        cache_key=root.text("cache_key"),
        model_name=model.text("name"),
        model_type=model.text("model_type"),
        model_revision=model.text_or_null("revision"),
        config_sha256=model.text("config_sha256"),
        format=shape.format,
        converter_version=root.integer("converter_version", 0, 1 << 31),
        hidden_size=shape.hidden,
        moe_intermediate_size=shape.intermediate,
        expert_count=shape.experts,
        layers=shape.layers,
        slices=_slices(root, shape, path.parent),
    )
    model.finish()
    root.take("report")  # for people; the runtime has no use for it
    root.finish()
    return cache


def check_piece_size(piece: PieceConfig) -> None:
    """A cheap look at a piece file: is it there, has it the right length?"""
    try:
        found = piece.file.stat().st_size
    except OSError as error:
        raise CacheDamagedError(piece.file, f"cannot be read: {error.strerror}") from error
    if found != piece.size_bytes:
        raise CacheDamagedError(piece.file, f"has {found} bytes, expected {piece.size_bytes}")


def read_piece(piece: PieceConfig) -> bytes:
    """The bytes of a piece, after their length and digest were found right.

    The whole piece (at most one layer of one duck) is read before anything of it is sent, so a
    byte that was not checked never travels.
    """
    check_piece_size(piece)
    try:
        data = piece.file.read_bytes()
    except OSError as error:
        raise CacheDamagedError(piece.file, f"cannot be read: {error.strerror}") from error
    found = hashlib.sha256(data).hexdigest()
    if len(data) != piece.size_bytes or found != piece.sha256.hex():
        raise CacheDamagedError(
            piece.file, f"its SHA-256 is {found}, the cache file says {piece.sha256.hex()}"
        )
    return data


@dataclass(frozen=True)
class _Shape:
    """The numbers that decide every size in the file."""

    format: wire.Format
    hidden: int
    intermediate: int
    experts: int
    layers: tuple[int, ...]

    def segment_bytes(self, first_row: int, rows: int) -> int:
        return self.experts * wire.record_bytes(self.format, self.hidden, first_row, rows)

    def region_bytes(self, first_row: int, rows: int) -> int:
        return wire.DIRECTORY_BYTES + len(self.layers) * self.segment_bytes(first_row, rows)


def _layers(root: JsonObject) -> tuple[int, ...]:
    layers = root.array("layers")
    for layer in layers:
        if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer <= 0xFFFF:
            raise root.fail("layers", f"{layer!r} is not a layer index")
    if not layers or len(layers) > wire.LAYERS_MAX or sorted(set(layers)) != layers:
        raise root.fail("layers", f"expected 1 to {wire.LAYERS_MAX} ascending layer indices")
    return tuple(layers)


def _slices(root: JsonObject, shape: _Shape, folder: Path) -> tuple[SliceConfig, ...]:
    slices: list[SliceConfig] = []
    next_row = 0
    for index, entry in enumerate(root.children("slices")):
        part = _slice(entry, shape, folder)
        if part.index != index:
            raise entry.fail("slice", f"is {part.index}, expected {index}: slices are in order")
        if part.first_row != next_row:
            raise entry.fail("first_row", f"is {part.first_row}, expected {next_row}")
        next_row += part.rows
        slices.append(part)
    if next_row != shape.intermediate:
        raise root.fail("slices", f"cover {next_row} of {shape.intermediate} MoE intermediate rows")
    return tuple(slices)


def _slice(entry: JsonObject, shape: _Shape, folder: Path) -> SliceConfig:
    first_row = entry.integer("first_row", 0, shape.intermediate)
    rows = entry.integer("rows", wire.PANEL_ROWS, shape.intermediate)
    if rows % wire.PANEL_ROWS:
        raise entry.fail("rows", f"is {rows}, expected a multiple of {wire.PANEL_ROWS}")
    region = entry.integer("region_bytes", 0, 1 << 48)
    expected = shape.region_bytes(first_row, rows)
    if region != expected:
        raise entry.fail("region_bytes", f"is {region}, the sizes in the file give {expected}")
    pieces = tuple(_piece(child, shape, folder) for child in entry.children("pieces"))
    end = 0
    for piece in pieces:
        if piece.offset != end:
            raise entry.fail("pieces", f"{piece.file.name} begins at {piece.offset}, not at {end}")
        end += piece.size_bytes
    if end != region:
        raise entry.fail("pieces", f"hold {end} bytes together, expected {region}")
    digest = hashlib.sha256(b"".join(piece.sha256 for piece in pieces)).digest()
    set_id = entry.digest("set_id")
    if set_id != digest:
        raise entry.fail("set_id", "does not belong to these pieces")
    part = SliceConfig(entry.integer("slice", 0, 1 << 16), first_row, rows, region, set_id, pieces)
    entry.finish()
    return part


def _piece(entry: JsonObject, shape: _Shape, folder: Path) -> PieceConfig:
    name = PurePosixPath(entry.text("file"))
    if name.is_absolute() or ".." in name.parts:
        raise entry.fail("file", f"'{name}' leaves the cache folder")
    layer = entry.integer("layer", 0, 0xFFFF) if entry.has("layer") else None
    if layer is not None and layer not in shape.layers:
        raise entry.fail("layer", f"{layer} is not one of the file's layers")
    piece = PieceConfig(
        file=folder / name,
        layer=layer,
        offset=entry.integer("offset", 0, 1 << 48),
        size_bytes=entry.integer("bytes", 1, 1 << 40),
        sha256=entry.digest("sha256"),
    )
    entry.finish()
    return piece


def slice_for(cache: CacheConfig, slot: int, duck_count: int) -> SliceConfig:
    """The slice of a slot, after checking that the cache was made for this many ducks."""
    if len(cache.slices) != duck_count:
        raise FileFormatError(
            f"cache file {cache.path}: is for {len(cache.slices)} ducks, the fleet has "
            f"{duck_count}",
            "run duckctl shard-weights for this fleet",
        )
    return cache.slices[slot]
