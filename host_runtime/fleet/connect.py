"""From a fleet file to an open transport."""

from __future__ import annotations

from pathlib import Path

from host_runtime.fleet.config import FleetConfig, read_key
from host_runtime.transport import DomainEndpoint, DuckEndpoint, Transport, TransportOptions


def connect(fleet: FleetConfig, library: Path, options: TransportOptions) -> Transport:
    """Open the host transport on all ducks of a fleet; nothing is sent yet."""
    domains = [
        DomainEndpoint(domain.name, domain.bind_address, domain.call_address, domain.mtu)
        for domain in fleet.domains
    ]
    ducks = [
        DuckEndpoint(duck.name, duck.address, duck.port, fleet.domain_index(duck))
        for duck in fleet.ducks
    ]
    return Transport(library, domains, ducks, read_key(fleet.key_file), options)
