"""Ansible module: what the roles need to know of a host, in one visit. It changes nothing.

Result: ``ports`` of the domains; ``keep_interfaces``, by which this host is reached (those of
default routes, and of the ssh connection); ``address_interfaces`` that have ``address``; ``cpus``;
``system`` (family, systemd, machine, kernel); ``cmdline``, ``isolated`` and ``nohz_full`` of the
kernel; ``hugepages`` as {node: {kB: count}}. Ansible's own facts take several times as long.
"""

from __future__ import annotations

import os
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


def connection_address(sysfs: Sysfs, pid: int) -> str:
    """The address where the ssh connection of a process ends; sudo hides it from its children, so
    parents are asked too ("client port server port", ssh(1))."""
    while pid > 1:
        for word in sysfs.read(f"/proc/{pid}/environ").split("\0"):
            if word.startswith("SSH_CONNECTION="):
                parts = word.partition("=")[2].split(" ")
                return parts[2] if len(parts) == 4 else ""
        stat = sysfs.read(f"/proc/{pid}/stat").rpartition(") ")[2].split()
        pid = int(stat[1]) if len(stat) > 1 else 0
    return ""


def system(sysfs: Sysfs) -> dict[str, Any]:
    """The distribution and those it is like, whether systemd runs it, and its kernel."""
    lines = sysfs.read("/etc/os-release").splitlines()
    release = {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines)}
    return {
        "family": [*release.get("ID", "").split(), *release.get("ID_LIKE", "").split()],
        "systemd": sysfs.path("/run/systemd/system").is_dir(),
        "machine": os.uname().machine,
        "kernel": os.uname().release,
    }


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
            "address": {"type": "str", "default": ""},
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
    keep = interfaces_with(module, connection_address(sysfs, os.getpid()))
    cpu = "/sys/devices/system/cpu"
    module.exit_json(
        changed=False,
        ports=ports,
        system=system(sysfs),
        keep_interfaces=sorted(keep | default_route_interfaces(sysfs)),
        address_interfaces=sorted(interfaces_with(module, module.params["address"])),
        cpus=[int(n[3:]) for n in sysfs.names(cpu) if n[:3] == "cpu" and n[3:].isdigit()],
        cmdline=sysfs.read("/proc/cmdline"),
        isolated=sysfs.read(f"{cpu}/isolated"),
        nohz_full=sysfs.read(f"{cpu}/nohz_full"),
        hugepages=hugepages(sysfs),
    )


if __name__ == "__main__":
    main()
