"""Converts a checkpoint into a weight cache, or continues a conversion that was interrupted.

Every start does the same: it keeps the pieces whose file and source are still what the journal
says, makes the others, and writes cache.json last.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from duckctl.shards.checkpoint import Checkpoint, open_checkpoint
from duckctl.shards.errors import CacheError, ConversionInterruptedError, DiskFullError
from duckctl.shards.journal import Journal, JournalEntry
from duckctl.shards.manifest import (
    CACHE_NAME,
    PLAN_NAME,
    SOURCE_NAME,
    cache_document,
    cache_key,
    file_states,
    fingerprint,
    layer_digest,
    pieces_of,
    plan_key,
    read_cache,
    source_document,
    tensor_digests_name,
)
from duckctl.shards.native import MATRIX_NAMES, PackLibrary
from duckctl.shards.pipeline import Budget, Pipeline, make_budget
from duckctl.shards.plan import DuckSpec, ShardPlan, SlicePlan, equal_plan
from duckctl.shards.progress import Reporter
from duckctl.shards.resume import (
    forget_changed_sources,
    forget_damaged,
    layer_pieces,
    missing_bytes,
    missing_pieces,
    tensor_digests_bytes,
)
from duckctl.shards.store import (
    FULL_DISK_ERRORS,
    free_bytes,
    fsync_directory,
    json_bytes,
    locked,
    remove_temporary_files,
    write_atomically,
    write_if_different,
)

MEMORY_LIMIT_BYTES = 8 << 30
MANIFEST_BYTES_MAX = 32 << 20  # room for the manifests beside the pieces


@dataclass(frozen=True)
class ConvertOptions:
    """Limits of a conversion."""

    threads: int
    memory_limit_bytes: int = MEMORY_LIMIT_BYTES


@dataclass(frozen=True)
class ConvertResult:
    """What a run did. ``damaged`` names pieces that were made again because they had changed."""

    cache_file: Path
    cache_key: str
    pieces_made: int
    pieces_kept: int
    damaged: tuple[str, ...]
    read_bytes: int
    written_bytes: int
    seconds: float


def default_cache_dir() -> Path:
    """$XDG_CACHE_HOME/duckctl/shards, ~/.cache/duckctl/shards without it."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    root = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return root / "duckctl" / "shards"


def cache_directory(cache_dir: Path, checkpoint: Checkpoint, plan: ShardPlan, key: str) -> Path:
    """Directory of one cache: a readable name, then the key that decides."""
    return cache_dir / f"{checkpoint.name}-{plan.fmt}-{len(plan.slices)}-{key[:20]}"


def find_cache(
    model_dir: Path,
    fmt: str,
    slices: int | Sequence[tuple[int, int]],
    cache_dir: Path | None = None,
) -> Path | None:
    """cache.json of a finished cache of this model, format and slicing, or None.

    ``slices`` is a count of equal slices, or (first_row, rows) of each. Sizes and the source's
    fingerprint are checked here; whoever reads a piece checks its digest.
    """
    checkpoint = open_checkpoint(model_dir)
    if isinstance(slices, int):
        plan = equal_plan(checkpoint.shape, fmt, [DuckSpec(str(i)) for i in range(slices)])
    else:
        parts = (SlicePlan(i, first, rows, ()) for i, (first, rows) in enumerate(slices))
        plan = ShardPlan(fmt, checkpoint.shape, tuple(parts))
    mark = fingerprint(checkpoint)
    key = plan_key(checkpoint, mark, plan)
    directory = cache_directory(cache_dir or default_cache_dir(), checkpoint, plan, key)
    if not (directory / CACHE_NAME).exists():
        return None
    try:
        summary = read_cache(directory)
        source = json.loads((directory / SOURCE_NAME).read_text(encoding="utf-8"))
        whole = all(piece.path.stat().st_size == piece.size_bytes for piece in summary.pieces)
        fresh = mark.complete or source["files"] == file_states(checkpoint.files)
    except (OSError, ValueError, KeyError, CacheError):
        return None
    return directory / CACHE_NAME if whole and fresh and source["plan_key"] == key else None


