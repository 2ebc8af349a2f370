"""Look at and change the pinned keys of a fleet's ducks; prints one JSON document.

    python -m host_runtime.fleet.trust --fleet FILE --library LIB [--timeout S]
                                       ls | forget NAME... | accept NAME...

``accept`` asks each named duck for its key and pins it, whatever was pinned before. Exit 0 when the
document is printed, 1 when it could not be done, 2 on wrong arguments (a name that is none, too),
4 when a duck does not answer. ``duckctl trust`` runs this.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from host_runtime.errors import HostError
from host_runtime.fleet.config import DUCKS_MAX, FleetConfig, load_fleet
from host_runtime.fleet.connect import connect
from host_runtime.fleet.pins import Pin, PinStore, fingerprint
from host_runtime.transport import TransportCode, TransportError, TransportOptions

SCHEMA_VERSION = 1
PINS_MAX = 4096  # ducks whose pins are looked after; only `accept` opens a transport
EXIT_FAILURE, EXIT_USAGE, EXIT_UNREACHABLE = 1, 2, 4


class UnknownNameError(HostError):
    """Neither a duck of the fleet nor a pinned one."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    options = _parse(arguments)
    try:
        is_asked = options.action == "accept"
        fleet = load_fleet(options.fleet, DUCKS_MAX if is_asked else PINS_MAX)
        store = PinStore(fleet.pins_file)
        names = _checked(fleet, store, options.names)
        if options.action == "forget":
            for name in names:
                store.forget(name)
        elif options.action == "accept":
            _accept(fleet, store, names, options)
        document = _document(fleet, store)
    except HostError as error:
        sys.stderr.write(f"error: {error.message}\n")
        if error.hint:
            sys.stderr.write(f"  hint: {error.hint}\n")
        return _exit_code(error)
    sys.stdout.write(json.dumps(document, indent=1) + "\n")
    return 0


def _exit_code(error: HostError) -> int:
    if isinstance(error, UnknownNameError):
        return EXIT_USAGE
    is_silence = isinstance(error, TransportError) and error.code is TransportCode.UNREACHABLE
    return EXIT_UNREACHABLE if is_silence else EXIT_FAILURE


def _accept(
    fleet: FleetConfig, store: PinStore, names: Sequence[str], options: argparse.Namespace
) -> None:
    timeout_ms = max(1, int(options.timeout * 1000))
    settings = TransportOptions(silence_ms=max(timeout_ms, 1000))
    with connect(fleet, options.library, settings, judged=False) as transport:
        for duck in fleet.ducks:
            if duck.name in names:
                greeting = transport.hello(duck.slot, timeout_ms)
                store.accept(duck.name, greeting.identity, greeting.info.boot_id)


def _checked(fleet: FleetConfig, store: PinStore, names: Sequence[str]) -> list[str]:
    """A pin may outlive its duck in the inventory; then it can still be forgotten."""
    known = [duck.name for duck in fleet.ducks]
    pinned = store.load()
    for name in names:
        if name not in known and name not in pinned:
            raise UnknownNameError(
                f"the fleet has no duck '{name}'", f"its ducks: {', '.join(known)}"
            )
    return list(names)


def _document(fleet: FleetConfig, store: PinStore) -> dict[str, Any]:
    pins = store.load()
    policies = {duck.name: duck.identity for duck in fleet.ducks}
    names = [*policies, *sorted(set(pins) - set(policies))]
    return {
        "schema_version": SCHEMA_VERSION,
        "pins_file": str(fleet.pins_file),
        "ducks": [_entry(name, policies.get(name), pins.get(name)) for name in names],
    }


def _entry(name: str, policy: str | None, pin: Pin | None) -> dict[str, Any]:
    return {
        "name": name,
        "policy": policy,
        "identity": pin.identity.hex() if pin else None,
        "fingerprint": fingerprint(pin.identity) if pin else None,
        "boot_id": f"{pin.boot_id:016x}" if pin else None,
        "events": [
            {
                "time_s": event.time_s,
                "what": event.what,
                "fingerprint": fingerprint(event.identity),
                "boot_id": f"{event.boot_id:016x}",
            }
            for event in (pin.events if pin else ())
        ],
    }


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m host_runtime.fleet.trust")
    parser.add_argument("--fleet", type=Path, required=True, help="fleet file (JSON)")
    parser.add_argument("--library", type=Path, required=True, help="libduckhost.so")
    parser.add_argument("--timeout", type=float, default=2.0, help="seconds for each duck")
    parser.add_argument("action", choices=("ls", "forget", "accept"))
    parser.add_argument("names", nargs="*", metavar="NAME")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
