"""The launch gap: a call's round trip minus the kernel's time, beside raw sockets in the same run.

    python -m host_runtime.bench.gap --natives DIR [--ducks 1,2,4] [--bytes 2048,14336]
        [--mtu 1500,9000] [--poll block|sleep|spin] [--calls N]

Every case has one duck per domain (up to eight domains), all on this machine. Raw sockets send the
same number of packets of the same sizes to as many processes, in turns with the calls. Prints one
JSON document; exit 0 when it is printed, 1 when something could not be run, 2 on wrong arguments.
"""

from __future__ import annotations

import argparse
import array
import contextlib
import ctypes
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from host_runtime.bench.process_ducks import (
    POLICIES,
    Natives,
    Shelf,
    open_request,
    process,
    running_shelf,
)
from host_runtime.errors import HostError
from host_runtime.transport import Timing, TransportOptions

SCHEMA_VERSION = 1
TURNS = 4  # raw and ours, one after the other
WARM_UP = 50
DOMAINS_MAX = 8
HEADER_BYTES, PREFIX_BYTES, IP_UDP_BYTES = 56, 8, 28
SEAL_ROUNDS = 3000
RAW_LIMIT_S = 300.0


@dataclass(frozen=True)
class Case:
    """One line of the table: message bytes in each direction."""

    ducks: int
    message_bytes: int
    mtu: int

    @property
    def stride(self) -> int:
        return (self.mtu - IP_UDP_BYTES - HEADER_BYTES - PREFIX_BYTES) // 64 * 64

    @property
    def packets(self) -> int:
        return -(-self.message_bytes // self.stride)

    @property
    def packet_bytes(self) -> int:
        """UDP payload of each packet when the message is cut evenly."""
        return HEADER_BYTES + -(-self.message_bytes // self.packets)


class _NativeCall(ctypes.Structure):
    """struct duckgap_call."""

    _fields_ = (("round_trip_ns", ctypes.c_uint64), ("timing", Timing))

    def call(self) -> Call:
        timing: Timing = self.timing
        return Call(
            self.round_trip_ns,
            timing.kernel_ns,
            timing.queue_ns,
            timing.send_ns,
            timing.total_ns,
            timing.sum_ns,
        )


@dataclass(frozen=True)
class Call:
    """One call's times in ns."""

    round_trip: int  # as the caller sees it
    kernel: int
    queue: int
    send: int
    total: int
    sum: int

    @property
    def gap(self) -> int:
        return self.round_trip - self.kernel


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    options = _parse(arguments)
    natives = Natives(options.natives)
    cases = [
        Case(ducks, size, mtu)
        for mtu in options.mtu
        for ducks in options.ducks
        for size in options.bytes
    ]
    try:
        rows = [_measure(natives, case, options.poll, options.calls) for case in cases]
        document = {
            "schema_version": SCHEMA_VERSION,
            "poll": options.poll,
            "port": "udp",
            "calls": options.calls,
            "seal_ns": {str(mtu): _seal_cost(natives, mtu) for mtu in options.mtu},
            "cases": rows,
        }
    except (HostError, OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(json.dumps(document, indent=1) + "\n")
    return 0


def _measure(natives: Natives, case: Case, poll: str, calls: int) -> dict[str, Any]:
    """Raw sockets and calls in turns."""
    ours: list[Call] = []
    raw: list[int] = []
    handshake_ns = 0
    for _ in range(TURNS // 2):
        raw += _raw_ping_pong(natives, case, poll, calls * 2 // TURNS)
        with running_shelf(natives, case.ducks, poll) as shelf:
            turn, handshake_ns, resent = _calls(natives, shelf, case, poll, calls * 2 // TURNS)
            ours += turn
    gaps = percentiles([call.gap for call in ours])
    pings = percentiles(raw)
    return {
        "ducks": case.ducks,
        "message_bytes": case.message_bytes,
        "mtu": case.mtu,
        "packets": case.packets,
        "gap_us": gaps,
        "round_trip_us": percentiles([call.round_trip for call in ours]),
        "raw_us": pings,
        "gap_over_raw_p50": round(gaps["p50"] / pings["p50"], 2),
        "stages_us_p50": _stages(ours),
        "fragments_resent": resent,
        "handshake_ms": handshake_ns / 1e6,
    }


def _stages(calls: Sequence[Call]) -> dict[str, float]:
    """Medians of where a call's time goes; `wire` is both ways, receiving and waking included."""

    def median(values: list[int]) -> float:
        return percentiles(values)["p50"]

    return {
        "send": median([call.send for call in calls]),
        "wire": median([call.total - call.send - call.queue - call.kernel for call in calls]),
        "queue": median([call.queue for call in calls]),
        "kernel": median([call.kernel for call in calls]),
        "sum": median([call.sum for call in calls]),
        "wake": median([call.round_trip - call.total - call.sum for call in calls]),
    }


def _calls(
    natives: Natives, shelf: Shelf, case: Case, poll: str, count: int
) -> tuple[list[Call], int, int]:
    options = TransportOptions(poll_policy=POLICIES[poll])
    domains = min(case.ducks, DOMAINS_MAX)
    run = ctypes.CDLL(natives.program("libduckgap.so")).duckgap_run
    with shelf.transport(domains, case.mtu, options) as transport:
        size = max(case.message_bytes, 64)
        transport.session_open(range(case.ducks), open_request(size), 10_000)
        message = array.array("I", [size]) + array.array("I", bytes(size - 4))
        out = array.array("f", bytes(size))
        where, _ = message.buffer_info()
        result, floats = out.buffer_info()
        found = (_NativeCall * (WARM_UP + count))()
        arguments = [ctypes.c_void_p(where), ctypes.c_uint32(size), ctypes.c_void_p(result)]
        arguments += [ctypes.c_uint64(floats), found, ctypes.c_uint32(len(found))]
        transport.run_native(run, *arguments)
        status = [transport.duck_status(duck) for duck in range(case.ducks)]
        resent = sum(one.fragments_resent for one in status)
        calls = [one.call() for one in found[WARM_UP:]]
        return calls, max(one.handshake_ns for one in status), resent


def _raw_ping_pong(natives: Natives, case: Case, poll: str, rounds: int) -> list[int]:
    """The same packets between bare sockets; `sleep` is compared with blocking ones."""
    policy = "spin" if poll == "spin" else "block"
    program = natives.program("duckraw")
    with contextlib.ExitStack() as stack:
        peers = []
        for _ in range(case.ducks):
            command = [program, "pong", "127.0.0.1:0", str(case.packets), str(case.packets)]
            command += [str(case.packet_bytes), policy]
            port = stack.enter_context(process(command)).split()[1]
            peers.append(f"127.0.0.1:{port}")
        command = [program, "ping", str(WARM_UP + rounds), str(case.packets)]
        command += [str(case.packet_bytes), str(case.packets), policy, *peers]
        told = subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=RAW_LIMIT_S
        )
    return [int(line) for line in told.stdout.split()][WARM_UP:]


def _seal_cost(natives: Natives, mtu: int) -> dict[str, int]:
    """What the seals of 14,336 bytes (a hidden state of 7,168 in bf16) cost each side."""
    stride = Case(1, 1, mtu).stride
    command = [natives.program("duckraw"), "seal", "14336", str(stride), str(SEAL_ROUNDS)]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    words = told.stdout.split()
    return {"seal": int(words[1]), "open": int(words[3])}


def percentiles(values: Sequence[int]) -> dict[str, float]:
    """p50, p99 and the worst, in microseconds."""
    ordered = sorted(values)
    if not ordered:
        raise HostError("every round was lost: the machine is too busy to measure")

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1000, 1)

    return {"p50": at(0.50), "p99": at(0.99), "max": at(1.0)}


def numbers(text: str) -> list[int]:
    """``1,2,4`` from the command line."""
    return [int(word) for word in text.split(",")]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m host_runtime.bench.gap")
    parser.add_argument("--natives", type=Path, required=True, help="folder of the native parts")
    parser.add_argument("--ducks", type=numbers, default=[1, 2, 4])
    parser.add_argument("--bytes", type=numbers, default=[2048, 14336])
    parser.add_argument("--mtu", type=numbers, default=[1500, 9000])
    parser.add_argument("--poll", choices=sorted(POLICIES), default="block")
    parser.add_argument("--calls", type=int, default=1000)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
