"""``duckctl shard-weights``: converts a model's routed experts into one cache per duck."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from duckctl.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from duckctl.shards.checkpoint import Checkpoint
    from duckctl.shards.convert import ConvertResult, Remainder
    from duckctl.shards.estimate import Estimate, SpaceCheck
    from duckctl.shards.plan import ShardPlan

app = typer.Typer()
FORMATS = ("auto", "fp8", "fp9", "fp7", "q6", "q4")
NamedDucks = list[tuple[str, float | None]]


@app.command()
def shard_weights(
    model: str = typer.Argument(..., metavar="MODEL", help="Model directory, or 'ducklet'."),
    inventory: Path | None = typer.Option(None, "--inventory", "-i", help="Fleet to shard for."),
    ducks: int | None = typer.Option(None, "--ducks", min=1, help="Number of ducks instead."),
    cache_dir: Path | None = typer.Option(
        None, "--cache-dir", help="Where caches are kept.  [default: ~/.cache/duckctl/shards]"
    ),
    fmt: str = typer.Option(
        "fp9",
        "--format",
        help="fp8, fp9: FP8 weights stay exact. fp7, q6, q4: smaller and faster, not exact. "
        "auto: the fastest exact one, measured on the inventory's idle ducks or here.",
    ),
    weights: str | None = typer.Option(
        None, "--weights", help="Uneven slices: one number per duck, e.g. 2,1,1; or 'memory'."
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Show bytes and time, convert nothing."),
    verify: bool = typer.Option(False, "--verify", help="Re-read a finished cache, nothing else."),
    memory_limit: str = typer.Option("8G", "--memory-limit", help="Most memory to use."),
    threads: int | None = typer.Option(None, "--threads", min=1, max=1024, help="[default: all]"),
    source_sha256: Path | None = typer.Option(
        None, "--source-sha256", help="File of 'sha256  name' lines to check the model against."
    ),
    host_weights: Path | None = typer.Option(
        None, "--host-weights", metavar="FOLDER", help="Also export what the GPU host keeps."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Convert a model's routed experts into one packed weight cache per duck.

    An interrupted conversion continues where it was; a finished one is checked and kept. --dry-run
    counts what is left to do.

    \b
    Examples:
      duckctl shard-weights ducklet --ducks 4
      duckctl shard-weights /models/DeepSeek-V3.2 -i rack32.yml --dry-run
      duckctl shard-weights /models/DeepSeek-V3.2 -i rack32.yml --format auto
      duckctl shard-weights /models/DeepSeek-V3.2 -i rack32.yml --host-weights /models/host
    """
    from duckctl.early_checks import check_export_folder
    from duckctl.host_weights import export_host_weights
    from duckctl.model_dir import resolve_model_dir
    from duckctl.shards.checkpoint import open_checkpoint
    from duckctl.shards.convert import ConvertOptions, convert, default_cache_dir
    from duckctl.shards.parse import parse_bytes
    from duckctl.shards.plan import make_plan
    from duckctl.shards.progress import TerminalReporter
    from duckctl.shards.source_list import check_source_list

    if fmt not in FORMATS:
        raise UsageError(f"--format '{fmt}' is unknown", f"formats: {', '.join(FORMATS)}")
    _check_purpose(dry_run, verify, source_sha256, host_weights)
    if host_weights is not None:
        check_export_folder(host_weights)
    threads = threads or _core_count()
    memory_limit_bytes = parse_bytes(memory_limit, "--memory-limit")
    checkpoint = open_checkpoint(resolve_model_dir(model))
    _check_count(checkpoint.shape.moe_intermediate_size, ducks)
    named = _ducks(inventory, ducks)
    if fmt == "auto":
        fmt = _fastest_exact(checkpoint, inventory)
    plan = make_plan(checkpoint.shape, fmt, named, weights)
    root = (cache_dir or default_cache_dir()).absolute()
    if dry_run:
        _dry_run(checkpoint, plan, root, named, threads, as_json)
        return
    if verify:
        _verify(checkpoint, plan, root, threads, as_json)
        return
    with TerminalReporter() as reporter:
        if source_sha256:
            check_source_list(checkpoint, source_sha256, threads, reporter)
        options = ConvertOptions(threads, memory_limit_bytes)
        result = convert(checkpoint, plan, root, options, reporter)
    if host_weights is not None:
        export_host_weights(resolve_model_dir(model), host_weights)
    _report(plan, result, as_json)


