"""``duckctl bench lanes``: what an expert call costs a captured step, native and Python threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from duckctl.commands.bench_gap import AS_JSON, DUCKS, POLL, check_numbers, policy_words
from duckctl.fleet_file import DUCKS_MAX

HIDDEN_MAX = 32768  # kernels/src/directory.h
WAYS = ("native", "python", "submit")


def register(app: typer.Typer) -> None:
    """Adds the command to ``duckctl bench``."""
    app.command("lanes")(lanes)


def lanes(
    ducks: str = DUCKS,
    hidden: str = typer.Option("7168", "--hidden", help="Hidden sizes, multiples of 128."),
    poll: str = POLL,
    calls: int = typer.Option(2000, "--calls", min=240, max=1_000_000, help="Calls per case."),
    as_json: bool = AS_JSON,
) -> None:
    """Expert calls through mailboxes as a card posts them, answered by native and Python threads.

    Ducks are processes on this machine that answer at once. `submit` is the call without mailbox,
    `transport` the part of it between submission and the last result; two lanes: time per pair.

    \b
    Examples:
      duckctl bench lanes
      duckctl bench lanes --ducks 4 --poll spin --calls 10000
      duckctl bench lanes --json | jq '.cases[] | {ducks, native, python}'
    """
    from duckctl.bench.transport import run_bench
    from duckctl.console import print_json, print_table

    check_numbers("--ducks", ducks, 1, DUCKS_MAX)
    check_numbers("--hidden", hidden, 128, HIDDEN_MAX, 128)
    words = ["--ducks", ducks, "--hidden", hidden, "--calls", str(calls)]
    document = run_bench("lanes", [*words, *policy_words(poll)])
    if as_json:
        print_json(document)
        return
    columns = ("ducks>", "hidden>", "transport p50>", "way", "p50 µs>", "p99>", "two lanes p50>")
    rows = [_row(case, way) for case in document["cases"] for way in WAYS]
    print_table("", columns, rows)


def _row(case: Mapping[str, Any], way: str) -> Sequence[object]:
    one, two = case[way]["one_lane_us"], case[way].get("two_lanes_us")
    pair = "-" if two is None else two["p50"]
    return (
        *(case["ducks"], case["hidden"], case["transport_us"]["p50"]),
        *(way, one["p50"], one["p99"], pair),
    )
