"""Which finished pieces may be kept: their file and their source are what the journal says."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from threading import Event

from duckctl.shards.checkpoint import Checkpoint
from duckctl.shards.journal import Journal, JournalEntry
from duckctl.shards.manifest import (
    Piece,
    file_states,
    layer_digest,
    pieces_of,
    tensor_digests_name,
)
from duckctl.shards.plan import ShardPlan
from duckctl.shards.progress import Reporter
from duckctl.shards.reader import FileTable, digest_expert
from duckctl.shards.store import file_sha256, hashing_pool, json_bytes

PieceKey = tuple[int, int]  # (layer, slice)


def layer_pieces(plan: ShardPlan) -> dict[PieceKey, Piece]:
    """Pieces that hold a layer (all but the directories)."""
    return {
        (piece.layer, piece.slice_index): piece
        for piece in pieces_of(plan)
        if piece.layer is not None
    }


def missing_pieces(entries: Collection[PieceKey], plan: ShardPlan) -> dict[int, tuple[int, ...]]:
    """Layer -> slices without a finished piece (``entries``: those that have one), in order."""
    work: dict[int, tuple[int, ...]] = {}
    for layer in plan.shape.layers:
        parts = tuple(part.index for part in plan.slices if (layer, part.index) not in entries)
        if parts:
            work[layer] = parts
    return work


def missing_bytes(entries: Collection[PieceKey], plan: ShardPlan) -> int:
    pieces = layer_pieces(plan)
    return sum(piece.size_bytes for key, piece in pieces.items() if key not in entries)


def forget_changed_sources(
    journal: Journal, checkpoint: Checkpoint, threads: int, reporter: Reporter
) -> None:
    """Re-reads the source of finished pieces when a file's size or time is not as recorded."""
    states = file_states(checkpoint.files)
    if journal.files == states:
        return
    layers = sorted({layer for layer, _ in journal.entries})
    total = sum(source.size_bytes for layer in layers for source in checkpoint.experts(layer))
    reporter.start("source files have new dates, reading them again", total)
    changed: list[PieceKey] = []
    with (
        FileTable(file.path for file in checkpoint.files) as files,
        hashing_pool(threads) as (pool, _),
    ):
        for layer in layers:
            digests: dict[str, str] = {}
            experts = checkpoint.experts(layer)
            for found in pool.map(lambda source: digest_expert(files, source), experts):
                digests |= found
            mark = layer_digest(digests)
            changed += [
                key
                for key, entry in journal.entries.items()
                if key[0] == layer and entry.source != mark
            ]
            reporter.advance(sum(source.size_bytes for source in experts))
    reporter.finish()
    journal.files = states
    journal.forget(changed)
    journal.rewrite()


def forget_damaged(
    journal: Journal, plan: ShardPlan, directory: Path, threads: int, reporter: Reporter
) -> tuple[str, ...]:
    """Drops entries whose file is not as it was written; returns their names."""
    pieces = layer_pieces(plan)
    entries = list(journal.entries.items())
    if not entries:
        return ()
    reporter.start("checking finished pieces", sum(entry.size_bytes for _, entry in entries))
    damaged = _without_tensor_digests(journal, directory)
    with hashing_pool(threads) as (pool, stop):

        def problem_of(item: tuple[PieceKey, JournalEntry]) -> str | None:
            key, entry = item
            return piece_problem(directory / pieces[key].file, entry.size_bytes, entry.sha256, stop)

        for (key, entry), problem in zip(entries, pool.map(problem_of, entries), strict=True):
            reporter.advance(entry.size_bytes)
            if problem and key not in damaged:
                damaged.append(key)
                reporter.note(f"{directory / pieces[key].file} {problem}; it is made again")
    reporter.finish()
    journal.forget(damaged)
    return tuple(pieces[key].file for key in damaged)


def tensor_digests_bytes(digests: Mapping[str, str]) -> bytes:
    """Content of a layer's file of source tensor digests."""
    return json_bytes(dict(sorted(digests.items())))


def _without_tensor_digests(journal: Journal, directory: Path) -> list[PieceKey]:
    """Pieces of layers whose list of source tensor digests is not what the journal says."""
    found = []
    for layer in sorted({layer for layer, _ in journal.entries}):
        path = directory / tensor_digests_name(layer)
        try:
            raw = path.read_bytes()
            digests = json.loads(raw)
            digest = layer_digest(digests) if raw == tensor_digests_bytes(digests) else ""
        except (OSError, ValueError, AttributeError):
            digest = ""
        found += [
            key
            for key, entry in journal.entries.items()
            if key[0] == layer and entry.source != digest
        ]
    return found


def piece_problem(path: Path, size_bytes: int, sha256: str, stop: Event) -> str | None:
    """What is wrong with a piece file, or None. ``stop``: as of file_sha256."""
    try:
        found = path.stat().st_size
        if found != size_bytes:
            return f"has {found} bytes, expected {size_bytes}"
        if file_sha256(path, stop) != sha256:
            return "does not have the digest that it was written with"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None