def _check_purpose(
    dry_run: bool, verify: bool, source_sha256: Path | None, host_weights: Path | None
) -> None:
    """Refuses options that belong to a conversion when there is none."""
    if dry_run and verify:
        raise UsageError("--dry-run and --verify exclude each other", "give one of them")
    if not (dry_run or verify):
        return
    purpose = "--dry-run converts nothing" if dry_run else "--verify re-reads a cache only"
    for option, path in (("--source-sha256", source_sha256), ("--host-weights", host_weights)):
        if path is not None:
            raise UsageError(f"{purpose}: {option} has no meaning with it", f"leave out {option}")


def _fastest_exact(checkpoint: Checkpoint, inventory: Path | None) -> str:
    from duckctl.console import talk
    from duckctl.format_choice import choose_format
    from duckctl.inventory import load_inventory

    first = checkpoint.experts(checkpoint.shape.layers[0])[0]
    is_fp8 = all(matrix.dtype == "F8_E4M3" for matrix in first.matrices)
    choice = choose_format(is_fp8, load_inventory(inventory) if inventory else None)
    rates = ", ".join(f"{f} {r / 1e9:.1f} Gparam/s" for f, r in choice.params_per_s.items())
    talk(f"format {choice.fmt}: {choice.reason}{f' ({rates})' if rates else ''}")
    return choice.fmt


def _core_count() -> int:
    import os

    return len(os.sched_getaffinity(0))


def _check_count(rows: int, count: int | None) -> None:
    """Refuses what no plan has before a name is made for each duck."""
    from duckctl.shards.errors import PlanError
    from duckctl.shards.layout import PANEL_ROWS

    if count is not None and count > rows // PANEL_ROWS:
        raise PlanError(
            f"{count} ducks cannot share {rows} rows: a slice has at least {PANEL_ROWS}",
            f"use at most {rows // PANEL_ROWS} ducks for this model",
        )


def _ducks(inventory: Path | None, count: int | None) -> NamedDucks:
    """Name and memory of each duck, in slot order."""
    if (inventory is None) == (count is None):
        raise UsageError(
            "shard-weights needs either --inventory or --ducks",
            "e.g. --ducks 4, or --inventory inventory/rack32.yml",
        )
    if inventory is not None:
        from duckctl.inventory import load_inventory

        return [(duck.name, duck.memory_gib) for duck in load_inventory(inventory).ducks]
    return [(f"duck {index}", None) for index in range(count or 0)]


def _dry_run(
    checkpoint: Checkpoint,
    plan: ShardPlan,
    root: Path,
    ducks: NamedDucks,
    threads: int,
    as_json: bool,
) -> None:
    from duckctl.console import print_json
    from duckctl.shards.convert import remainder
    from duckctl.shards.estimate import check_space, estimate
    from duckctl.shards.manifest import pieces_of

    rest = remainder(checkpoint, plan, root)
    guess = estimate(checkpoint, plan, root, threads, rest)
    space = check_space(rest, root)
    if not as_json:
        _print_plan(checkpoint, plan, root, ducks, rest, guess, space)
    else:
        document: dict[str, Any] = {
            "model": checkpoint.name,
            "plan": plan.to_json(),
            "ducks": [
                {"name": name, "memory_gib": memory, "bytes": layout.region_bytes}
                for (name, memory), layout in zip(ducks, plan.layouts, strict=True)
            ],
            "files": [{"file": piece.file, "bytes": piece.size_bytes} for piece in pieces_of(plan)],
            "cache_bytes": plan.total_bytes,
            "source_bytes": checkpoint.expert_bytes,
            "kept_bytes": rest.kept_bytes,
            "cache_dir": str(root),
            "need_bytes": space.need_bytes,
            "free_bytes": space.free_bytes,
            "missing_bytes": space.missing_bytes,
            "convert_bytes_per_s": round(guess.convert_rate),
            "write_bytes_per_s": round(guess.write_rate),
            "estimated_seconds": round(guess.seconds, 1),
        }
        print_json(document)
    if space.missing_bytes:
        raise typer.Exit(ExitCode.FAILURE)


