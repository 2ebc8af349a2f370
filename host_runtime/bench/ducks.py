"""Measure what idle ducks can do, with the kernel that will serve on them. Prints one document.

    python -m host_runtime.bench.ducks --fleet FILE --library LIB --kernel ELF
        --region NAME=FILE:HIDDENxROWSxEXPERTS [--region ...] [--timeout S]

Each region is a weights region of one format, made by duckctl. It is loaded into every idle duck,
a compute session is opened, and the kernel's own times are taken: reading the region with 1, 2, ...
all cores, and single-token calls over experts that no cache holds any more. Ducks that have weights
or serve are left alone and named. Exit 0 when the document is printed, 1 when nothing could be run,
2 on wrong arguments. Imports no torch.
"""

from __future__ import annotations

import argparse
import array
import contextlib
import hashlib
import json
import random
import re
import statistics
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from host_runtime import wire
from host_runtime.errors import HostError
from host_runtime.fleet.cache import PieceConfig, SliceConfig
from host_runtime.fleet.config import FleetConfig, load_fleet
from host_runtime.fleet.connect import connect
from host_runtime.fleet.kernel_file import KernelFile, load_kernel_file
from host_runtime.fleet.loader import DuckLoader, PieceBudget
from host_runtime.fleet.versions import DuckFacts, facts_of
from host_runtime.transport import Transport, TransportError, TransportOptions

SCHEMA_VERSION = 1
EXPERTS_PER_CALL = 8
READS, CALLS = 5, 15  # the fastest read and the median call count
CALL_TIME_LIMIT_MS = 10_000
RESERVED_AT_ONCE_BYTES = 1 << 30


@dataclass(frozen=True)
class Region:
    """A weights region file of one layer with one expert shape."""

    fmt: str
    file: Path
    hidden: int
    rows: int
    experts: int

    @property
    def experts_per_call(self) -> int:
        """An expert that a call names twice is read once, so none is."""
        return min(EXPERTS_PER_CALL, self.experts)

    @property
    def params_per_call(self) -> int:
        return self.experts_per_call * 3 * self.hidden * self.rows


@dataclass
class Findings:
    """What was found out about one duck."""

    name: str
    problem: str = ""
    boot_id: str = ""
    cores: int = 0
    read_bytes_per_s: list[float] = field(default_factory=list)
    formats: dict[str, dict[str, Any]] = field(default_factory=dict)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    options = _parse(arguments)
    try:
        fleet = load_fleet(options.fleet)
        kernel = load_kernel_file(options.kernel)
        settings = TransportOptions(silence_ms=max(1, int(options.timeout * 1000)))

        def connected() -> Transport:
            return connect(fleet, options.library, settings)

        found = measure(connected, fleet, kernel, options.region, options.timeout)
    except HostError as error:
        sys.stderr.write(f"error: {error.message}\n")
        if error.hint:
            sys.stderr.write(f"  hint: {error.hint}\n")
        return 1
    document = {"schema_version": SCHEMA_VERSION, "ducks": [vars(duck) for duck in found]}
    sys.stdout.write(json.dumps(document, indent=1) + "\n")
    return 0


def measure(
    connected: Callable[[], Transport],
    fleet: FleetConfig,
    kernel: KernelFile,
    regions: Sequence[Region],
    timeout_s: float,
) -> list[Findings]:
    """Findings of every duck, in slot order. Measured ducks are idle again afterwards."""
    found = [Findings(duck.name) for duck in fleet.ducks]
    timeout_ms = int(timeout_s * 1000)
    with connected() as transport, connected() as onlooker:
        facts = _greet(transport, found, timeout_ms)
        for region in regions:
            ready = _load(transport, fleet, kernel, _slice_of(region), facts, found)
            # Ducks with equally many cores are measured together: a call goes to a whole session.
            for cores in sorted({facts[index].core_count for index in ready}):
                group = [index for index in ready if facts[index].core_count == cores]
                _measure_group(transport, onlooker, region, group, cores, found)
        for index in facts:
            _give_back(transport, index, timeout_ms, found[index])
    return found


