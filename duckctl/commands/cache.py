"""``duckctl cache``: the weight caches on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from duckctl.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from duckctl.shards.catalogue import CacheEntry, PieceFault
    from duckctl.shards.manifest import CacheSummary

app = typer.Typer(help="Look at, verify and remove weight caches.")
CACHE_DIR = typer.Option(
    None, "--cache-dir", help="Where caches are kept.  [default: ~/.cache/duckctl/shards]"
)
AS_JSON = typer.Option(False, "--json", help="Print JSON.")
NAMES = typer.Argument(None, metavar="[NAME]...", help="Caches (or a unique beginning); all.")


@app.command("ls")
def list_command(cache_dir: Path | None = CACHE_DIR, as_json: bool = AS_JSON) -> None:
    """List the caches with size and state.

    \b
    Examples:
      duckctl cache ls
      duckctl cache ls --json
    """
    from duckctl.console import human_bytes, print_json, print_table, talk

    root = _root(cache_dir)
    entries = _entries(root)
    if as_json:
        print_json({"cache_dir": str(root), "caches": [_document(entry) for entry in entries]})
        return
    rows = [
        (
            entry.directory.name,
            entry.summary.model if entry.summary else "",
            entry.summary.fmt if entry.summary else "",
            len(entry.summary.slice_rows) if entry.summary else "",
            human_bytes(entry.size_bytes),
            entry.state,
        )
        for entry in entries
    ]
    if rows:
        print_table(str(root), ("name", "model", "format", "slices>", "size>", "state"), rows)
    else:
        talk(f"no caches in {root}")


@app.command("verify")
def verify_command(
    names: list[str] | None = NAMES,
    cache_dir: Path | None = CACHE_DIR,
    threads: int | None = typer.Option(None, "--threads", min=1, max=1024, help="[default: all]"),
    as_json: bool = AS_JSON,
) -> None:
    """Re-read every piece and compare it with its digest; damaged files are named.

    \b
    Examples:
      duckctl cache verify
      duckctl cache verify ducklet-fp9-4-48940fa735df07c44ae0
    """
    from duckctl.shards.catalogue import verify_cache
    from duckctl.shards.errors import CacheError
    from duckctl.shards.progress import TerminalReporter

    threads = threads or len(os.sched_getaffinity(0))
    results = []
    for entry in _select(_entries(_root(cache_dir)), names):
        if entry.summary is None:
            if names or entry.state == "damaged":
                raise CacheError(
                    f"{entry.directory} is {entry.state}: {entry.detail}",
                    "run duckctl shard-weights again, or duckctl cache prune",
                )
            continue
        with TerminalReporter() as reporter:
            results.append((entry.summary, verify_cache(entry.summary, threads, reporter)))
    report_verification(results, as_json)


@app.command("prune")
def prune_command(
    names: list[str] | None = typer.Argument(
        None,
        metavar="[NAME]...",
        help="Caches to remove, complete ones by their full names; without names: unusable ones.",
    ),
    cache_dir: Path | None = CACHE_DIR,
    everything: bool = typer.Option(False, "--all", help="Remove complete caches too."),
    max_size: str | None = typer.Option(
        None, "--max-size", help="Also remove the oldest until the rest is at most this large."
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only say what would be removed."),
    as_json: bool = AS_JSON,
) -> None:
    """Remove incomplete, outdated and damaged caches, or the named ones.

    A cache that a conversion is writing to is told and kept; exit code 1 if it was named.

    \b
    Examples:
      duckctl cache prune --dry-run
      duckctl cache prune --max-size 500G
    """
    from duckctl.console import print_json, talk
    from duckctl.shards.catalogue import prune_candidates
    from duckctl.shards.parse import parse_bytes

    entries = _entries(_root(cache_dir))
    if names:
        if everything or max_size:
            raise UsageError("names go without --all and --max-size", "give one or the other")
        chosen = _select(entries, names)
        _require_full_names(chosen, names)
    else:
        states = ["incomplete", "outdated", "damaged", *(["complete"] if everything else [])]
        limit = parse_bytes(max_size, "--max-size") if max_size else None
        chosen = prune_candidates(entries, states, limit)
    removed = [entry for entry in chosen if _remove(entry, dry_run)]
    if as_json:
        busy = [entry.directory.name for entry in chosen if entry not in removed]
        document = {"removed": [_document(entry) for entry in removed], "busy": busy}
        print_json({**document, "dry_run": dry_run})
    elif not chosen:
        talk("nothing to remove")
    if names and len(removed) < len(chosen):
        raise typer.Exit(ExitCode.FAILURE)


def _remove(entry: CacheEntry, dry_run: bool) -> bool:
    """False for a cache that a conversion writes to, which is told."""
    from duckctl.console import human_bytes, talk, warn
    from duckctl.shards.catalogue import remove_cache
    from duckctl.shards.errors import CacheBusyError
    from duckctl.shards.store import require_unlocked

    try:
        if dry_run:
            require_unlocked(entry.directory)
        else:
            remove_cache(entry)
    except CacheBusyError as error:
        warn(f"{error.message}; it is kept")
        return False
    verb = "would remove" if dry_run else "removed"
    talk(f"{verb} {entry.directory} ({entry.state}, {human_bytes(entry.size_bytes)})")
    return True


def report_verification(
    results: Sequence[tuple[CacheSummary, Sequence[PieceFault]]], as_json: bool
) -> None:
    """Prints the outcome; damaged pieces end the command with exit code 1."""
    from duckctl.console import print_json, talk, warn

    faults = [fault for _, found in results for fault in found]
    if as_json:
        caches = [
            {
                "name": summary.directory.name,
                "pieces": len(summary.pieces),
                "faults": [{"file": str(fault.path), "problem": fault.problem} for fault in found],
            }
            for summary, found in results
        ]
        print_json({"ok": not faults, "caches": caches})
    for fault in faults:
        warn(f"{fault.path} {fault.problem}")
    if faults:
        talk("run duckctl shard-weights again: it makes damaged pieces anew")
        raise typer.Exit(ExitCode.FAILURE)
    if not results:
        talk("there is no finished cache: nothing was verified")
        return
    pieces = sum(len(summary.pieces) for summary, _ in results)
    talk(f"{len(results)} caches, {pieces} pieces: all as written")


def _root(cache_dir: Path | None) -> Path:
    from duckctl.shards.convert import default_cache_dir

    if cache_dir is not None and not cache_dir.is_dir():
        raise UsageError(
            f"there is no folder {cache_dir}", "name the one that shard-weights wrote to"
        )
    return (cache_dir or default_cache_dir()).absolute()


def _entries(root: Path) -> list[CacheEntry]:
    from duckctl.shards.catalogue import list_caches

    return list_caches(root)


def _select(entries: Sequence[CacheEntry], names: Sequence[str] | None) -> list[CacheEntry]:
    if not names:
        return list(entries)
    chosen = []
    for name in names:
        if not name:
            raise UsageError("an empty name is no cache", "see: duckctl cache ls")
        found = [entry for entry in entries if entry.directory.name == name] or [
            entry for entry in entries if entry.directory.name.startswith(name)
        ]
        if len(found) != 1:
            problem = "matches several caches" if found else "is not a cache here"
            raise UsageError(f"'{name}' {problem}", "see: duckctl cache ls")
        chosen += [entry for entry in found if entry not in chosen]
    return chosen


def _require_full_names(chosen: Sequence[CacheEntry], names: Sequence[str]) -> None:
    for entry in chosen:
        name = entry.directory.name
        if entry.state == "complete" and name not in names:
            raise UsageError(
                f"{name} is complete: it is removed by its full name only",
                "give that name if you mean it",
            )


def _document(entry: CacheEntry) -> dict[str, object]:
    summary = entry.summary
    return {
        "name": entry.directory.name,
        "directory": str(entry.directory),
        "state": entry.state,
        "bytes": entry.size_bytes,
        "detail": entry.detail,
        "cache_key": summary.cache_key if summary else None,
        "model": summary.model if summary else None,
        "format": summary.fmt if summary else None,
        "slices": len(summary.slice_rows) if summary else None,
    }