def convert(
    checkpoint: Checkpoint,
    plan: ShardPlan,
    cache_dir: Path,
    options: ConvertOptions,
    reporter: Reporter,
) -> ConvertResult:
    """Makes or completes the cache of ``plan`` and returns where cache.json is."""
    started = time.monotonic()
    budget = make_budget(checkpoint, plan, options.threads, options.memory_limit_bytes)
    _check_library(plan)
    mark = fingerprint(checkpoint)
    key = plan_key(checkpoint, mark, plan)
    directory = cache_directory(cache_dir, checkpoint, plan, key)
    _make_directory(directory)
    with locked(directory), _full_disk_named(directory, plan):
        remove_temporary_files(directory)
        journal = Journal.open(directory, key, file_states(checkpoint.files))
        if not mark.complete:
            forget_changed_sources(journal, checkpoint, budget.threads, reporter)
        damaged = forget_damaged(journal, plan, directory, budget.threads, reporter)
        kept = len(journal.entries)
        work = missing_pieces(journal.entries, plan)
        if work:
            (directory / CACHE_NAME).unlink(missing_ok=True)
            fsync_directory(directory)
            _check_free_space(directory, journal, plan)
            _run_pipeline(checkpoint, plan, directory, journal, work, budget, reporter)
        document = _finalise(checkpoint, plan, directory, journal, mark.complete)
    made = [journal.entries[(layer, part)] for layer, parts in work.items() for part in parts]
    return ConvertResult(
        directory / CACHE_NAME,
        document,
        len(made),
        kept,
        damaged,
        _source_bytes(checkpoint, work),
        sum(entry.size_bytes for entry in made),
        time.monotonic() - started,
    )


@dataclass(frozen=True)
class Remainder:
    """What a conversion has still to do: bytes to read of the source, bytes of pieces to write.

    ``kept_bytes`` are those of finished pieces.
    """

    read_bytes: int
    write_bytes: int
    kept_bytes: int

    @property
    def need_bytes(self) -> int:
        """Free space that it asks for."""
        return self.write_bytes + MANIFEST_BYTES_MAX if self.write_bytes else 0


def remainder(checkpoint: Checkpoint, plan: ShardPlan, cache_dir: Path) -> Remainder:
    """By the journal and the sizes of the finished pieces. Reads no piece and writes nothing."""
    key = plan_key(checkpoint, fingerprint(checkpoint), plan)
    directory = cache_directory(cache_dir, checkpoint, plan, key)
    pieces = layer_pieces(plan)
    kept = {
        at: entry.size_bytes
        for at, entry in Journal.peek(directory, key).items()
        if _size_of(directory / pieces[at].file) == entry.size_bytes
    }
    work = missing_pieces(kept, plan)
    return Remainder(_source_bytes(checkpoint, work), missing_bytes(kept, plan), sum(kept.values()))


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _source_bytes(checkpoint: Checkpoint, layers: Iterable[int]) -> int:
    return sum(source.size_bytes for layer in layers for source in checkpoint.experts(layer))


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CacheError(
            f"the cache directory {directory} cannot be made: {error.strerror}",
            "choose another one with --cache-dir",
        ) from error


def _check_library(plan: ShardPlan) -> None:
    """The library and duckctl must agree on every record's size before a byte is written."""
    library = PackLibrary()
    for layout in plan.layouts:
        if library.record_bytes(layout) != layout.record_bytes:
            raise CacheError(
                f"libduckpack makes records of {library.record_bytes(layout)} bytes, duckctl "
                f"expects {layout.record_bytes}",
                "the installation mixes two versions; install again with: pip install .",
            )


def _check_free_space(directory: Path, journal: Journal, plan: ShardPlan) -> None:
    need = missing_bytes(journal.entries, plan) + MANIFEST_BYTES_MAX
    free = free_bytes(directory)
    if need > free:
        raise DiskFullError(
            f"{directory} needs {need} bytes more, {free} are free: {need - free} bytes are "
            "missing",
            "free space (duckctl cache prune), or choose another disk with --cache-dir",
        )


