"""Fleet -> the JSON fleet file in which host_runtime reads it (docs/reference/fleet.md)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from duckctl.errors import UsageError
from duckctl.inventory import Domain, Duck, Fleet
from duckctl.keys import pins_path

SCHEMA_VERSION = 1
DUCKS_MAX = 64  # of one host transport, so of one fleet file (DUCKHOST_DUCKS_MAX)


def in_batches(ducks: Sequence[Duck]) -> list[Sequence[Duck]]:
    """As many ducks as one fleet file may name, in their order."""
    return [ducks[first : first + DUCKS_MAX] for first in range(0, len(ducks), DUCKS_MAX)]


def fleet_document(fleet: Fleet, ducks: Sequence[Duck] | None = None) -> dict[str, Any]:
    """The fleet file's content; with ``ducks``, only those, renumbered in slot order."""
    chosen = fleet.ducks if ducks is None else sorted(ducks, key=lambda duck: duck.slot)
    used = {duck.domain.name for duck in chosen}
    return {
        "schema_version": SCHEMA_VERSION,
        "name": fleet.name,
        "key_file": str(fleet.key_file),
        "pins_file": str(pins_path(fleet.key_file)),
        "domains": [
            {
                "name": domain.name,
                "bind_address": str(domain.host_address),
                "call_address": str(domain.call_address) if domain.call_address else None,
                "mtu": domain.mtu,
                "device": _device(domain),
                "cpu": domain.cpu,
            }
            for domain in fleet.domains
            if domain.name in used
        ],
        "ducks": [
            {
                "name": duck.name,
                "domain": duck.domain.name,
                "address": str(duck.address),
                "port": duck.port,
                "slot": slot,
                "identity": duck.identity,
            }
            for slot, duck in enumerate(chosen)
        ],
    }


def _device(domain: Domain) -> str | None:
    """The DPDK device of a domain; ``domain_device: pci`` means the one of ``domain_host_pci``."""
    if domain.device != "pci":
        return domain.device
    if domain.host_pci is None:
        raise UsageError(
            f"{domain.name}: domain_device is pci, and domain_host_pci is missing",
            "give the NIC's PCI address: lspci -D | grep Ethernet",
        )
    return domain.host_pci


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Writes a private JSON file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=2, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(descriptor)
    temporary.replace(path)
