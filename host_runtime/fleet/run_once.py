"""Run one kernel once on one duck, and print one JSON document with the verdict.

    python -m host_runtime.fleet.run_once --fleet FILE --library LIB --kernel ELF
        [--input FILE] [--output FILE] [--weights FILE | --no-weights] [--cores N]
        [--time-limit-ms MS] [--memory-limit BYTES] [--output-limit BYTES]

The fleet file has the one duck. Exit 0 whenever there is a verdict, whatever it is; 1 when the run
did not come about; 2 on wrong arguments. docs/reference/duckos-sessions.md lists the keys.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from host_runtime import wire
from host_runtime.errors import FileFormatError, HostError
from host_runtime.fleet.config import load_fleet
from host_runtime.fleet.connect import connect
from host_runtime.fleet.kernel_file import KernelFile, load_kernel_file, memory_span
from host_runtime.fleet.told import told_text
from host_runtime.fleet.versions import DuckFacts, facts_of
from host_runtime.transport import (
    DuckFaultError,
    DuckRefusedError,
    Transport,
    TransportError,
    TransportOptions,
)

SCHEMA_VERSION = 1
DUCK = 0  # the fleet file's only one
REQUEST_MS = 5000
OPEN_MS = 70_000  # a duck gives a kernel up to 60 s
HASH_BYTES_PER_MS_MIN = 20_000
PAGE_BYTES = 4096
SCRATCH_BYTES = 256 << 20  # without --memory-limit, as much of it as the duck can spare
SCRATCH_BYTES_MAX = 4 << 30  # images/core/core.h
TIME_LIMIT_MS_MAX = 600_000  # the same
CORE_UNKNOWN = 0xFFFFFFFF
OUTSIDE = 0xFFFFFFFFFFFFFFFF  # an instruction that is not the kernel's
LIMIT_MARGIN_MS = 10_000  # the duck ends the run; this is for the way there and back

BAD_KERNEL = (wire.Status.ERR_BAD_ELF, wire.Status.ERR_ABI, wire.Status.ERR_UNSUPPORTED)
VERDICT_OF_STATUS = {
    wire.Status.ERR_TIME_LIMIT: "time-limit",
    wire.Status.ERR_MEMORY_LIMIT: "memory-limit",
    wire.Status.ERR_KERNEL_FAULT: "fault",
    wire.Status.ERR_KERNEL_REFUSED: "refused",
    wire.Status.ERR_BAD_REQUEST: "refused",
}


@dataclass(frozen=True)
class Wanted:
    """What to run, in which limits."""

    kernel: KernelFile
    data: bytes
    weights: bytes | None  # None: what the duck has stays
    cores: int
    time_limit_ms: int
    memory_limit: int  # 0: none
    output_limit: int


@dataclass(frozen=True)
class Memory:
    """Where the bytes of a run go. ``fixed`` is all but scratch."""

    weights: int
    image: int
    stacks: int
    calls: int

    @property
    def fixed(self) -> int:
        return self.weights + self.image + self.stacks + self.calls


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    options = _parse(arguments)
    try:
        wanted = _read(options)
        fleet = load_fleet(options.fleet)
        call_ms = wanted.time_limit_ms + LIMIT_MARGIN_MS
        with connect(fleet, options.library, TransportOptions(call_ms=call_ms)) as transport:
            document, output = run_once(transport, wanted)
        if options.output is not None and output is not None:
            options.output.write_bytes(output)
    except HostError as error:
        sys.stderr.write(f"error: {error.message}\n")
        if error.hint:
            sys.stderr.write(f"  hint: {error.hint}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"error: {error.filename}: {error.strerror}\n")
        return 1
    sys.stdout.write(json.dumps(document, indent=1) + "\n")
    return 0


def run_once(transport: Transport, wanted: Wanted) -> tuple[dict[str, Any], bytes | None]:
    """The verdict's document, and the output when the kernel finished."""
    info = transport.hello(DUCK, REQUEST_MS).info
    facts = facts_of(info)
    memory = memory_of(wanted, facts, len(wanted.weights or b""))
    scratch = scratch_bytes(wanted, memory)
    load(transport, facts, wanted)
    output, error = None, None
    try:
        _open(transport, wanted, memory, scratch)
        output = _call(transport, wanted.data)
    except (DuckFaultError, DuckRefusedError) as told:
        error = told
    try:
        document = describe(ask_usage(transport), error)
    finally:
        transport.session_close()
    document |= {
        "schema_version": SCHEMA_VERSION,
        "duck": facts.name,
        "platform": facts.platform,
        "kernel": wanted.kernel.name,
        "cores": wanted.cores or facts.core_count,
        "input_bytes": len(wanted.data),
        "output_bytes": None if output is None else len(output),
        "output_sha256": None if output is None else hashlib.sha256(output).hexdigest(),
        "time_limit_ms": wanted.time_limit_ms,
        "memory_limit_bytes": wanted.memory_limit or None,
    }
    return document, output


