"""Filters: an inventory's variables -> the domains, and lists of CPUs as the kernel writes them."""

from __future__ import annotations

import ipaddress
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

NOT_DOMAINS = ("all", "ungrouped", "ducks", "gpu_host")
NIC_NAME_MAX = 15  # IFNAMSIZ - 1, linux/if.h
HASH_DIGITS = 8


def duck_domains(
    hostvars: Mapping[str, Mapping[str, Any]], groups: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """One entry per domain, in the order of the inventory.

    A domain is the ducks that share a subnet (no two domains do), and its name is that of the child
    of group ``ducks`` with exactly those ducks. Its port's name comes of it: other groups, which
    people make for patterns, must not change it.
    """
    members: dict[str, list[str]] = {}
    for duck in groups.get("ducks", ()):
        members.setdefault(str(hostvars[duck]["domain_subnet"]), []).append(duck)
    children = _children_of_ducks(hostvars)
    return [_domain(hostvars[ducks[0]], ducks, groups, children) for ducks in members.values()]


def _children_of_ducks(hostvars: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """No variable tells which groups are children of which; the inventory behind ``hostvars`` does.
    Empty where there is none (it is no part of Ansible's interface)."""
    inventory = getattr(hostvars, "_inventory", None)
    ducks = getattr(inventory, "groups", {}).get("ducks")
    return {str(group.name) for group in getattr(ducks, "child_groups", ())}


def _domain(
    values: Mapping[str, Any],
    ducks: list[str],
    groups: Mapping[str, Sequence[str]],
    children: set[str],
) -> dict[str, Any]:
    network = ipaddress.IPv4Network(str(values["domain_subnet"]))
    names = _groups_of(ducks, groups, children)
    if len(names) > 1 and not values.get("domain_host_nic"):
        raise ValueError(
            f"groups {', '.join(names)} have the same ducks, and which of them is the domain is "
            "not known: set domain_host_nic in the domain's vars"
        )
    name = names[0]
    mac = str(values.get("domain_host_mac") or "").lower().replace("-", ":")
    return {
        "name": name,
        "subnet": str(network),
        "prefix": network.prefixlen,
        "broadcast": str(network.broadcast_address),
        "host_address": str(values["domain_host_address"]),
        "nic": str(values.get("domain_host_nic") or port_name(name)),
        "pci": _full_pci(str(values.get("domain_host_pci") or "").lower()),
        "mac": mac,
        "mtu": int(values.get("domain_mtu", 1500)),
        "ducks": list(ducks),
        "device": str(values.get("domain_device") or ""),
        "cpu": values.get("domain_cpu"),
        "loopback": network.is_loopback,
    }


def port_name(domain: str) -> str:
    """The interface's name of a domain's port. Long names end in a hash, or two domains that begin
    alike would have one name. ``duckctl doctor`` has the same rule, duckctl/doctor/machine.py."""
    name = f"duck-{domain}"
    if len(name) <= NIC_NAME_MAX:
        return name
    return f"{name[: NIC_NAME_MAX - HASH_DIGITS]}{zlib.crc32(name.encode()):0{HASH_DIGITS}x}"


def _full_pci(pci: str) -> str:
    """``41:00.0``, as lspci shows it on most machines, is in PCI segment 0."""
    return f"0000:{pci}" if pci.count(":") == 1 else pci


def _groups_of(
    ducks: list[str], groups: Mapping[str, Sequence[str]], children: set[str]
) -> list[str]:
    """The group that is the domain of these ducks; several where nobody tells which it is."""
    same = [
        name
        for name, hosts in groups.items()
        if name not in NOT_DOMAINS and sorted(hosts) == sorted(ducks)
    ]
    if not same:
        raise ValueError(f"no group has exactly the ducks {', '.join(ducks)} of one subnet")
    return sorted(children.intersection(same) or same)


def duck_arp_values(
    domains: Sequence[Mapping[str, Any]], settings: Mapping[str, str]
) -> dict[str, str]:
    """The file of each setting of each port, and its value."""
    return {
        f"/proc/sys/net/ipv4/conf/{domain['nic']}/{key}": str(value)
        for domain in domains
        for key, value in settings.items()
    }


def duck_hugepage_values(nodes: Sequence[int], size_kb: int, pages: int) -> dict[str, str]:
    """The file with the number of pages of each NUMA node, and its value."""
    folder = "/sys/devices/system/node"
    return {
        f"{folder}/node{node}/hugepages/hugepages-{size_kb}kB/nr_hugepages": str(pages)
        for node in nodes
    }


def cpu_numbers(text: str) -> list[int]:
    """``"2-4,7"`` -> [2, 3, 4, 7]; the kernel's "(null)" and an empty text -> []."""
    numbers: set[int] = set()
    for part in text.strip().replace("(null)", "").split(","):
        if part:
            first, _, last = part.partition("-")
            numbers |= set(range(int(first), int(last or first) + 1))
    return sorted(numbers)


def cpu_list(numbers: Iterable[int]) -> str:
    """[2, 3, 4, 7] -> ``"2-4,7"``."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else f"{p[0]}" for p in parts)


def missing_arguments(wanted: Sequence[str], command_line: str) -> list[str]:
    """Kernel arguments that a running kernel was not started with."""
    active = command_line.split()
    return [argument for argument in wanted if argument not in active]


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> dict[str, Any]:
        return {
            "duck_domains": duck_domains,
            "duck_arp_values": duck_arp_values,
            "duck_hugepage_values": duck_hugepage_values,
            "cpu_numbers": cpu_numbers,
            "cpu_list": cpu_list,
            "missing_arguments": missing_arguments,
        }
