"""dnsmasq's lease file: time of expiry, MAC, address, name and client id in each line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import IPv4Address
from pathlib import Path

from duckctl.boot.dnsmasq import find_pool
from duckctl.boot.plan import BootPlan

LINE = re.compile(r"\d+ ([0-9a-f]{2}(?::[0-9a-f]{2}){5}) (\d+\.\d+\.\d+\.\d+) ")


def read_leases(path: Path) -> dict[str, str]:
    """Address -> MAC of all leases; empty when there is no file."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return {m.group(2): m.group(1) for m in map(LINE.match, text.splitlines()) if m is not None}


def pool_sizes(plan: BootPlan) -> dict[str, int]:
    """How many boxes without a reservation each served domain has addresses for."""
    sizes = {}
    for domain in plan.fleet.domains:
        pool = find_pool(plan, domain)
        if plan.mode_of(domain) == "dhcp" and pool is not None:
            sizes[domain.name] = pool.size
    return sizes


def pool_use(plan: BootPlan, leases: Mapping[str, str]) -> dict[str, int]:
    """How many addresses of each domain's pool are leased."""
    used = {}
    for domain in plan.fleet.domains:
        pool = find_pool(plan, domain)
        if plan.mode_of(domain) == "dhcp" and pool is not None:
            used[domain.name] = sum(
                pool.first <= IPv4Address(address) <= pool.last for address in leases
            )
    return used