# ---- limits --------------------------------------------------------------------------------------
def _page_up(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def memory_of(wanted: Wanted, facts: DuckFacts, weights_bytes: int) -> Memory:
    """All that a run takes of the duck's memory besides scratch."""
    input_bytes = _page_up(max(1, len(wanted.data)))
    return Memory(
        weights=weights_bytes,
        image=memory_span(wanted.kernel.data),
        stacks=(wanted.cores or facts.core_count) * wire.KERNEL_STACK_BYTES,
        calls=wire.KERNEL_SLOTS * (input_bytes + _page_up(wanted.output_limit)),
    )


def scratch_bytes(wanted: Wanted, memory: Memory) -> int:
    """What the limit leaves for scratch."""
    if wanted.memory_limit == 0:
        return SCRATCH_BYTES
    left = wanted.memory_limit - memory.fixed
    if left < PAGE_BYTES:
        raise HostError(
            f"a memory limit of {wanted.memory_limit} bytes is too small: weights {memory.weights},"
            f" kernel image {memory.image}, stacks {memory.stacks} and call buffers"
            f" {memory.calls} need {memory.fixed + PAGE_BYTES}",
            "raise --memory-limit, or lower --output-limit or --cores",
        )
    return min(left // PAGE_BYTES * PAGE_BYTES, SCRATCH_BYTES_MAX)


# ---- the duck ------------------------------------------------------------------------------------
def load(transport: Transport, facts: DuckFacts, wanted: Wanted) -> None:
    """Kernel and, where asked for, weights into the duck's memory."""
    if wanted.weights is not None:
        _load_region(transport, wire.Region.WEIGHTS, wanted.weights)
    elif facts.state == wire.State.LOADING:
        raise HostError(
            f"{facts.name} is being loaded by another host, or a load was broken off",
            "wait for it, or let go what is there with --no-weights",
        )
    _load_region(transport, wire.Region.KERNEL, wanted.kernel.data)


def _load_region(transport: Transport, region: wire.Region, data: bytes) -> None:
    reserve = wire.Reserve(region=region, flags=wire.RESERVE_FRESH, bytes=len(data))
    transport.request(DUCK, wire.MessageType.RESERVE, bytes(reserve), REQUEST_MS)
    if not data:
        return
    transport.write(DUCK, region, 0, data)
    digest = hashlib.sha256(data).digest()
    commit = wire.Commit(region=region, flags=wire.COMMIT_LAST, offset=0, bytes=len(data))
    commit.sha256[:] = list(digest)
    commit.set_id[:] = list(digest)
    timeout_ms = REQUEST_MS + len(data) // HASH_BYTES_PER_MS_MIN
    transport.request(DUCK, wire.MessageType.COMMIT, bytes(commit), timeout_ms)


def _open(transport: Transport, wanted: Wanted, memory: Memory, scratch: int) -> None:
    def attempt(size: int) -> None:
        request = wire.Open(
            flags=wire.OPEN_ONE_SHOT,
            core_count=wanted.cores,
            call_bytes_max=max(1, len(wanted.data)),
            result_bytes_max=wanted.output_limit,
            scratch_bytes=size,
            call_time_limit_ms=wanted.time_limit_ms,
        )
        request.kernel_id[:] = list(wanted.kernel.sha256)
        if wanted.weights:
            request.weights_id[:] = list(hashlib.sha256(wanted.weights).digest())
        transport.session_open([DUCK], request, OPEN_MS)

    try:
        attempt(scratch)
    except DuckRefusedError as error:
        left = (error.value - memory.calls) // PAGE_BYTES * PAGE_BYTES
        can_do_with_less = wanted.memory_limit == 0 and left >= PAGE_BYTES
        if error.status != wire.Status.ERR_NO_MEMORY or not can_do_with_less:
            raise
        attempt(left)


def _call(transport: Transport, data: bytes) -> bytes:
    buffer = ctypes.create_string_buffer(data, max(1, len(data)))
    ticket = transport.submit(ctypes.addressof(buffer), len(data))
    try:
        transport.wait(ticket)
        return transport.result(ticket, DUCK)
    finally:
        transport.release(ticket)


def ask_usage(transport: Transport) -> wire.Usage:
    request = bytes(ctypes.sizeof(wire.Usage))
    _, reply = transport.request(DUCK, wire.MessageType.USAGE, request, REQUEST_MS)
    return wire.Usage.from_buffer_copy(reply)


# ---- the verdict ---------------------------------------------------------------------------------
def describe(usage: wire.Usage, error: TransportError | None) -> dict[str, Any]:
    """Verdict and figures. Raises ``error`` when it says that the run did not come about."""
    fault = usage.fault
    has_fault = usage.state == wire.UsageState.FAULTED
    return {
        "verdict": verdict_of(error),
        "text": _text(usage, error),
        "fault_kind": wire.FaultKind(fault.fault_kind).name.lower() if has_fault else None,
        "core": fault.core if has_fault and fault.core != CORE_UNKNOWN else None,
        "address": fault.address if has_fault else None,
        "instruction": (fault.instruction if has_fault and fault.instruction != OUTSIDE else None),
        "time_ns": usage.wall_ns,
        "cycles": usage.cycles,
        "tsc_hz": usage.tsc_hz or None,
        "instructions": usage.instructions or None,
        "memory_peak_bytes": usage.memory_peak_bytes or None,
    }


def verdict_of(error: TransportError | None) -> str:
    """finished, refused, bad-kernel, time-limit, memory-limit or fault."""
    if error is None:
        return "finished"
    status = wire.Status(error.status)
    if isinstance(error, DuckRefusedError):
        if status in BAD_KERNEL:
            return "bad-kernel"
        raise error
    if status not in VERDICT_OF_STATUS:
        raise error
    return VERDICT_OF_STATUS[status]


def _text(usage: wire.Usage, error: TransportError | None) -> str:
    if error is None:
        return ""
    if usage.state == wire.UsageState.FAULTED:
        return told_text(usage.fault.text)
    return error.message


# ---- arguments -----------------------------------------------------------------------------------
def _read(options: argparse.Namespace) -> Wanted:
    data = options.input.read_bytes() if options.input is not None else b""
    if len(data) > wire.WIRE_CALL_BYTES_MAX:
        raise FileFormatError(
            f"{options.input}: {len(data)} bytes, an input has at most {wire.WIRE_CALL_BYTES_MAX}"
        )
    weights = options.weights.read_bytes() if options.weights is not None else None
    return Wanted(
        kernel=load_kernel_file(options.kernel),
        data=data,
        weights=b"" if options.no_weights else weights,
        cores=options.cores,
        time_limit_ms=options.time_limit_ms,
        memory_limit=options.memory_limit,
        output_limit=options.output_limit,
    )


def _between(low: int, high: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{value}: expected {low} to {high}")
        return value

    return number


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m host_runtime.fleet.run_once")
    for name in ("fleet", "library", "kernel"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--input", type=Path)
    parser.add_argument("--output", type=Path)
    weights = parser.add_mutually_exclusive_group()
    weights.add_argument("--weights", type=Path)
    weights.add_argument("--no-weights", action="store_true")
    parser.add_argument("--cores", type=_between(0, wire.KERNEL_CORES_MAX), default=0)
    limit = _between(1, TIME_LIMIT_MS_MAX)
    parser.add_argument("--time-limit-ms", type=limit, default=10_000)
    parser.add_argument("--memory-limit", type=_between(0, 1 << 40), default=0)
    output = _between(1, wire.WIRE_CALL_BYTES_MAX)
    parser.add_argument("--output-limit", type=output, default=1 << 20)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
