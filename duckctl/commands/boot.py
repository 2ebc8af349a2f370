"""``duckctl boot``: network boot in the foreground, its files, and what ducks boot next."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, get_args

import typer

from duckctl.boot.plan import BootPolicy, Mode, Unknown, boot_paths, plan_boot
from duckctl.console import plain, print_json, print_table, talk, warn
from duckctl.errors import UsageError
from duckctl.image.manifest import OWN_DISK, build_command, image_dir
from duckctl.inventory import select
from duckctl.inventory_choice import choose_inventory

if TYPE_CHECKING:
    from duckctl.boot.events import BootEvent
    from duckctl.boot.watch import Finding

app = typer.Typer(help="Serve network boot (DHCP, TFTP, HTTP), and say what ducks boot next.")

INVENTORY = typer.Option(None, "--inventory", help="Inventory file.  [default: the lab's]")
MODE = typer.Option(None, "--mode", help="dhcp, proxy or off for all domains.")
UNKNOWN = typer.Option(None, "--unknown", help="discover, boot or ignore boxes that no duck is.")
HTTP_PORT = typer.Option(80, "--http-port", min=1, max=65535, help="Port of the HTTP server.")
PATTERN = typer.Argument(help="Ducks, e.g. duck03 or 'duck[01-08]'.")
AS_JSON = typer.Option(False, "--json", help="Print JSON.")


def _policy(mode: str | None, unknown: str | None, http_port: int) -> BootPolicy:
    if mode is not None and mode not in get_args(Mode):
        raise typer.BadParameter("expected dhcp, proxy or off", param_hint="--mode")
    if unknown is not None and unknown not in get_args(Unknown):
        raise typer.BadParameter("expected discover, boot or ignore", param_hint="--unknown")
    return BootPolicy(
        mode=cast("Mode | None", mode),
        unknown=cast("Unknown | None", unknown),
        http_port=http_port,
    )


def _clock_text(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def _event_text(event: BootEvent) -> str:
    who = event.duck or event.mac or event.address or "?"
    parts = [event.kind, event.file or "", event.text]
    if event.arch is not None:
        parts.insert(1, f"arch {event.arch}")
    return plain(f"{_clock_text(event.time)} {who}: {' '.join(part for part in parts if part)}")


def _tell_event(event: BootEvent) -> None:
    talk(_event_text(event))


def _tell_finding(finding: Finding) -> None:
    who = finding.duck or finding.mac or finding.domain or ""
    warn(f"{_clock_text(finding.time)} {who}: {finding.text}")


@app.command()
def serve(
    inventory: Path | None = INVENTORY,
    mode: str | None = MODE,
    unknown: str | None = UNKNOWN,
    http_port: int = HTTP_PORT,
) -> None:
    """Serve network boot until Ctrl-C: dnsmasq for DHCP and TFTP, and our own HTTP server.

    Changes of the inventory, the images and the intents are taken over while it runs. A duck that
    loops is served no boot file any more until it says hello or `duckctl boot clear`.

    \b
    Examples:
      duckctl boot serve --inventory inventory/rack32.yml
      duckctl boot serve --mode proxy --http-port 8080
    """
    from duckctl.boot.service import BootService

    plan = plan_boot(choose_inventory(inventory), _policy(mode, unknown, http_port))
    for duck in plan.fleet.ducks:
        if duck.mac is None:
            warn(f"{duck.name} has no duck_mac: it cannot boot from the network")
    missing = {plan.image_name_of(duck) for duck in plan.fleet.ducks} - set(plan.images)
    for name in sorted(missing):
        warn(f"image '{name}' is not built; its ducks get an address only")
    service = BootService(plan, _tell_event, _tell_finding)
    service.run(lambda: talk(f"serving network boot for {plan.fleet.name}; Ctrl-C ends it"))


@app.command()
def config(
    inventory: Path | None = INVENTORY,
    mode: str | None = MODE,
    unknown: str | None = UNKNOWN,
    http_port: int = HTTP_PORT,
) -> None:
    """Print dnsmasq's configuration and reservations; nothing is written or started.

    \b
    Examples:
      duckctl boot config --inventory inventory/rack32.yml
      duckctl boot config --mode proxy
    """
    import sys

    from duckctl.boot.dnsmasq import render_config, render_hosts

    plan = plan_boot(choose_inventory(inventory), _policy(mode, unknown, http_port))
    sys.stdout.write(render_config(plan))
    sys.stdout.write(f"\n# {plan.paths.hosts}\n")
    sys.stdout.writelines(f"# {line}\n" for line in render_hosts(plan).splitlines())


@app.command("set")
def set_command(
    pattern: str = PATTERN,
    target: str = typer.Argument(help="local (own disk) or the name of an image."),
    once: bool = typer.Option(False, "--once", help="Only until its next boot says hello."),
    inventory: Path | None = INVENTORY,
    as_json: bool = AS_JSON,
) -> None:
    """Say what ducks boot next time, for good or once.

    \b
    Examples:
      duckctl boot set duck03 duckos --once
      duckctl boot set 'duck[01-08]' local
    """
    from duckctl.boot.intents import Intents

    fleet = choose_inventory(inventory)
    plan = plan_boot(fleet)
    if target != OWN_DISK and target not in plan.images:
        image_dir(fleet.path.parent, target)  # refuses what is no name of an image
        known = ", ".join(plan.images) or "none"
        raise UsageError(
            f"there is no image '{target}' (there are: {known})",
            f"build it: {build_command(target)}",
        )
    intents = Intents(boot_paths(fleet).intents)
    ducks = select(fleet, pattern)
    for duck in ducks:
        if target == OWN_DISK:
            intents.set_local(duck.name, once)
        else:
            intents.set_image(duck.name, target, once)
    if as_json:
        print_json({"target": target, "once": once, "ducks": [duck.name for duck in ducks]})
        return
    how = "once" if once else "until it is changed"
    talk(f"{len(ducks)} ducks boot '{target}' {how}")


@app.command()
def clear(
    pattern: str = PATTERN, inventory: Path | None = INVENTORY, as_json: bool = AS_JSON
) -> None:
    """Let ducks follow the inventory again; ends a hold of the loop detector too.

    \b
    Examples:
      duckctl boot clear duck03
      duckctl boot clear all
    """
    from duckctl.boot.intents import Intents

    fleet = choose_inventory(inventory)
    intents = Intents(boot_paths(fleet).intents)
    changed = [duck.name for duck in select(fleet, pattern) if intents.clear(duck.name)]
    if as_json:
        print_json({"cleared": changed})
        return
    talk(f"cleared: {', '.join(changed)}" if changed else "there was nothing to clear")


@app.command("log")
def log_command(
    pattern: str = typer.Argument("", help="Ducks; default: all boxes, unknown ones too."),
    follow: bool = typer.Option(False, "--follow", "-f", help="Go on with what comes."),
    inventory: Path | None = INVENTORY,
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object a line."),
) -> None:
    """Show what boxes asked for and were answered, from the logs of DHCP, TFTP and HTTP.

    \b
    Examples:
      duckctl boot log duck03
      duckctl boot log --follow --json
    """
    import json
    import sys
    from dataclasses import asdict

    from duckctl.boot.follow import follow_log, read_log

    fleet = choose_inventory(inventory)
    names = {duck.name for duck in select(fleet, pattern)} if pattern else None
    paths = boot_paths(fleet)
    events = follow_log(fleet, paths, from_start=True) if follow else read_log(fleet, paths)
    for event in events:
        if names is None or event.duck in names:
            line = json.dumps(asdict(event)) if as_json else _event_text(event)
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


@app.command()
def status(inventory: Path | None = INVENTORY, as_json: bool = AS_JSON) -> None:
    """Show what each duck boots next.

    \b
    Examples:
      duckctl boot status
      duckctl boot status --json
    """
    fleet = choose_inventory(inventory)
    plan = plan_boot(fleet)
    rows = []
    for duck in fleet.ducks:
        intent = plan.intent_of(duck)
        what: str | Literal["-"] = plan.image_name_of(duck) if intent.action == "image" else "-"
        rows.append((duck.name, duck.mac or "-", plan.mode_of(duck.domain), intent.action, what,
                     "yes" if intent.one_shot else "", intent.reason))  # fmt: skip
    if as_json:
        keys = ("duck", "mac", "mode", "action", "image", "one_shot", "reason")
        print_json({"ducks": [dict(zip(keys, row, strict=True)) for row in rows]})
        return
    print_table("", ("duck", "MAC", "mode", "boots", "image", "once", "reason"), rows)
