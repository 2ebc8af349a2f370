"""Bulk and call throughput beside a raw blast of the same packets in the same run.

    python -m host_runtime.bench.link --natives DIR [--ducks 1,2,4] [--mtu 1500,9000]
        [--poll block|sleep|spin] [--megabytes N] [--loss PERCENT]

Ducks are processes on this machine, one per domain. `bulk` writes a weights region into all ducks
at once; `calls` keeps four calls of 256 KiB each way in flight; `raw` is one sender and one
receiver that do nothing else, and may lose packets. `--loss` drops that share of the packets of
`bulk` and `calls`, in both directions. Prints one JSON document; exit 0 when it is
printed, 1 when something could not be run, 2 on wrong arguments.
"""

from __future__ import annotations

import argparse
import array
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from host_runtime import wire
from host_runtime.bench.gap import DOMAINS_MAX, HEADER_BYTES, IP_UDP_BYTES, numbers
from host_runtime.bench.process_ducks import (
    POLICIES,
    REQUEST_MS,
    Natives,
    first_line,
    open_request,
    running_shelf,
)
from host_runtime.errors import HostError
from host_runtime.transport import Faults, Progress, Transport, TransportOptions

SCHEMA_VERSION = 1
CALL_BYTES = 256 << 10
CALLS_IN_FLIGHT = 4
CALLS = 400
WRITE_PREFIX_BYTES = 16
RAW_LIMIT_S = 120.0
LOSS_SEED = 71


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    options = _parse(arguments)
    natives = Natives(options.natives)
    try:
        document = {
            "schema_version": SCHEMA_VERSION,
            "poll": options.poll,
            "port": "udp",
            "megabytes": options.megabytes,
            "loss_percent": options.loss,
            "cases": [
                _measure(natives, Case(ducks, mtu), options)
                for mtu in options.mtu
                for ducks in options.ducks
            ],
        }
    except (HostError, OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(json.dumps(document, indent=1) + "\n")
    return 0


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    ducks: int
    mtu: int


def _measure(natives: Natives, case: Case, options: argparse.Namespace) -> dict[str, Any]:
    policy = TransportOptions(poll_policy=POLICIES[options.poll])
    domains = min(case.ducks, DOMAINS_MAX)
    raw = _raw(natives, case.mtu, options.poll, options.megabytes)
    with (
        running_shelf(natives, case.ducks, options.poll) as shelf,
        shelf.transport(domains, case.mtu, policy) as transport,
    ):
        transport.set_faults(Faults(seed=LOSS_SEED, drop=options.loss / 100))
        bulk = _bulk(transport, case.ducks, options.megabytes)
        bulk["over_raw"] = round(bulk["mb_per_s"] / raw["mb_per_s"], 3)
        calls = _calls(transport, case.ducks)
    return {"ducks": case.ducks, "mtu": case.mtu, "raw": raw, "bulk": bulk, "calls": calls}


def _bulk(transport: Transport, ducks: int, megabytes: int) -> dict[str, float]:
    """Bytes acknowledged by all ducks together per second: into fresh memory, which the ducks'
    systems must clear first (`first_mb_per_s`), then into the same memory again."""
    data = memoryview(bytes(megabytes << 20))
    reserve = wire.Reserve(region=wire.Region.WEIGHTS, bytes=len(data))
    _ask_all(transport, ducks, wire.MessageType.RESERVE, bytes(reserve))
    first_s, _ = _write_all(transport, ducks, data)
    seconds, resent = _write_all(transport, ducks, data)
    empty = wire.Reserve(region=wire.Region.WEIGHTS)
    # Calls need no weights, and half-loaded ones forbid a session.
    _ask_all(transport, ducks, wire.MessageType.RESERVE, bytes(empty))
    return {
        "mb_per_s": round(ducks * len(data) / seconds / 1e6, 1),
        "first_mb_per_s": round(ducks * len(data) / first_s / 1e6, 1),
        "resent_share": round(resent / (ducks * len(data)), 4),
    }


def _ask_all(transport: Transport, ducks: int, kind: wire.MessageType, payload: bytes) -> None:
    for duck in range(ducks):
        transport.request(duck, kind, payload, REQUEST_MS)


def _write_all(transport: Transport, ducks: int, data: memoryview) -> tuple[float, int]:
    """Seconds until all ducks have all of it, and bytes sent again."""
    reports = [Progress() for _ in range(ducks)]

    def write(duck: int) -> None:
        transport.write(duck, wire.Region.WEIGHTS, 0, data, reports[duck])

    begin = time.perf_counter()
    with ThreadPoolExecutor(ducks) as pool:
        list(pool.map(write, range(ducks)))
    return time.perf_counter() - begin, sum(report.bytes_resent for report in reports)


def _calls(transport: Transport, ducks: int) -> dict[str, float]:
    """Bytes per second out to all ducks, and back from all of them."""
    transport.session_open(range(ducks), open_request(CALL_BYTES), 10_000)
    message = array.array("I", [CALL_BYTES]) + array.array("I", bytes(CALL_BYTES - 4))
    out = array.array("f", bytes(CALL_BYTES))
    where, _ = message.buffer_info()
    result, floats = out.buffer_info()
    tickets: list[int] = []
    begin = time.perf_counter()
    for _ in range(CALLS):
        if len(tickets) == CALLS_IN_FLIGHT:
            transport.wait_sum(tickets.pop(0), wire.Dtype.F32, result, floats)
        tickets.append(transport.submit(where, CALL_BYTES))
    for ticket in tickets:
        transport.wait_sum(ticket, wire.Dtype.F32, result, floats)
    seconds = time.perf_counter() - begin
    resent = sum(transport.duck_status(duck).fragments_resent for duck in range(ducks))
    return {
        "calls_per_s": round(CALLS / seconds, 1),
        "mb_per_s_each_way": round(CALLS * CALL_BYTES * ducks / seconds / 1e6, 1),
        "fragments_resent": resent,
    }


def _raw(natives: Natives, mtu: int, poll: str, megabytes: int) -> dict[str, float]:
    """What arrives of packets that are sent as fast as one socket can."""
    policy = "spin" if poll == "spin" else "block"
    program = natives.program("duckraw")
    stride = (mtu - IP_UDP_BYTES - HEADER_BYTES - WRITE_PREFIX_BYTES) // 64 * 64
    packet = stride + HEADER_BYTES + WRITE_PREFIX_BYTES
    sink = subprocess.Popen(
        [program, "sink", "127.0.0.1:0", policy], stdout=subprocess.PIPE, text=True
    )
    try:
        port = first_line(sink, program).split()[1]
        blast = [program, "blast", str(megabytes), str(packet), f"127.0.0.1:{port}"]
        subprocess.run(blast, check=True, timeout=RAW_LIMIT_S)
        words = sink.communicate(timeout=RAW_LIMIT_S)[0].split()
    finally:
        sink.kill()
        sink.wait()
    received, nanoseconds = int(words[3]), max(int(words[5]), 1)
    sent = -(-(megabytes << 20) // packet) * packet
    return {
        "mb_per_s": round(received / nanoseconds * 1000, 1),
        "lost_share": round(max(0.0, 1 - received / sent), 4),
    }


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m host_runtime.bench.link")
    parser.add_argument("--natives", type=Path, required=True, help="folder of the native parts")
    parser.add_argument("--ducks", type=numbers, default=[1, 2, 4])
    parser.add_argument("--mtu", type=numbers, default=[1500, 9000])
    parser.add_argument("--poll", choices=sorted(POLICIES), default="block")
    parser.add_argument("--megabytes", type=int, default=128)
    parser.add_argument("--loss", type=float, default=0.0, help="percent of the packets")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
