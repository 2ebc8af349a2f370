"""``duckctl adopt``: a box becomes a duck."""

from __future__ import annotations

import time
from ipaddress import IPv4Address
from pathlib import Path

import typer

from duckctl import inventory_fields as fields
from duckctl.console import print_json, talk, warn
from duckctl.errors import UsageError
from duckctl.inventory import Fleet
from duckctl.inventory_choice import choose_inventory
from duckctl.lifecycle.boot_log import listen
from duckctl.lifecycle.machine import Event, Kind
from duckctl.lifecycle.store import open_store
from duckctl.provision.adoption import (
    NewDuck,
    adopt,
    choose_domain,
    free_address,
    next_slot,
    read_text,
    unusable_card,
)

app = typer.Typer()


@app.command(name="adopt")
def adopt_command(
    mac: str = typer.Argument(help="MAC address, as `duckctl discover` shows it."),
    name: str = typer.Option(..., "--name", help="Its name: a new one, or a duck without a MAC."),
    domain: str | None = typer.Option(
        None, "--domain", help="Domain.  [default: where the card was seen]"
    ),
    address: str | None = typer.Option(
        None, "--address", help="IPv4 address.  [default: the next free one]"
    ),
    force: bool = typer.Option(False, "--force", help="Also a MAC that other cards may share."),
    inventory: Path | None = typer.Option(
        None, "--inventory", help="Inventory file.  [default: the lab's]"
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Enter a box into the inventory; comments and order of the file stay.

    A name, MAC or address that a duck has already is refused and leaves the file as it was.

    \b
    Examples:
      duckctl adopt a8:b8:e0:21:01:0b --name duck05 --inventory rack.yml
      duckctl adopt a8:b8:e0:21:01:0b --name duck05 --domain domain2 --address 10.21.2.15
    """
    fleet = choose_inventory(inventory)
    card = _read_mac(mac, force)
    _refuse_known(fleet, card)
    wanted = _read_address(address)
    with open_store(fleet) as store:
        listen(fleet, store)
        seen = {sighting.mac: sighting for sighting in store.sightings()}.get(card)
        standing = next((duck for duck in fleet.ducks if duck.name == name), None)
        if standing is not None and domain not in (None, standing.domain.name):
            raise UsageError(f"{name} stands in {standing.domain.name}, not in {domain}")
        if standing is not None and wanted not in (None, standing.address):
            raise UsageError(
                f"{name} stands in {fleet.path} with the address {standing.address}, not {wanted}",
                "leave --address out, or change the address in the file first",
            )
        if standing is not None:
            place, own = standing.domain, standing.address
        else:
            place = choose_domain(fleet, domain, seen.place if seen else "")
            own = wanted or free_address(fleet, place)
        new = NewDuck(name, card, place.name, own, next_slot(fleet, read_text(fleet.path)))
        changed = adopt(fleet.path, new)
        store.unsight(card)
        history = [Event(Kind.DISCOVER, seen.first_s, seen.detail)] if seen else []
        history.append(Event(Kind.REGISTER, time.time(), f"adopted {card}"))
        store.record_all([(name, event) for event in history])
    if seen is None:
        warn(f"{card} has not asked this host for an address so far")
    duck = next(duck for duck in changed.ducks if duck.name == name)
    if as_json:
        print_json({"name": name, "mac": card, "domain": place.name, "address": str(duck.address)})
    talk(f"{name} is in {fleet.path}: {card}, {place.name}, {duck.address}, slot {duck.slot}")
    talk(f"bring it up: duckctl provision {name} --inventory {fleet.path}")


def _read_mac(text: str, force: bool) -> str:
    mac = text.lower().replace("-", ":")
    if not fields.MAC.fullmatch(mac):
        raise UsageError(f"'{text}' is not a MAC address such as a8:b8:e0:00:01:0b")
    problem = unusable_card(mac)
    if problem and not force:
        raise UsageError(f"{mac}: {problem}", "adopt the card of another port, or use --force")
    return mac


def _read_address(text: str | None) -> IPv4Address | None:
    try:
        return IPv4Address(text) if text is not None else None
    except ValueError:
        raise UsageError(f"--address '{text}' is not an IPv4 address such as 10.21.1.15") from None


def _refuse_known(fleet: Fleet, mac: str) -> None:
    for duck in fleet.ducks:
        if duck.mac == mac:
            raise UsageError(f"{mac} is {duck.name}'s already ({fleet.path} line {duck.line})")