class _full_disk_named:  # noqa: N801 - reads like contextlib's managers
    """Turns a full disk or an exceeded quota into a message that names the missing bytes."""

    def __init__(self, directory: Path, plan: ShardPlan) -> None:
        self.directory = directory
        self.plan = plan

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, OSError) or error.errno not in FULL_DISK_ERRORS:
            return
        done = sum(path.stat().st_size for path in self.directory.glob("slice-*/layer-*.bin"))
        rest = self.plan.total_bytes - done
        missing = max(rest + MANIFEST_BYTES_MAX - free_bytes(self.directory), 0)
        raise DiskFullError(
            f"writing to {self.directory} failed: {error.strerror}; {rest} bytes remain to be "
            f"written, {missing} bytes of free space are missing",
            "make room (also look at quotas and file size limits), then run the same command "
            "again: finished pieces are kept",
        ) from error


def _run_pipeline(
    checkpoint: Checkpoint,
    plan: ShardPlan,
    directory: Path,
    journal: Journal,
    work: Mapping[int, tuple[int, ...]],
    budget: Budget,
    reporter: Reporter,
) -> None:
    def layer_done(layer: int, digests: Mapping[str, str], entries: Sequence[JournalEntry]) -> None:
        name = tensor_digests_name(layer)
        write_atomically(directory / name, tensor_digests_bytes(digests))
        mark = layer_digest(digests)
        journal.append([replace(entry, source=mark) for entry in entries])

    (directory / tensor_digests_name(0)).parent.mkdir(exist_ok=True)
    reporter.start("converting", _source_bytes(checkpoint, work))
    try:
        pipeline = Pipeline(checkpoint, plan, directory, work, budget)
        pipeline.run(layer_done, reporter.advance)
    except KeyboardInterrupt:
        count = len(plan.slices) * len(plan.shape.layers)
        raise ConversionInterruptedError(
            f"stopped with {len(journal.entries)} of {count} pieces finished",
            "run the same command again to continue",
        ) from None
    reporter.finish()


def _finalise(
    checkpoint: Checkpoint, plan: ShardPlan, directory: Path, journal: Journal, complete: bool
) -> str:
    """Directories, plan.json, source.json, then cache.json; returns the cache key."""
    digests: dict[str, str] = {}
    for piece in pieces_of(plan):
        if piece.layer is not None:
            digests[piece.file] = journal.entries[(piece.layer, piece.slice_index)].sha256
            continue
        data = plan.layout(piece.slice_index).directory()
        write_if_different(directory / piece.file, data)
        digests[piece.file] = hashlib.sha256(data).hexdigest()
    layer_digests = {layer: entry.source for (layer, _), entry in journal.entries.items()}
    key = cache_key(journal.plan_key, layer_digests)
    source = source_document(checkpoint, journal.plan_key, complete, layer_digests)
    document = cache_document(checkpoint, plan, key, digests, error_report(journal))
    write_if_different(directory / PLAN_NAME, json_bytes(plan.to_json()))
    write_if_different(directory / SOURCE_NAME, json_bytes(source))
    write_if_different(directory / CACHE_NAME, json_bytes(document))
    return key


def error_report(journal: Journal) -> dict[str, object]:
    """Weight error per layer: root of (squared error / squared weights) of each matrix."""
    layers: dict[str, dict[str, float]] = {}
    for layer in sorted({layer for layer, _ in journal.entries}):
        entries = [journal.entries[key] for key in sorted(journal.entries) if key[0] == layer]
        values = {}
        for index, name in enumerate(MATRIX_NAMES):
            error = math.fsum(entry.squared_error[index] for entry in entries)
            total = math.fsum(entry.squared_sum[index] for entry in entries)
            values[name] = math.sqrt(error / total) if total else 0.0
        layers[str(layer)] = values
    lossless = not any(value for values in layers.values() for value in values.values())
    return {"lossless": lossless, "relative_error": {} if lossless else layers}