def _give_back(transport: Transport, index: int, timeout_ms: int, duck: Findings) -> None:
    """An empty weights region: the duck is idle, as it was found."""
    empty = wire.Reserve(region=wire.Region.WEIGHTS, flags=wire.RESERVE_FRESH, bytes=0)
    try:
        transport.request(index, wire.MessageType.RESERVE, bytes(empty), timeout_ms)
    except TransportError as error:
        duck.problem = duck.problem or error.message


def _greet(
    transport: Transport, found: Sequence[Findings], timeout_ms: int
) -> dict[int, DuckFacts]:
    """Facts of the ducks that answer and hold nothing; the others get their problem."""

    def ask(index: int) -> DuckFacts | None:
        try:
            facts = facts_of(transport.hello(index, timeout_ms).info)
        except HostError as error:  # its identity too: the others are measured all the same
            found[index].problem = error.message
            return None
        found[index].boot_id, found[index].cores = f"{facts.boot_id:016x}", facts.core_count
        if facts.state != wire.State.IDLE:
            state = wire.State(facts.state).name.lower()
            found[index].problem = f"it is {state}, not idle; it was left alone"
            return None
        return facts

    with ThreadPoolExecutor(len(found)) as pool:
        answers = list(pool.map(ask, range(len(found))))
    return {index: facts for index, facts in enumerate(answers) if facts is not None}


def _slice_of(region: Region) -> SliceConfig:
    """The region as the loader takes it: one piece."""
    try:
        data = region.file.read_bytes()
    except OSError as error:
        raise HostError(f"cannot read {region.file}: {error.strerror}") from error
    digest = hashlib.sha256(data).digest()
    piece = PieceConfig(region.file, None, 0, len(data), digest)
    return SliceConfig(0, 0, region.rows, len(data), digest, (piece,))


def _load(
    transport: Transport,
    fleet: FleetConfig,
    kernel: KernelFile,
    part: SliceConfig,
    facts: Mapping[int, DuckFacts],
    found: Sequence[Findings],
) -> list[int]:
    """Kernel and region into all ducks at once; the indexes of those that have them."""
    budget = PieceBudget(max(RESERVED_AT_ONCE_BYTES, part.region_bytes))

    def load(index: int) -> bool:
        if found[index].problem:
            return False
        try:
            loader = DuckLoader(transport, index, fleet.ducks[index], part, kernel, budget)
            loader.load(facts[index])
        except HostError as error:
            found[index].problem = error.message
            return False
        return True

    indexes = list(facts)
    with ThreadPoolExecutor(max(1, len(indexes))) as pool:
        loaded = list(pool.map(load, indexes))
    return [index for index, is_loaded in zip(indexes, loaded, strict=True) if is_loaded]


def _measure_group(
    transport: Transport,
    onlooker: Transport,
    region: Region,
    group: Sequence[int],
    cores: int,
    found: Sequence[Findings],
) -> None:
    """Figures of a group's ducks. Those that fail get their problem, the rest begins anew."""
    left = list(group)
    while left:  # each round measures all that are left, or has fewer in the next
        try:
            figures = _measure_together(transport, onlooker, region, left, cores)
        except TransportError as error:
            named = error.ducks or (error.duck,)
            failed = [index for index in left if index in named] or left
            for index in failed:
                found[index].problem = error.message
            left = [index for index in left if index not in failed]
            continue
        for index, (rates, formats) in zip(left, figures, strict=True):
            duck = found[index]
            duck.read_bytes_per_s = [max(pair) for pair in _paired(duck.read_bytes_per_s, rates)]
            duck.formats[region.fmt] = formats
        return


def _measure_together(
    transport: Transport, onlooker: Transport, region: Region, group: Sequence[int], cores: int
) -> list[tuple[list[float], dict[str, Any]]]:
    """Read rates by cores and the format's figures of each duck; no session is open afterwards."""
    request = wire.Open(
        flags=wire.OPEN_TAKEOVER,
        call_bytes_max=1 << 20,
        result_bytes_max=1 << 20,
        scratch_bytes=wire.experts_scratch_bytes(
            region.hidden, region.rows, 2, EXPERTS_PER_CALL, cores
        ),
        call_time_limit_ms=CALL_TIME_LIMIT_MS,
    )
    try:
        transport.session_open(group, request, 60_000)
        reads = [_read_rates(transport, region, group, count) for count in range(1, cores + 1)]
        times = _call_times(transport, region, group)
        bodies = [_body(onlooker, index) for index in group]
    finally:
        with contextlib.suppress(TransportError):  # a duck that is gone has nothing to close
            transport.session_close()
    return [
        (
            [rate[place] for rate in reads],
            {"body": bodies[place], "params_per_s": region.params_per_call / times[place]},
        )
        for place in range(len(group))
    ]


