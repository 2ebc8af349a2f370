"""From a fleet file to an open transport."""

from __future__ import annotations

from pathlib import Path

from host_runtime.fleet.config import FleetConfig, read_key
from host_runtime.fleet.pins import PinStore
from host_runtime.fleet.told import told_text
from host_runtime.transport import (
    DomainEndpoint,
    DuckEndpoint,
    Greeting,
    Transport,
    TransportOptions,
)


def connect(
    fleet: FleetConfig,
    library: Path,
    options: TransportOptions,
    *,
    judged: bool = True,
    remember: bool = True,
) -> Transport:
    """Open the host transport on all ducks of a fleet; nothing is sent yet.

    Every duck's key is checked against the fleet's pins; ``judged`` False talks to any key,
    ``remember`` False writes no new pin down.
    """
    domains = [
        DomainEndpoint(
            domain.name,
            domain.bind_address,
            domain.call_address,
            domain.mtu,
            domain.device,
            domain.cpu,
        )
        for domain in fleet.domains
    ]
    ducks = [
        DuckEndpoint(duck.name, duck.address, duck.port, fleet.domain_index(duck))
        for duck in fleet.ducks
    ]
    store = PinStore(fleet.pins_file)

    def check(index: int, greeting: Greeting) -> None:
        duck = fleet.ducks[index]
        # The key of a duck that calls itself otherwise is not worth remembering: it is refused
        # anyhow, and the right one must be the first.
        is_itself = remember and told_text(greeting.info.name) == duck.name
        store.check(
            duck.name, greeting.identity, greeting.info.boot_id, duck.identity, keep=is_itself
        )

    key = read_key(fleet.key_file)
    return Transport(library, domains, ducks, key, options, check if judged else None)
