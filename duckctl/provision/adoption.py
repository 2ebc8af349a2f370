"""Enters a new duck into an inventory file: text in, text out. Comments and order stay.

Only the place is found by the YAML parser; the line itself is inserted into the text. The result
is read as an inventory before it replaces the file, so a duplicate, or anything else that the
inventory refuses, leaves the file as it was.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

import yaml

from duckctl.errors import UsageError
from duckctl.inventory import Domain, Fleet, load_inventory
from duckctl.rights import told
from duckctl.yaml_source import InventoryError


@dataclass(frozen=True)
class NewDuck:
    """What is entered. ``slot`` None: the inventory counts slots by the order of the file."""

    name: str
    mac: str
    domain: str
    address: IPv4Address
    slot: int | None = None

    def line(self) -> str:
        """Its line in the domain's ``hosts``; the MAC in quotes, or YAML may read a number."""
        slot = f"duck_slot: {self.slot}, " if self.slot is not None else ""
        return f'{self.name}: {{{slot}duck_mac: "{self.mac}", duck_address: {self.address}}}'


def choose_domain(fleet: Fleet, wanted: str | None, seen_in: str) -> Domain:
    """The domain that was named, else the one in which the card asked, else the only one."""
    by_name = {domain.name: domain for domain in fleet.domains}
    name = wanted or seen_in or (fleet.domains[0].name if len(fleet.domains) == 1 else "")
    if name not in by_name:
        known = ", ".join(by_name)
        what = f"there is no domain '{name}'" if name else "the card was seen in no known domain"
        raise UsageError(what, f"name one with --domain: {known}")
    return by_name[name]


def free_address(fleet: Fleet, domain: Domain) -> IPv4Address:
    """The address behind the highest of the domain's ducks, or the lowest that is free."""
    used = {duck.address for duck in fleet.ducks if duck.domain.name == domain.name}
    taken = used | {domain.host_address}
    highest = max(used)
    after = [IPv4Address(int(highest) + 1)] if int(highest) < 2**32 - 1 else []
    for candidate in (*after, *domain.subnet.hosts()):
        if (
            candidate in domain.subnet
            and candidate not in taken
            and candidate
            not in (
                domain.subnet.broadcast_address,
                domain.subnet.network_address,
            )
        ):
            return candidate
    raise UsageError(f"no address of {domain.subnet} ({domain.name}) is free")


def next_slot(fleet: Fleet, text: str) -> int | None:
    """The next slot where the file gives slots; None where it leaves them to the order."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    values = [
        value
        for domain in fleet.domains
        if (hosts := _hosts_of(root, domain.name)) is not None
        for _, value in hosts.value
        if isinstance(value, yaml.MappingNode)
    ]
    gives_slots = any(key.value == "duck_slot" for value in values for key, _ in value.value)
    return len(fleet.ducks) if gives_slots else None


def read_text(path: Path) -> str:
    """The file as it is: line ends stay what they are."""
    with path.open(encoding="utf-8", newline="") as file:
        return file.read()


def with_duck(text: str, duck: NewDuck) -> str:
    """The inventory's text with the duck in it: a new line, or the MAC of a duck that has none."""
    hosts = _hosts_of(yaml.compose(text, Loader=yaml.SafeLoader), duck.domain)
    if hosts is None:
        raise UsageError(
            f"domain '{duck.domain}' has no 'hosts' mapping in the file",
            f"enter it by hand: {duck.line()}",
        )
    for key, value in hosts.value:
        if key.value == duck.name:
            return _with_mac(text, duck, key, value)
    return _with_line(text, duck, hosts)