def _paired(old: Sequence[float], new: Sequence[float]) -> list[tuple[float, float]]:
    return list(zip(old or [0.0] * len(new), new, strict=True))


def _body(onlooker: Transport, index: int) -> str:
    """What the kernel chose, as the duck tells whoever asks: ``body int, ...``."""
    words = facts_of(onlooker.hello(index, 2000).info).kernel
    match = re.match(r"body (\w+)", words)
    return match[1] if match else words


def _read_rates(
    transport: Transport, region: Region, group: Sequence[int], cores: int
) -> list[float]:
    """Bytes per second of each duck reading the whole region with `cores` cores."""
    size = (region.file.stat().st_size - 4096) // 64 * 64
    message = bytes(
        wire.ExpertsRead(magic=wire.EXPERTS_READ_MAGIC, core_count=cores, offset=4096, bytes=size)
    )
    rounds = [_timed(transport, message, group) for _ in range(READS)]
    return [size / min(times) for times in zip(*rounds, strict=True)]


def _call_times(transport: Transport, region: Region, group: Sequence[int]) -> list[float]:
    """Seconds of a single-token call of the region's experts_per_call, in turn through all."""
    source = random.Random(region.hidden)
    rounds = []
    for turn in range(CALLS):
        first = turn * region.experts_per_call
        ids = [(first + place) % region.experts for place in range(region.experts_per_call)]
        rounds.append(_timed(transport, call_message(region.hidden, ids, source), group))
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def call_message(hidden: int, ids: Sequence[int], source: random.Random) -> bytes:
    """A CALL of one token (kernels/include/duck/experts.h) with equal routing weights."""
    count = len(ids)
    offset = wire.experts_activation_offset(1, count)
    header = wire.ExpertsCall(
        magic=wire.EXPERTS_CALL_MAGIC,
        token_count=1,
        top_k=count,
        hidden_size=hidden,
        activation_dtype=wire.Dtype.F32,
        result_dtype=wire.Dtype.F32,
        activation_offset=offset,
    )
    message = bytearray(offset)
    message[: len(bytes(header))] = bytes(header)
    struct.pack_into(f"<{count}H", message, len(bytes(header)), *ids)
    weights_at = wire.experts_weight_offset(1, count)
    struct.pack_into(f"<{count}f", message, weights_at, *([1.0 / count] * count))
    activations = array.array("f", (source.gauss(0, 1) for _ in range(hidden)))
    return bytes(message) + activations.tobytes()


def _timed(transport: Transport, message: bytes, group: Sequence[int]) -> list[float]:
    """Seconds in the kernel, of each duck, for one call."""
    before = [transport.duck_status(index).kernel_ns for index in group]
    buffer = array.array("B", message)
    address, size = buffer.buffer_info()
    ticket = transport.submit(address, size)
    try:
        transport.wait(ticket)
    finally:
        transport.release(ticket)
    after = [transport.duck_status(index).kernel_ns for index in group]
    return [max(late - early, 1) * 1e-9 for early, late in zip(before, after, strict=True)]


def _region(text: str) -> Region:
    try:
        fmt, rest = text.split("=", 1)
        file, shape = rest.rsplit(":", 1)
        hidden, rows, experts = (int(number) for number in shape.split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=FILE:HIDDENxROWSxEXPERTS") from None
    return Region(fmt, Path(file), hidden, rows, experts)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m host_runtime.bench.ducks")
    parser.add_argument("--fleet", type=Path, required=True, help="fleet file (JSON)")
    parser.add_argument("--library", type=Path, required=True, help="libduckhost.so")
    parser.add_argument("--kernel", type=Path, required=True, help="experts kernel (ELF)")
    parser.add_argument("--region", type=_region, action="append", required=True)
    parser.add_argument("--timeout", type=float, default=2.0, help="seconds for each answer")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
