"""``duckctl discover``: boxes that asked for an address and that no inventory names."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from duckctl.console import print_json, print_table, talk
from duckctl.inventory_choice import choose_inventory
from duckctl.lifecycle.boot_log import listen, unknown_cards
from duckctl.lifecycle.report import age
from duckctl.lifecycle.store import Sighting, open_to_read
from duckctl.provision.adoption import unusable_card

app = typer.Typer()


@app.command()
def discover(
    inventory: Path | None = typer.Option(
        None, "--inventory", help="Inventory file.  [default: the lab's]"
    ),
    forget: bool = typer.Option(False, "--forget", help="Empty the list first."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """List network cards that asked this host for an address and that no duck has.

    Switch a new box on, let it boot from the network, and it appears here.

    \b
    Examples:
      duckctl discover --inventory rack.yml
      duckctl discover --json | jq -r '.cards[].mac'
      duckctl adopt a8:b8:e0:21:01:0b --name duck05 --inventory rack.yml
    """
    fleet = choose_inventory(inventory)
    with open_to_read(fleet, insist=forget) as store:
        listen(fleet, store)
        if forget:
            for sighting in store.sightings():
                store.unsight(sighting.mac)
        known = {duck.mac: duck.name for duck in fleet.ducks if duck.mac}
        cards = unknown_cards(store, known)
    if as_json:
        print_json({"fleet": fleet.name, "cards": [_document(card) for card in cards]})
        return
    now_s = time.time()
    if cards:
        print_table(
            "", ("mac", "domain", "asked>", "last", "detail"), [_row(c, now_s) for c in cards]
        )
        talk(f"take one in: duckctl adopt {cards[0].mac} --name NAME --inventory {fleet.path}")
    else:
        talk("no unknown box has asked for an address")


def _row(card: Sighting, now_s: float) -> tuple[object, ...]:
    note = unusable_card(card.mac)
    detail = "; ".join(part for part in (card.detail, note) if part)
    last = f"{age(now_s - card.last_s)} ago"
    return (card.mac, card.place or "-", card.count, last, detail or "-")


def _document(card: Sighting) -> dict[str, object]:
    return {
        "mac": card.mac,
        "domain": card.place or None,
        "first": card.first_s,
        "last": card.last_s,
        "count": card.count,
        "detail": card.detail or None,
        "problem": unusable_card(card.mac) or None,
    }
