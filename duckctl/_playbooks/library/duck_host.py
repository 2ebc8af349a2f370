"""Ansible module: what the roles need to know of a host, in one visit. It changes nothing.

Result: ``ports`` of the domains; ``keep_interfaces``, by which this host is reached (those of
default routes, and ``connection_interfaces`` with ``connection_address``); ``cpus``; the kernel's ``cmdline``,
``isolated`` and ``nohz_full``; ``hugepages`` as {node: {kB: count}}.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.duck_pci import (
    PciError,
    Sysfs,
    default_route_interfaces,
    find_port,
    group_neighbours,
)


def interfaces_with(module: AnsibleModule, address: str) -> set[str]:
    """Interfaces that have an address (`ip -o address`: index, name, family, address/prefix)."""
    if not address:
        return set()
    _, out, _ = module.run_command(["ip", "-o", "address", "show"], check_rc=True)
    rows = [line.split() for line in out.splitlines()]
    return {row[1] for row in rows if len(row) > 3 and row[3].split("/")[0] == address}


def hugepages(sysfs: Sysfs) -> dict[str, dict[str, int]]:
    """NUMA node -> page size in kB -> pages that the kernel holds."""
    nodes = "/sys/devices/system/node"
    found: dict[str, dict[str, int]] = {}
    for node in sysfs.names(nodes):
        if node[:4] == "node" and node[4:].isdigit():
            sizes = sysfs.names(f"{nodes}/{node}/hugepages")
            found[node[4:]] = {
                size.removeprefix("hugepages-").removesuffix("kB"): int(
                    sysfs.read(f"{nodes}/{node}/hugepages/{size}/nr_hugepages") or 0
                )
                for size in sizes
            }
    return found


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "domains": {"type": "list", "elements": "dict", "required": True},
            "connection_address": {"type": "str", "default": ""},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    sysfs = Sysfs(Path(module.params["root"]))
    ports: list[dict[str, Any]] = []
    problems: list[str] = []
    for domain in module.params["domains"]:
        try:
            port = find_port(sysfs, domain["pci"], domain["mac"])
        except PciError as error:
            problems.append(f"{domain['name']}: {error}")
            continue
        neighbours = [f"{pci} ({driver})" for pci, driver in group_neighbours(sysfs, port)]
        bifurcated = port.is_bifurcated
        ports.append({"domain": domain["name"], **asdict(port), "bifurcated": bifurcated})
        ports[-1]["neighbours"] = neighbours
    if problems:
        module.fail_json(msg="; ".join(problems), ports=ports)
    connection = interfaces_with(module, module.params["connection_address"])
    keep = connection | default_route_interfaces(sysfs)
    cpu = "/sys/devices/system/cpu"
    module.exit_json(
        changed=False,
        ports=ports,
        keep_interfaces=sorted(keep),
        connection_interfaces=sorted(connection),
        cpus=[int(n[3:]) for n in sysfs.names(cpu) if n[:3] == "cpu" and n[3:].isdigit()],
        cmdline=sysfs.read("/proc/cmdline"),
        isolated=sysfs.read(f"{cpu}/isolated"),
        nohz_full=sysfs.read(f"{cpu}/nohz_full"),
        hugepages=hugepages(sysfs),
    )


if __name__ == "__main__":
    main()
