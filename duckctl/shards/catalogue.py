"""The caches below a cache directory: list, verify, prune."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from duckctl.shards.errors import CacheError
from duckctl.shards.layout import LAYOUT_VERSION
from duckctl.shards.manifest import (
    CACHE_NAME,
    CONVERTER_VERSION,
    JOURNAL_NAME,
    LOCK_NAME,
    CachedPiece,
    CacheSummary,
    read_cache,
)
from duckctl.shards.progress import Reporter
from duckctl.shards.resume import piece_problem
from duckctl.shards.store import hashing_pool, locked


@dataclass(frozen=True)
class CacheEntry:
    """One cache on disk. ``state``: complete, incomplete, outdated (other version), damaged."""

    directory: Path
    state: str
    size_bytes: int
    modified_s: float
    summary: CacheSummary | None
    detail: str


def list_caches(cache_dir: Path) -> list[CacheEntry]:
    """Every directory that a conversion made, by name; other directories are not touched."""
    if not cache_dir.is_dir():
        return []
    return [
        _entry(path)
        for path in sorted(cache_dir.iterdir())
        if path.is_dir() and ((path / JOURNAL_NAME).exists() or (path / CACHE_NAME).exists())
    ]


def _entry(directory: Path) -> CacheEntry:
    files = [path.stat() for path in directory.rglob("*") if path.is_file()]
    size = sum(status.st_blocks * 512 for status in files)
    modified = max((status.st_mtime for status in files), default=0.0)
    if not (directory / CACHE_NAME).exists():
        return CacheEntry(directory, "incomplete", size, modified, None, "conversion not finished")
    try:
        summary = read_cache(directory)
    except CacheError as error:
        return CacheEntry(directory, "damaged", size, modified, None, error.message)
    versions = (summary.layout_version, summary.converter_version)
    if versions != (LAYOUT_VERSION, CONVERTER_VERSION):
        detail = f"layout {versions[0]}, converter {versions[1]}; this duckctl makes "
        detail += f"{LAYOUT_VERSION}, {CONVERTER_VERSION}"
        return CacheEntry(directory, "outdated", size, modified, summary, detail)
    return CacheEntry(directory, "complete", size, modified, summary, "")


@dataclass(frozen=True)
class PieceFault:
    """A piece file that is not as it was written."""

    path: Path
    problem: str


def verify_cache(summary: CacheSummary, threads: int, reporter: Reporter) -> list[PieceFault]:
    """Re-reads every piece; returns those whose size or digest is wrong."""
    faults = []
    reporter.start(f"verifying {summary.directory.name}", summary.size_bytes)
    with hashing_pool(threads) as (pool, stop):

        def problem_of(piece: CachedPiece) -> str | None:
            return piece_problem(piece.path, piece.size_bytes, piece.sha256, stop)

        checks = pool.map(problem_of, summary.pieces)
        for piece, problem in zip(summary.pieces, checks, strict=True):
            reporter.advance(piece.size_bytes)
            if problem:
                faults.append(PieceFault(piece.path, problem))
    reporter.finish()
    return faults


def prune_candidates(
    entries: Sequence[CacheEntry], states: Sequence[str], max_bytes: int | None
) -> list[CacheEntry]:
    """Caches to remove: those in ``states``, then the oldest until the rest fits max_bytes."""
    chosen = [entry for entry in entries if entry.state in states]
    if max_bytes is None:
        return chosen
    rest = sorted(
        (entry for entry in entries if entry not in chosen), key=lambda entry: entry.modified_s
    )
    left = sum(entry.size_bytes for entry in rest)
    for entry in rest:
        if left <= max_bytes:
            break
        chosen.append(entry)
        left -= entry.size_bytes
    return chosen


def remove_cache(entry: CacheEntry) -> None:
    """Deletes a cache, cache.json first: what is left after an interruption is incomplete.

    The lock goes last, so that nobody else begins to write before everything is gone.
    """
    directory = entry.directory
    with locked(directory):
        (directory / CACHE_NAME).unlink(missing_ok=True)
        for path in directory.iterdir():
            if path.name not in (LOCK_NAME, JOURNAL_NAME):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        for name in (JOURNAL_NAME, LOCK_NAME):
            (directory / name).unlink(missing_ok=True)
    with suppress(OSError):  # not empty: a conversion has begun anew in it
        directory.rmdir()
