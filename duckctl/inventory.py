"""inventory/*.yml -> a frozen Fleet. The file is valid Ansible YAML inventory.

``all`` has the fleet's variables; group ``gpu_host`` has the host; the children of group ``ducks``
are the domains, and their hosts are the ducks. Every mistake of a file is reported at once, each
with its line. docs/reference/inventory.md describes the format.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any, Literal

from duckctl import inventory_fields as fields
from duckctl import yaml_source
from duckctl.inventory_fields import Level, Power, read_variables
from duckctl.patterns import expand_range, select_names
from duckctl.yaml_source import InventoryError, Located, TooManyProblemsError, in_line_order
from duckctl.yaml_source import Mapping as YamlMapping

__all__ = ["Domain", "Duck", "Fleet", "Host", "InventoryError", "Power", "load_inventory", "select"]

DUCKS_MAX = 4096
DOMAINS_MAX = 64
GROUP_KEYS = ("hosts", "vars", "children")


@dataclass(frozen=True)
class Domain:
    """One isolated Ethernet broadcast domain: one host NIC and its ducks."""

    name: str
    subnet: IPv4Network
    host_address: IPv4Address
    host_nic: str | None
    host_pci: str | None
    host_mac: str | None
    mtu: int
    dispatch: Literal["unicast", "broadcast"]
    boot: Literal["dhcp", "proxy", "off"] = "dhcp"
    device: str | None = None  # of DPDK ("pci": host_pci); None = UDP sockets
    cpu: int | None = None

    @property
    def call_address(self) -> IPv4Address | None:
        """Where CALLs are sent once for all ducks; None: to each duck by itself."""
        return self.subnet.broadcast_address if self.dispatch == "broadcast" else None


@dataclass(frozen=True)
class Duck:
    """One compute node. ``power`` is tried in order."""

    name: str
    slot: int
    domain: Domain
    address: IPv4Address
    port: int
    mac: str | None
    image: Literal["linux", "duckos"]
    memory_gib: int | None
    cores: int | None
    link_mbps: int | None
    power: tuple[Power, ...]
    identity: Literal["pinned", "per_boot"]
    line: int = field(compare=False)
    ipxe: Literal["snponly", "ipxe"] = "snponly"
    temperature_c_max: int = 95  # health warns above; an N100 throttles at 105
    loss_permille_max: int = 10  # packets that had to be asked for again


@dataclass(frozen=True)
class Host:
    """The GPU machine."""

    name: str
    gpu: str | None
    ansible: Mapping[str, Any]


@dataclass(frozen=True)
class Fleet:
    """A checked inventory. ``ducks`` are in slot order: duck i serves slice i."""

    name: str
    path: Path
    key_file: Path
    host: Host | None
    domains: tuple[Domain, ...]
    ducks: tuple[Duck, ...]
    groups: Mapping[str, tuple[str, ...]]
    warnings: tuple[str, ...]
    unknown_ducks: Literal["discover", "boot", "ignore"] = "discover"


def select(fleet: Fleet, pattern: str) -> list[Duck]:
    """The ducks that a pattern means, in slot order (see duckctl.patterns)."""
    names = [duck.name for duck in fleet.ducks]
    chosen = set(select_names(pattern, names, fleet.groups))
    return [duck for duck in fleet.ducks if duck.name in chosen]


def load_inventory(path: Path) -> Fleet:
    """Reads and checks an inventory. Raises InventoryError with every mistake, UsageError."""
    document, problems = yaml_source.load(path)
    parser = _Parser(problems)
    try:
        fleet = parser.fleet(document, path)
    except TooManyProblemsError:
        fleet = None
    if fleet is None:
        raise InventoryError(path, in_line_order(problems))
    return fleet


@dataclass
class _RawDuck:
    """A duck as found in the file, before the defaults of its domain and group."""

    name: str
    line: int
    domain: str
    values: dict[str, Any]


class _Parser:
    """Walks the groups of one file and collects the mistakes."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        self.raw_ducks: dict[str, _RawDuck] = {}
        self.domain_values: dict[str, tuple[int, dict[str, Any]]] = {}
        self.hosts: dict[str, tuple[int, Host]] = {}
        self.defaults: dict[str, Any] = {}
        self.groups: dict[str, tuple[str, ...]] = {}
        self.group_lines: dict[str, int] = {}

    def wrong(self, line: int, text: str) -> None:
        self.problems.append(f"line {line}: {text}")

    # ---- walking ------------------------------------------------------------------------------

    def fleet(self, document: Located, path: Path) -> Fleet | None:
        if not isinstance(document.value, YamlMapping) or "all" not in document.value.entries:
            self.wrong(document.line, "expected one top-level key 'all' with 'vars' and 'children'")
            return None
        for key, line in document.value.key_lines.items():
            if key != "all":
                self.wrong(line, f"group '{key}' must stand below all: children:")
        top = self.group(document.value.entries["all"], "all")
        if "hosts" in top:
            self.wrong(top["hosts"].line, "hosts belong into a domain of group 'ducks'")
        fleet_values = read_variables(top.get("vars"), Level.ALL, self.problems)
        children = self.members(top.get("children"), "all: children")
        for name, (line, body) in children.items():
            self.group_lines[name] = line
            if name == "ducks":
                self.read_ducks(body)
            elif name == "gpu_host":
                self.read_host(body)
        if "ducks" not in children:
            self.wrong(document.line, "group 'ducks' is missing below all: children:")
        for name, (_, body) in children.items():
            if name not in ("ducks", "gpu_host"):
                self.read_extra_group(name, body)
        domains = self.build_domains()
        ducks, warnings = self.build_ducks(domains)
        self.check_names()
        if self.problems:
            return None
        key_file = Path(_value(fleet_values, "fleet_key_file", "fleet.key"))
        return Fleet(
            name=_value(fleet_values, "fleet_name", path.stem.lower()),
            path=path,
            key_file=path.resolve().parent / key_file.expanduser(),
            host=next(iter(self.hosts.values()))[1] if self.hosts else None,
            domains=tuple(domains.values()),
            ducks=tuple(ducks),
            groups=self.groups,
            warnings=tuple(warnings),
            unknown_ducks=_value(fleet_values, "fleet_unknown_ducks", "discover"),
        )

    def group(self, located: Located, name: str) -> dict[str, Located]:
        """The hosts, vars and children of a group."""
        if located.value is None:
            return {}
        if not isinstance(located.value, YamlMapping):
            self.wrong(located.line, f"group '{name}' must be a mapping, found {located.kind()}")
            return {}
        for key, line in located.value.key_lines.items():
            if key not in GROUP_KEYS:
                nearest = difflib.get_close_matches(key, GROUP_KEYS, n=1)
                suggestion = f"; did you mean '{nearest[0]}'?" if nearest else ""
                self.wrong(
                    line, f"group '{name}' has only hosts, vars, children, not '{key}'{suggestion}"
                )
        return {k: v for k, v in located.value.items() if k in GROUP_KEYS and v.value is not None}

    def members(self, located: Located | None, where: str) -> dict[str, tuple[int, Located]]:
        """Hosts or children by name, ranges expanded, with their lines."""
        if located is None:
            return {}
        if not isinstance(located.value, YamlMapping):
            self.wrong(
                located.line,
                f"{where} must be a mapping (name and colon), found {located.kind()}",
            )
            return {}
        found: dict[str, tuple[int, Located]] = {}
        for key, body in located.value.items():
            line = located.value.key_lines[key]
            try:
                names = expand_range(key)
            except ValueError as error:
                self.wrong(line, str(error))
                continue
            if len(found) + len(names) > DUCKS_MAX:
                self.wrong(line, f"{where}: more than {DUCKS_MAX} names with this one")
                break
            for name in names:
                if name in found:
                    self.wrong(line, f"'{name}' is already given in line {found[name][0]}")
                elif not fields.NAME.fullmatch(name.replace("_", "-")):
                    self.wrong(line, f"'{name}' is not a name of a-z, 0-9 and '-'")
                else:
                    found[name] = (line, body)
        return found

    def read_host(self, located: Located) -> None:
        group = self.group(located, "gpu_host")
        for name, (line, body) in self.members(group.get("hosts"), "gpu_host: hosts").items():
            values = read_variables(body, Level.HOST, self.problems)
            host = Host(name, _value(values, "host_gpu", None), fields.ansible_variables(body))
            self.hosts[name] = (line, host)
            if len(self.hosts) > 1:
                self.wrong(line, "group 'gpu_host' has more than one host; a fleet has one")
        self.groups["gpu_host"] = ()

    def read_ducks(self, located: Located) -> None:
        group = self.group(located, "ducks")
        self.defaults = read_variables(group.get("vars"), Level.DUCKS, self.problems)
        if "hosts" in group:
            self.wrong(group["hosts"].line, "ducks belong into a domain, below ducks: children:")
        children = self.members(group.get("children"), "ducks: children")
        if not children:
            self.wrong(located.line, "group 'ducks' needs at least one domain below children:")
        if len(children) > DOMAINS_MAX:
            self.wrong(located.line, f"{len(children)} domains; at most {DOMAINS_MAX} are possible")
        for name, (line, body) in children.items():
            self.group_lines[name] = line
            self.read_domain(name, line, body)
            if len(self.raw_ducks) > DUCKS_MAX:
                text = f"{len(self.raw_ducks)} ducks; at most {DUCKS_MAX} are possible"
                self.wrong(located.line, text)
                break
        self.groups["ducks"] = tuple(self.raw_ducks)

    def read_domain(self, name: str, line: int, located: Located) -> None:
        group = self.group(located, name)
        if "children" in group:
            self.wrong(group["children"].line, f"domain '{name}' has ducks, not children")
        values = read_variables(group.get("vars"), Level.DOMAIN, self.problems)
        self.domain_values[name] = (line, values)
        hosts = self.members(group.get("hosts"), f"{name}: hosts")
        if not hosts:
            self.wrong(line, f"domain '{name}' has no ducks")
        for duck, (duck_line, body) in hosts.items():
            if duck in self.raw_ducks:
                first = self.raw_ducks[duck]
                self.wrong(
                    duck_line,
                    f"name '{duck}' is already a duck of {first.domain} (line {first.line})",
                )
                continue
            if why := fields.why_no_duck_name(duck):
                self.wrong(duck_line, why)
            duck_values = read_variables(body, Level.DUCK, self.problems)
            self.raw_ducks[duck] = _RawDuck(duck, duck_line, name, duck_values)
        self.groups[name] = tuple(hosts)

    def read_extra_group(self, name: str, located: Located) -> None:
        """A group of ducks that only patterns use."""
        group = self.group(located, name)
        if "vars" in group and isinstance(group["vars"].value, YamlMapping):
            for key, line in group["vars"].value.key_lines.items():
                if not key.startswith("ansible_"):
                    self.wrong(line, f"group '{name}' is for patterns and may not set '{key}'")
        if "children" in group:
            self.wrong(group["children"].line, f"group '{name}' lists ducks below hosts:")
        hosts = self.members(group.get("hosts"), f"{name}: hosts")
        for duck, (line, body) in hosts.items():
            if duck not in self.raw_ducks and duck not in self.hosts:
                self.wrong(line, f"'{duck}' of group '{name}' is no duck of any domain")
            if body.value is not None:
                self.wrong(line, f"variables of '{duck}' belong to its place in its domain")
        self.groups[name] = tuple(duck for duck in hosts if duck in self.raw_ducks)

    # ---- building -----------------------------------------------------------------------------

    def build_domains(self) -> dict[str, Domain]:
        domains: dict[str, Domain] = {}
        for name, (line, own) in self.domain_values.items():
            values = {**self.defaults, **own}
            missing = [k for k in ("domain_subnet", "domain_host_address") if k not in values]
            for key in missing:
                if not self.mentioned(key):
                    self.wrong(line, f"domain '{name}' needs '{key}'")
            if missing:
                continue
            domain = Domain(
                name=name,
                subnet=values["domain_subnet"][0],
                host_address=values["domain_host_address"][0],
                host_nic=_value(values, "domain_host_nic", None),
                host_pci=_value(values, "domain_host_pci", None),
                host_mac=_value(values, "domain_host_mac", None),
                mtu=_value(values, "domain_mtu", 1500),
                dispatch=_value(values, "domain_dispatch", "unicast"),
                device=_value(values, "domain_device", None),
                cpu=_value(values, "domain_cpu", None),
                boot=_value(values, "domain_boot", "dhcp"),
            )
            self.check_domain(domain, values, domains)
            domains[name] = domain
        return domains

    def mentioned(self, key: str) -> bool:
        """A key that was given with a bad value is not missing as well."""
        return any(f" {key}: " in problem for problem in self.problems)

    def check_domain(
        self, domain: Domain, values: dict[str, Any], earlier: Mapping[str, Domain]
    ) -> None:
        line = values["domain_subnet"][1]
        for other in earlier.values():
            if domain.subnet.overlaps(other.subnet):
                other_line = self.domain_values[other.name][1]["domain_subnet"][1]
                self.wrong(
                    line,
                    f"subnet {domain.subnet} of {domain.name} overlaps {other.subnet} of "
                    f"{other.name} (line {other_line}); every domain needs its own",
                )
        host_line = values["domain_host_address"][1]
        if problem := fields.outside(domain.host_address, domain.subnet):
            self.wrong(host_line, f"domain_host_address {domain.host_address} {problem}")
        if domain.dispatch == "broadcast" and domain.subnet.is_loopback:
            self.wrong(line, "the loopback device has no broadcast; use domain_dispatch: unicast")
        for key in ("domain_host_nic", "domain_host_pci", "domain_host_mac"):
            for other in earlier.values():
                other_value = getattr(other, key.removeprefix("domain_"))
                if key in values and values[key][0] == other_value:
                    other_line = self.domain_values[other.name][1][key][1]
                    self.wrong(
                        values[key][1],
                        f"{key} {other_value} is already that of {other.name} (line {other_line})",
                    )

    def build_ducks(self, domains: Mapping[str, Domain]) -> tuple[list[Duck], list[str]]:
        slots = self.slots()
        ducks: list[Duck] = []
        for raw in self.raw_ducks.values():
            domain = domains.get(raw.domain)
            values = {**self.defaults, **self.domain_values[raw.domain][1], **raw.values}
            if "duck_address" not in values:
                if not self.mentioned("duck_address"):
                    self.wrong(raw.line, f"duck '{raw.name}' needs 'duck_address'")
                continue
            if domain is None:
                continue
            ducks.append(
                Duck(
                    name=raw.name,
                    slot=slots.get(raw.name, 0),
                    domain=domain,
                    address=values["duck_address"][0],
                    port=_value(values, "duck_port", fields.DUCK_PORT),
                    mac=_value(values, "duck_mac", None),
                    image=_value(values, "duck_image", "linux"),
                    memory_gib=_value(values, "duck_memory_gib", None),
                    cores=_value(values, "duck_cores", None),
                    link_mbps=_value(values, "duck_link_mbps", None),
                    power=_value(values, "duck_power", ()),
                    identity=_value(values, "duck_identity", "pinned"),
                    line=raw.line,
                    ipxe=_value(values, "duck_ipxe", "snponly"),
                    temperature_c_max=_value(values, "duck_temperature_c_max", 95),
                    loss_permille_max=_value(values, "duck_loss_permille_max", 10),
                )
            )
        for duck in ducks:
            self.check_duck(duck)
        self.check_duplicates(ducks)
        ducks.sort(key=lambda duck: duck.slot)
        return ducks, _warnings(domains, ducks)

    def slots(self) -> dict[str, int]:
        """Slots as given, or the order of the file when none is given; 0 .. n-1 without gaps."""
        given = {
            n: d.values["duck_slot"] for n, d in self.raw_ducks.items() if "duck_slot" in d.values
        }
        if not given:
            return {name: index for index, name in enumerate(self.raw_ducks)}
        seen: dict[int, str] = {}
        for name, (slot, line) in given.items():
            if slot in seen:
                first_line = given[seen[slot]][1]
                self.wrong(
                    line,
                    f"duck_slot {slot} of {name} is already {seen[slot]}'s (line {first_line})",
                )
            seen.setdefault(slot, name)
        for name, raw in self.raw_ducks.items():
            if name not in given and not self.mentioned("duck_slot"):
                self.wrong(raw.line, f"'{name}' has no duck_slot, but others have: all or none")
        gaps = sorted(set(range(len(self.raw_ducks))) - set(seen))
        if gaps and len(given) == len(seen) == len(self.raw_ducks):
            self.wrong(
                max(line for _, line in given.values()),
                f"slots must be 0 to {len(self.raw_ducks) - 1} without gaps; {gaps[0]} is missing",
            )
        return {name: slot for name, (slot, _) in given.items()}

    def check_duck(self, duck: Duck) -> None:
        line = self.line_of(duck, "duck_address")
        if problem := fields.outside(duck.address, duck.domain.subnet):
            self.wrong(line, f"duck_address {duck.address} of {duck.name} {problem}")
        elif duck.address == duck.domain.host_address and not duck.address.is_loopback:
            self.wrong(line, f"duck_address {duck.address} of {duck.name} is the host's own")

    def line_of(self, duck: Duck, key: str) -> int:
        value = self.raw_ducks[duck.name].values.get(key)
        return value[1] if value else duck.line

    def check_duplicates(self, ducks: list[Duck]) -> None:
        """MAC and address belong to one duck; on loopback, address and port together."""
        seen: dict[tuple[str, str], Duck] = {}
        for duck in ducks:
            place = str(duck.address)
            if duck.address.is_loopback:
                place = f"{duck.address}:{duck.port}"
            for key, value in (("duck_mac", duck.mac), ("duck_address", place)):
                if value is None:
                    continue
                first = seen.setdefault((key, value), duck)
                if first is not duck:
                    self.wrong(
                        self.line_of(duck, key),
                        f"{key} {value} of {duck.name} is already {first.name}'s "
                        f"(line {self.line_of(first, key)})",
                    )

    def check_names(self) -> None:
        """Ansible mixes up a host and a group of the same name."""
        for name, line in self.group_lines.items():
            owner = self.raw_ducks.get(name)
            if owner is not None:
                self.wrong(owner.line, f"duck '{name}' has the name of a group (line {line})")
            if name in self.hosts:
                self.wrong(
                    self.hosts[name][0], f"host '{name}' has the name of a group (line {line})"
                )
        for name, (line, _) in self.hosts.items():
            if name in self.raw_ducks:
                self.wrong(
                    self.raw_ducks[name].line, f"duck '{name}' has the host's name (line {line})"
                )


def _value(values: Mapping[str, Any], key: str, default: Any) -> Any:
    return values[key][0] if key in values else default


def _is_of_lab(duck: Duck) -> bool:
    """A lab's addresses are made up, and nobody else has them."""
    return any(power.backend == "lab" for power in duck.power)


def _warnings(domains: Mapping[str, Domain], ducks: list[Duck]) -> list[str]:
    """What works, but is known to bite later."""
    found = []
    for domain in domains.values():
        if domain.host_nic and not (domain.host_pci or domain.host_mac):
            found.append(
                f"{domain.name}: interface names change with kernels; add domain_host_pci or "
                "domain_host_mac"
            )
    for duck in ducks:
        if duck.mac is None and not duck.address.is_loopback:
            found.append(f"{duck.name}: without duck_mac it cannot be booted from the network")
        elif duck.mac and fields.is_locally_administered(duck.mac) and not _is_of_lab(duck):
            found.append(
                f"{duck.name}: {duck.mac} is locally administered; cheap adapters share such ones"
            )
    return found
