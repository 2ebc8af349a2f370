"""``duckctl bench gap`` and ``duckctl bench wire``: the transport beside bare sockets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from duckctl.errors import UsageError
from duckctl.fleet_file import DUCKS_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

MTU_MIN, MTU_MAX = 1280, 9000  # host_runtime/transport/transport.cc
PACKET_HEADERS_BYTES = 92  # IP, UDP and our own, as host_runtime/bench/gap.py cuts messages
RAW_PACKETS_MAX = 64  # of one message: host_runtime/transport/raw/duckraw.c
POLICIES = ("block", "sleep", "spin")
DUCKS = typer.Option("1,2,4", "--ducks", help="Numbers of ducks, one per domain.")
MTU = typer.Option("1500,9000", "--mtu", help="MTUs: they decide the packets' sizes.")
POLL = typer.Option("block", "--poll", help="block, sleep, or spin (two cores per duck and two).")
AS_JSON = typer.Option(False, "--json", help="Print JSON.")


def register(app: typer.Typer) -> None:
    """Adds the commands to ``duckctl bench``."""
    app.command("gap")(gap)
    app.command("wire")(wire)


def gap(
    ducks: str = DUCKS,
    sizes: str = typer.Option("2048,14336", "--bytes", help="Message bytes each way."),
    mtu: str = MTU,
    poll: str = POLL,
    calls: int = typer.Option(1000, "--calls", min=20, max=1_000_000, help="Calls per case."),
    as_json: bool = AS_JSON,
) -> None:
    """Launch gap (round trip minus kernel) of calls, beside a raw ping-pong of the same packets.

    Ducks are processes on this machine. Raw sockets and calls are measured in turns. `over raw` is
    the ratio of the medians; the stages say where a call's time goes.

    \b
    Examples:
      duckctl bench gap
      duckctl bench gap --ducks 1,4 --bytes 14336 --mtu 9000 --poll spin --calls 5000
      duckctl bench gap --json | jq '.cases[] | {ducks, mtu, gap_over_raw_p50}'
    """
    from duckctl.bench.transport import run_bench
    from duckctl.console import print_json, print_table, talk

    words = ["--ducks", ducks, "--bytes", sizes, "--mtu", mtu, "--calls", str(calls)]
    check_numbers("--ducks", ducks, 1, DUCKS_MAX)
    smallest = min(check_numbers("--mtu", mtu, MTU_MIN, MTU_MAX))
    packet_bytes = (smallest - PACKET_HEADERS_BYTES) // 64 * 64
    check_numbers("--bytes", sizes, 4, RAW_PACKETS_MAX * packet_bytes, 4)
    document = run_bench("gap", [*words, *policy_words(poll)])
    if as_json:
        print_json(document)
        return
    columns = ("ducks>", "bytes>", "MTU>", "gap p50>", "p99>", "raw p50>", "p99>", "over raw>")
    stages = ("send>", "wire>", "queue>", "sum>", "wake>")
    print_table("", (*columns, *stages), [_gap_row(case) for case in document["cases"]])
    for size, cost in document["seal_ns"].items():
        each = f"seal {cost['seal'] / 1000:.1f} µs, open {cost['open'] / 1000:.1f} µs"
        talk(f"MAC of 14,336 bytes at MTU {size}: {each}; all times in µs")


def wire(
    ducks: str = DUCKS,
    mtu: str = MTU,
    poll: str = POLL,
    megabytes: int = typer.Option(128, "--megabytes", min=1, max=65536, help="Per duck."),
    loss: float = typer.Option(0.0, "--loss", min=0, max=50, help="Percent of packets to drop."),
    as_json: bool = AS_JSON,
) -> None:
    """Throughput of weights and of large calls, beside a raw blast of the same packets.

    \b
    Examples:
      duckctl bench wire
      duckctl bench wire --ducks 4 --mtu 9000 --megabytes 512
      duckctl bench wire --mtu 9000 --loss 2
      duckctl bench wire --json | jq '.cases[].bulk'
    """
    from duckctl.bench.transport import run_bench
    from duckctl.console import print_json, print_table

    words = ["--ducks", ducks, "--mtu", mtu, "--megabytes", str(megabytes), "--loss", str(loss)]
    check_numbers("--ducks", ducks, 1, DUCKS_MAX)
    check_numbers("--mtu", mtu, MTU_MIN, MTU_MAX)
    document = run_bench("link", [*words, *policy_words(poll)])
    if as_json:
        print_json(document)
        return
    columns = (
        "ducks>",
        "MTU>",
        "bulk MB/s>",
        "over raw>",
        "first>",
        "resent>",
        "calls MB/s each way>",
        "calls/s>",
    )
    raw = ("raw MB/s>", "raw lost>")
    print_table("", (*columns, *raw), [_wire_row(case) for case in document["cases"]])


def _gap_row(case: Mapping[str, Any]) -> Sequence[object]:
    gap_us, raw_us, stages = case["gap_us"], case["raw_us"], case["stages_us_p50"]
    return (
        *(case["ducks"], case["message_bytes"], case["mtu"]),
        *(gap_us["p50"], gap_us["p99"], raw_us["p50"], raw_us["p99"], case["gap_over_raw_p50"]),
        *(stages[name] for name in ("send", "wire", "queue", "sum", "wake")),
    )


def _wire_row(case: Mapping[str, Any]) -> Sequence[object]:
    bulk, calls, raw = case["bulk"], case["calls"], case["raw"]
    return (
        *(case["ducks"], case["mtu"], bulk["mb_per_s"], bulk["over_raw"], bulk["first_mb_per_s"]),
        f"{bulk['resent_share']:.2%}",
        *(calls["mb_per_s_each_way"], calls["calls_per_s"]),
        *(raw["mb_per_s"], f"{raw['lost_share']:.2%}"),
    )


def policy_words(poll: str) -> list[str]:
    """The benchmark's arguments for a poll policy; UsageError for an unknown one."""
    if poll not in POLICIES:
        raise UsageError(f"--poll '{poll}' is unknown", f"policies: {', '.join(POLICIES)}")
    return ["--poll", poll]


def check_numbers(option: str, text: str, low: int, high: int, step: int = 1) -> list[int]:
    """``1,2,4`` -> [1, 2, 4], multiples of ``step`` from ``low`` to ``high``, else UsageError."""
    words = text.split(",")
    if any(not re.fullmatch("[0-9]{1,9}", word) for word in words):
        raise UsageError(f"{option} '{text[:40]}' is no list of numbers", "write them like 1,2,4")
    found = [int(word) for word in words]
    for number in found:
        if not low <= number <= high or number % step:
            kind = f"multiple of {step}" if step > 1 else "number"
            raise UsageError(f"{option} {number}: expected a {kind} from {low} to {high}")
    return found
