"""Ask every duck of a fleet how it is, and print one JSON document.

    python -m host_runtime.fleet.probe --fleet FILE --library LIB [--timeout S] [--no-pin] [--stats]
                                       [--log DUCK]... [--reboot DUCK]...

Exit 0 whenever the document is printed, whatever the ducks answered; 1 when the probe itself could
not run; 2 on wrong arguments. It uses sessions of its own, so a serving host is not disturbed.
docs/reference/fleet.md lists the keys. Imports no torch: duckctl runs this for each `health`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from host_runtime import wire
from host_runtime.errors import HostError
from host_runtime.fleet.config import DuckConfig, FleetConfig, load_fleet
from host_runtime.fleet.connect import connect
from host_runtime.fleet.pins import IdentityError
from host_runtime.fleet.told import told_lines
from host_runtime.fleet.versions import DuckFacts, facts_of, feature_names
from host_runtime.transport import Transport, TransportCode, TransportError, TransportOptions

SCHEMA_VERSION = 1
LOG_REPLIES_MAX = 1024
SILENCE_MS_MIN = 1000  # must be longer than the transport's ping_ms; requests end at --timeout


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    options = _parse(arguments)
    try:
        fleet = load_fleet(options.fleet)
        _refuse_unknown(fleet, [*options.log, *options.reboot])
        timeout_ms = max(1, int(options.timeout * 1000))
        settings = TransportOptions(silence_ms=max(timeout_ms, SILENCE_MS_MIN))
        with connect(fleet, options.library, settings, remember=not options.no_pin) as transport:
            document = probe(transport, fleet, timeout_ms, options)
    except HostError as error:
        sys.stderr.write(f"error: {error.message}\n")
        if error.hint:
            sys.stderr.write(f"  hint: {error.hint}\n")
        return 1
    sys.stdout.write(json.dumps(document, indent=1) + "\n")
    return 0


def probe(
    transport: Transport, fleet: FleetConfig, timeout_ms: int, options: argparse.Namespace
) -> dict[str, Any]:
    """All ducks at once; the slowest one decides how long it takes."""

    def ask(index: int) -> dict[str, Any]:
        return _ask(transport, index, fleet.ducks[index], timeout_ms, options)

    with ThreadPoolExecutor(len(fleet.ducks)) as pool:
        ducks = list(pool.map(ask, range(len(fleet.ducks))))
    return {"schema_version": SCHEMA_VERSION, "build": transport.build, "ducks": ducks}


def _ask(
    transport: Transport,
    index: int,
    duck: DuckConfig,
    timeout_ms: int,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """One duck: what it says of itself, then what else was wanted of it."""
    answer: dict[str, Any] = {
        "name": duck.name,
        "endpoint": duck.endpoint,
        "address": duck.address,
        "port": duck.port,
        "reachable": False,
        "error": None,
        "stats": None,
        "round_trip_us": None,
        "answered_at": None,
        "identity": None,
        "identity_ok": None,
        "handshake_ms": None,
        **dict.fromkeys(_facts_json(facts_of(wire.Info()), transport.build)),
    }
    errors: list[str] = []

    def attempt(key: str, action: Callable[[], Any]) -> None:
        try:
            answer[key] = action()
        except TransportError as error:
            errors.append(error.message)

    try:
        greeting = transport.hello(index, timeout_ms)
    except IdentityError as error:
        answer["reachable"] = True  # something answers, and is not asked anything else
        answer["identity_ok"] = False
        answer["error"] = error.message
        return answer
    except TransportError as error:
        answer["reachable"] = error.code is TransportCode.VERSION  # it did answer
        answer["error"] = error.message
        return answer
    answer["answered_at"] = time.time()
    facts = facts_of(greeting.info)
    answer.update(
        _facts_json(facts, transport.build),
        round_trip_us=greeting.round_trip_ns / 1000,
        identity=greeting.identity.hex(),
        identity_ok=True,
        handshake_ms=transport.duck_status(index).handshake_ns / 1e6,
    )
    answer["reachable"] = True
    if facts.name != duck.name:
        errors.append(f"the duck at {duck.endpoint} calls itself '{facts.name}'")
    if options.stats:
        attempt("stats", lambda: _stats(transport, index, timeout_ms))
    if duck.name in options.log:
        attempt("log", lambda: _log(transport, index, timeout_ms))
    if duck.name in options.reboot:
        attempt("rebooted", lambda: _reboot(transport, index, timeout_ms))
    answer["error"] = "; ".join(errors) or None
    return answer


def _facts_json(facts: DuckFacts, host_build: str) -> dict[str, Any]:
    is_empty = facts.weights_id == bytes(len(facts.weights_id))
    return {
        "name_told": facts.name,
        "state": _state_name(facts.state),
        "protocol_version": facts.protocol_version,
        "build": facts.build,
        "build_ok": facts.build == host_build,
        "abi_version": facts.abi_version,
        "platform": facts.platform,
        "boot_id": f"{facts.boot_id:016x}",
        "cpu_model": facts.cpu_model,
        "cpu_features": feature_names(facts.cpu_features),
        "core_count": facts.core_count,
        "memory_bytes": facts.memory_bytes,
        "weight_bytes_max": facts.weight_bytes_max,
        "weights_id": None if is_empty else facts.weights_id.hex(),
        "huge_pages": facts.huge_pages,
        "poll_policy": facts.poll_policy,
        "temperature_c": facts.temperature_c,
        "mac_address": facts.mac_address,
        "link_mbps": facts.link_mbps,
        "mtu_bytes": facts.mtu_bytes,
        "uptime_s": facts.uptime_s,
        "kernel": facts.kernel,
        "nic_driver": facts.nic_driver or None,
        "nic_unproven": facts.nic_unproven,
    }


def _state_name(state: int) -> str:
    try:
        return wire.State(state).name.lower()
    except ValueError:
        return str(state)


def _stats(transport: Transport, index: int, timeout_ms: int) -> dict[str, int]:
    request = bytes(ctypes.sizeof(wire.Stats))
    _, reply = transport.request(index, wire.MessageType.STATS, request, timeout_ms)
    stats = wire.Stats.from_buffer_copy(reply)
    names = [field[0] for field in wire.Stats._fields_ if field[0] != "reserved"]
    return {name: int(getattr(stats, name)) for name in names}


def _log(transport: Transport, index: int, timeout_ms: int) -> str:
    """All that the duck keeps of its log, in as many replies as it takes."""
    header_bytes = ctypes.sizeof(wire.LogReply)
    text = b""
    since = 0
    for _ in range(LOG_REPLIES_MAX):
        request = bytes(wire.LogRequest(since=since))
        _, reply = transport.request(index, wire.MessageType.LOG, request, timeout_ms)
        header = wire.LogReply.from_buffer_copy(reply)
        text += reply[header_bytes : header_bytes + header.text_bytes]
        if not header.text_bytes or header.next <= since:
            break
        since = header.next
    return told_lines(text)


def _reboot(transport: Transport, index: int, timeout_ms: int) -> bool:
    request = bytes(ctypes.sizeof(wire.Done))
    transport.request(index, wire.MessageType.REBOOT, request, timeout_ms)
    return True


def _refuse_unknown(fleet: FleetConfig, names: Sequence[str]) -> None:
    known = [duck.name for duck in fleet.ducks]
    for name in names:
        if name not in known:
            raise HostError(f"the fleet has no duck '{name}'", f"its ducks: {', '.join(known)}")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m host_runtime.fleet.probe")
    parser.add_argument("--fleet", type=Path, required=True, help="fleet file (JSON)")
    parser.add_argument("--library", type=Path, required=True, help="libduckhost.so")
    parser.add_argument("--timeout", type=float, default=2.0, help="seconds for each answer")
    parser.add_argument("--no-pin", action="store_true", help="write no duck's key down")
    parser.add_argument("--stats", action="store_true", help="also read the ducks' counters")
    parser.add_argument("--log", action="append", default=[], metavar="DUCK")
    parser.add_argument("--reboot", action="append", default=[], metavar="DUCK")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