def _print_plan(
    checkpoint: Checkpoint,
    plan: ShardPlan,
    root: Path,
    ducks: NamedDucks,
    rest: Remainder,
    guess: Estimate,
    space: SpaceCheck,
) -> None:
    from duckctl.console import human_bytes, print_table, talk, warn
    from duckctl.shards.progress import human_seconds

    rows = [
        (
            name,
            part.index,
            f"{part.first_row}..{part.first_row + part.rows - 1}",
            layout.region_bytes,
            human_bytes(layout.region_bytes),
            f"{memory:g} GiB" if memory is not None else "unknown",
        )
        for (name, memory), part, layout in zip(ducks, plan.slices, plan.layouts, strict=True)
    ]
    title = f"{checkpoint.name} in {plan.fmt}, {len(plan.shape.layers)} MoE layers"
    print_table(title, ("duck", "slice>", "rows", "bytes>", "size>", "memory>"), rows)
    counts = checkpoint.accounting
    talk(f"cache     {human_bytes(plan.total_bytes)} in {root}")
    talk(f"source    {human_bytes(checkpoint.expert_bytes)} of routed experts")
    talk(
        f"tensors   {len(counts.sharded)} sharded, {len(counts.host)} on the host, "
        f"{len(counts.ignored)} ignored"
    )
    for reason in sorted(set(counts.ignored.values())):
        talk(f"          ignored: {reason}")
    if rest.kept_bytes:
        talk(f"kept      {human_bytes(rest.kept_bytes)} of finished pieces")
    talk(
        f"time      about {human_seconds(guess.seconds)} (measured: convert "
        f"{human_bytes(guess.convert_rate)}/s, write {human_bytes(guess.write_rate)}/s)"
    )
    if space.missing_bytes:
        warn(
            f"{root} has {human_bytes(space.free_bytes)} free; {space.missing_bytes} bytes are "
            "missing"
        )
    else:
        talk(f"disk      {human_bytes(space.free_bytes)} free, enough")


def _verify(
    checkpoint: Checkpoint, plan: ShardPlan, root: Path, threads: int, as_json: bool
) -> None:
    from duckctl.commands.cache import report_verification
    from duckctl.shards.catalogue import verify_cache
    from duckctl.shards.convert import cache_directory
    from duckctl.shards.errors import CacheError
    from duckctl.shards.manifest import CACHE_NAME, fingerprint, plan_key, read_cache
    from duckctl.shards.progress import TerminalReporter

    key = plan_key(checkpoint, fingerprint(checkpoint), plan)
    directory = cache_directory(root, checkpoint, plan, key)
    if not (directory / CACHE_NAME).exists():
        raise CacheError(
            f"there is no finished cache for this model and plan in {root}",
            "run the same command without --verify to make it",
        )
    summary = read_cache(directory)
    with TerminalReporter() as reporter:
        faults = verify_cache(summary, threads, reporter)
    report_verification([(summary, faults)], as_json)


def _report(plan: ShardPlan, result: ConvertResult, as_json: bool) -> None:
    from duckctl.console import human_bytes, print_json, talk
    from duckctl.shards.progress import human_seconds

    if as_json:
        print_json(
            {
                "cache_file": str(result.cache_file),
                "cache_key": result.cache_key,
                "format": plan.fmt,
                "slices": len(plan.slices),
                "pieces_made": result.pieces_made,
                "pieces_kept": result.pieces_kept,
                "damaged": list(result.damaged),
                "read_bytes": result.read_bytes,
                "written_bytes": result.written_bytes,
                "seconds": round(result.seconds, 3),
            }
        )
        return
    talk(
        f"{result.pieces_made} pieces made ({human_bytes(result.written_bytes)}), "
        f"{result.pieces_kept} kept, in {human_seconds(result.seconds)}"
    )
    typer.echo(str(result.cache_file))
