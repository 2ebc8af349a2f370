"""``duckctl inventory``: checks and shows an inventory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from duckctl.console import print_json, print_table, talk, warn
from duckctl.errors import ExitCode
from duckctl.inventory import Domain, Duck, Fleet, load_inventory, select

app = typer.Typer(help="Check and show an inventory (Ansible YAML; docs/reference/inventory.md).")

INVENTORY = typer.Argument(Path("inventory/rack32.yml"), help="Inventory file.")
LIMIT = typer.Option("all", "--limit", help="Ducks, e.g. 'duck[01-08]', 'domain1,!duck03'.")
AS_JSON = typer.Option(False, "--json", help="Print JSON.")


@app.command()
def check(
    inventory: Path = INVENTORY,
    strict: bool = typer.Option(False, "--strict", help="Warnings are mistakes (exit code 1)."),
    as_json: bool = AS_JSON,
) -> None:
    """Check an inventory; every mistake is named with its line. Exit code 2 on mistakes.

    \b
    Examples:
      duckctl inventory check inventory/rack32.yml
      duckctl inventory check --strict --json my-rack.yml
    """
    fleet = load_inventory(inventory)
    for text in fleet.warnings:
        warn(text)
    if as_json:
        print_json(
            {
                "fleet": fleet.name,
                "ducks": len(fleet.ducks),
                "domains": len(fleet.domains),
                "warnings": list(fleet.warnings),
            }
        )
    else:
        talk(f"{inventory}: {len(fleet.ducks)} ducks in {len(fleet.domains)} domains, no mistakes")
    if strict and fleet.warnings:
        raise typer.Exit(ExitCode.FAILURE)


@app.command()
def show(inventory: Path = INVENTORY, limit: str = LIMIT, as_json: bool = AS_JSON) -> None:
    """Show the ducks of an inventory with all defaults filled in.

    \b
    Examples:
      duckctl inventory show inventory/rack32.yml
      duckctl inventory show --limit 'domain1,!duck03' --json
    """
    fleet = load_inventory(inventory)
    ducks = select(fleet, limit)
    if as_json:
        print_json(_document(fleet, ducks))
        return
    domains = [
        (
            d.name,
            d.subnet,
            d.host_address,
            d.host_nic or "-",
            d.host_pci or "-",
            d.mtu,
            d.call_address or "unicast",
        )
        for d in fleet.domains
    ]
    columns = ("domain", "subnet", "host address", "host NIC", "PCI", "MTU>", "calls to")
    host = f", host {fleet.host.name} ({fleet.host.gpu or 'no GPU named'})" if fleet.host else ""
    print_table(f"fleet {fleet.name}{host}", columns, domains)
    rows = [
        (
            d.slot,
            d.name,
            d.domain.name,
            f"{d.address}:{d.port}",
            d.mac or "-",
            d.image,
            d.cores or "-",
            f"{d.memory_gib} GiB" if d.memory_gib else "-",
            f"{d.link_mbps} Mb/s" if d.link_mbps else "-",
            " > ".join(power.backend for power in d.power) or "-",
        )
        for d in ducks
    ]
    names = ("slot>", "duck", "domain", "address", "MAC", "image", "cores>", "memory>", "link>")
    print_table("", (*names, "power"), rows)


def _document(fleet: Fleet, ducks: list[Duck]) -> dict[str, Any]:
    return {
        "name": fleet.name,
        "key_file": str(fleet.key_file),
        "host": {"name": fleet.host.name, "gpu": fleet.host.gpu} if fleet.host else None,
        "domains": [_domain(domain) for domain in fleet.domains],
        "ducks": [
            {
                "name": duck.name,
                "slot": duck.slot,
                "domain": duck.domain.name,
                "address": str(duck.address),
                "port": duck.port,
                "mac": duck.mac,
                "image": duck.image,
                "cores": duck.cores,
                "memory_gib": duck.memory_gib,
                "link_mbps": duck.link_mbps,
                "power": [{"backend": p.backend, **p.options} for p in duck.power],
            }
            for duck in ducks
        ],
        "groups": {name: list(members) for name, members in fleet.groups.items()},
    }


def _domain(domain: Domain) -> dict[str, Any]:
    return {
        "name": domain.name,
        "subnet": str(domain.subnet),
        "host_address": str(domain.host_address),
        "host_nic": domain.host_nic,
        "host_pci": domain.host_pci,
        "host_mac": domain.host_mac,
        "mtu": domain.mtu,
        "dispatch": domain.dispatch,
        "boot": domain.boot,
        "call_address": str(domain.call_address) if domain.call_address else None,
    }
