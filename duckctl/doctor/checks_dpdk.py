"""Checks of what DPDK needs: IOMMU, hugepages, an E810's package."""

from __future__ import annotations

import json

from duckctl.doctor.environment import Environment
from duckctl.doctor.finding import Finding
from duckctl.doctor.machine import kernel_arguments, processes
from duckctl.doctor.question import Question

NODES = "/sys/devices/system/node"
# What four ports' buffers at 9000 bytes and the transport's pools need on a node.
HUGEPAGE_MIB_MIN = 1024
DDP_FOLDERS = ("/lib/firmware/updates/intel/ice/ddp", "/lib/firmware/intel/ice/ddp")
SETUP = "duckctl host setup --inventory FILE, with domain_device: pci in the inventory"


def check_iommu(question: Question) -> list[Finding]:
    """Without IOMMU groups vfio-pci takes no port (but for its unsafe mode)."""
    environment = question.environment
    groups = environment.names("/sys/kernel/iommu_groups")
    arguments = kernel_arguments(environment)
    given = " ".join(f"{k}={v}" for k, v in arguments.items() if "iommu" in k)
    if groups:
        found = f"{len(groups)} groups; kernel arguments: {given or 'none'}"
        return [Finding("iommu", "ok", "IOMMU", found)]
    return [
        Finding(
            *("iommu", question.dpdk_level, "IOMMU"),
            found=f"no IOMMU groups; kernel arguments: {given or 'none'}",
            expected="groups in /sys/kernel/iommu_groups",
            next_step="turn VT-d or AMD-Vi on in the firmware's setup and start the kernel with "
            f"intel_iommu=on iommu=pt ({SETUP})",
        )
    ]


def check_hugepages(question: Question) -> list[Finding]:
    """On the NUMA node of each port, and free (T56, T57, T58)."""
    environment = question.environment
    nodes = {entry.port.numa_node for entry in question.ports if entry.port is not None} or {0}
    findings = []
    for node in sorted(nodes):
        pages = _pages(environment, node)
        free_mib = sum(size_kb * free // 1024 for size_kb, _, free in pages)
        total_mib = sum(size_kb * total // 1024 for size_kb, total, _ in pages)
        found = ", ".join(
            f"{free} of {total} pages of {size_kb} kB free" for size_kb, total, free in pages
        )
        enough = total_mib >= HUGEPAGE_MIB_MIN if question.dpdk else free_mib > 0
        findings.append(
            Finding(
                *("hugepages", "ok" if enough else question.dpdk_level, f"NUMA node {node}"),
                found=found or "this kernel has no hugepages",
                expected=f"{HUGEPAGE_MIB_MIN} MiB on each node that has a port",
                next_step=""
                if enough
                else f"{SETUP}; pages of 1 GiB only come from the kernel's command line, at "
                "a restart",
            )
        )
        if enough and question.dpdk and free_mib == 0:
            findings.append(_all_taken(environment, node, found))
    return findings


def _pages(environment: Environment, node: int) -> list[tuple[int, int, int]]:
    """Size in kB, all and free pages of each size of which there are some."""
    folder = f"{NODES}/node{node}/hugepages"
    found = []
    for name in environment.names(folder):
        total = int(environment.read(f"{folder}/{name}/nr_hugepages") or 0)
        free = int(environment.read(f"{folder}/{name}/free_hugepages") or 0)
        if total or name == "hugepages-2048kB":
            found.append((int(name.removeprefix("hugepages-").removesuffix("kB")), total, free))
    return found


def _all_taken(environment: Environment, node: int, found: str) -> Finding:
    holders = sorted({name for pid, name in processes(environment) if _maps_huge(environment, pid)})
    return Finding(
        *("hugepages", "warn", f"NUMA node {node}"),
        found=f"{found}; held by {', '.join(holders) or 'files without a process'}",
        expected="free pages, unless the serve service runs",
        next_step="stop the program that holds them; look at check hugepage-files",
    )


def _maps_huge(environment: Environment, pid: int) -> bool:
    return "/rtemap_" in environment.read(f"/proc/{pid}/maps")


def check_stale_hugepage_files(question: Question) -> list[Finding]:
    """``rtemap_*`` files of a program that died keep their pages (T57)."""
    environment = question.environment
    mounts = [
        columns[1]
        for line in environment.read("/proc/mounts").splitlines()
        if len(columns := line.split()) > 2 and columns[2] == "hugetlbfs"
    ]
    files = [f for mount in mounts for f in environment.glob(f"{mount}/*rtemap_*")]
    if not files:
        return [Finding("hugepage-files", "ok", "hugetlbfs", "no rtemap files")]
    held = "".join(environment.read(f"/proc/{pid}/maps") for pid, _ in processes(environment))
    stale = [name for name in files if name not in held]
    if not stale:
        return [Finding("hugepage-files", "ok", "hugetlbfs", f"{len(files)} files, all in use")]
    return [
        Finding(
            *("hugepage-files", "warn", "hugetlbfs"),
            found=f"{len(stale)} files that no process has mapped: {', '.join(stale[:3])}"
            + (" ..." if len(stale) > 3 else ""),
            expected="none; the pages below them cannot be used",
            next_step="remove them: sudo rm " + " ".join(sorted({_pattern(f) for f in stale})),
        )
    ]


def _pattern(name: str) -> str:
    folder, _, file = name.rpartition("/")
    return f"{folder}/{file.split('rtemap_')[0]}rtemap_*"


def check_ddp(question: Question) -> list[Finding]:
    """An E810 without its package is in safe mode: it sends, but receives nothing (T62)."""
    environment = question.environment
    cards = [
        entry.port for entry in question.ports if entry.port is not None and _is_e810(entry.port)
    ]
    if not cards:
        return []
    files = [name for folder in DDP_FOLDERS for name in environment.glob(f"{folder}/ice*.pkg*")]
    findings = [
        Finding(
            *("ddp", "ok" if files else "fail", "package file"),
            found=", ".join(files[:3]) or "no ice*.pkg",
            expected=f"ice.pkg in {DDP_FOLDERS[1]}",
            next_step=""
            if files
            else "install the firmware package (Debian: firmware-intel-misc; Ubuntu: "
            "linux-firmware), then reload the ice driver",
        )
    ]
    for port in cards:
        if port.driver != "ice":
            continue  # vfio-pci: DPDK's driver loads the package itself
        said = environment.command(["devlink", "-j", "dev", "info", f"pci/{port.pci}"])
        name, version = running_package(said or "")
        findings.append(
            Finding(
                *("ddp", "ok" if name else "fail", f"{port.pci} {port.interface}"),
                found=f"{name} {version}" if name else "the card runs no package (safe mode)",
                expected="fw.app in devlink dev info",
                next_step="" if name else "see dmesg | grep ice, and check FEC and RX counters",
            )
        )
    return findings


def _is_e810(port: object) -> bool:
    vendor, device = getattr(port, "vendor", ""), getattr(port, "device", "")
    e810 = {"0x1591", "0x1592", "0x1593", "0x1599", "0x159a", "0x159b"}
    return getattr(port, "driver", "") == "ice" or (vendor == "0x8086" and device in e810)


def running_package(devlink: str) -> tuple[str, str]:
    """Name and version of the package that a card runs (`devlink -j dev info`); empty if none."""
    try:
        (info,) = json.loads(devlink)["info"].values()
        running = info["versions"]["running"]
    except (ValueError, KeyError, TypeError):
        return "", ""
    return str(running.get("fw.app.name", "")), str(running.get("fw.app", ""))