def adopt(path: Path, duck: NewDuck) -> Fleet:
    """Edits the file, whole or not at all. Raises InventoryError when it would not be valid."""
    text = read_text(path)
    new_text = with_duck(text, duck)
    target = path.resolve()
    with told(target.parent):
        descriptor, name = tempfile.mkstemp(".yml", f".{target.stem}.", target.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            _be_like(target, file.fileno())
            file.write(new_text)
            file.flush()
            os.fsync(file.fileno())
        try:
            fleet = load_inventory(temporary)
        except InventoryError as error:
            raise InventoryError(path, error.problems) from None
        if not any((d.name, d.mac) == (duck.name, duck.mac) for d in fleet.ducks):
            raise UsageError(f"{path} cannot be edited: its form is unusual", duck.line())
        if read_text(path) != text:
            raise UsageError(f"{path} was changed meanwhile", "run the command again")
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return load_inventory(path)


def _be_like(old: Path, descriptor: int) -> None:
    """Owner, group and mode of the old file; who is not root may keep only some of them."""
    found = old.stat()
    for owner, group in ((-1, found.st_gid), (found.st_uid, -1)):
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, owner, group)
    os.fchmod(descriptor, stat.S_IMODE(found.st_mode))


# ---- places in the text --------------------------------------------------------------------------


def _hosts_of(root: yaml.Node | None, domain: str) -> yaml.MappingNode | None:
    node = root
    for key in ("all", "children", "ducks", "children", domain, "hosts"):
        if not isinstance(node, yaml.MappingNode):
            return None
        node = next((value for name, value in node.value if name.value == key), None)
    return node if isinstance(node, yaml.MappingNode) else None


def _with_line(text: str, duck: NewDuck, hosts: yaml.MappingNode) -> str:
    """Behind the last host, in the form in which the others stand."""
    if hosts.flow_style:
        close = hosts.end_mark.index - 1
        before = text[:close].rstrip()
        comma = "" if before.endswith((",", "{")) else ","
        return f"{before}{comma} {duck.line()}{text[close:]}"
    key, value = hosts.value[-1]
    lines = text.splitlines(keepends=True)
    last, end = _last_line(key, value), _line_end(text)
    if not lines[last].endswith(("\n", "\r")):
        lines[last] += end
    lines.insert(last + 1, " " * key.start_mark.column + duck.line() + end)
    return "".join(lines)


def _line_end(text: str) -> str:
    """Of the file's first line: editors on Windows write two characters."""
    found = re.search(r"\r\n|\n|\r", text)
    return found.group() if found else "\n"


def _last_line(key: yaml.Node, value: yaml.Node) -> int:
    """The last line that an entry has text in; comments behind it belong to what follows."""
    if isinstance(value, yaml.MappingNode) and not value.flow_style and value.value:
        return _last_line(*value.value[-1])
    if isinstance(value, yaml.SequenceNode) and not value.flow_style and value.value:
        return _last_line(value.value[-1], value.value[-1])
    is_empty = isinstance(value, yaml.ScalarNode) and value.start_mark.index == value.end_mark.index
    return int((key if is_empty else value).end_mark.line)


def _with_mac(text: str, duck: NewDuck, key: yaml.Node, value: yaml.Node) -> str:
    """A duck that stands in the file without a MAC gets this one."""
    line = key.start_mark.line + 1
    if not isinstance(value, yaml.MappingNode) or not value.value:
        raise UsageError(
            f"duck '{duck.name}' stands in line {line} without any value",
            f"write there: {duck.line()}",
        )
    for name, old in value.value:
        if name.value == "duck_mac":
            raise UsageError(
                f"duck '{duck.name}' (line {line}) has the MAC {old.value} already",
                "choose another --name, or change the line if the box was replaced",
            )
    entry = f'duck_mac: "{duck.mac}"'
    first = value.value[0][0].start_mark
    separator = ", " if value.flow_style else _line_end(text) + " " * first.column
    return text[: first.index] + entry + separator + text[first.index :]


def unusable_card(mac: str) -> str:
    """Why a MAC cannot tell one box from another; empty for a good one."""
    first = int(mac[:2], 16)
    if first & 1:
        return "a multicast address, no card has it"
    if first & 2:
        return "made up by software (locally administered): several cards may share it"
    return ""
