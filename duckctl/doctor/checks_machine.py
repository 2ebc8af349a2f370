"""Checks of the machine itself: card, driver, disk."""

from __future__ import annotations

from duckctl.doctor.finding import Finding
from duckctl.doctor.question import Question

GIB = 1 << 30
DISK_GIB_MIN = 20
NVIDIA_VENDOR = "0x10de"
QUERY = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]


def check_gpu(question: Question) -> list[Finding]:
    """A card, and a driver that answers for it."""
    environment = question.environment
    cards = [
        pci
        for pci in environment.names("/sys/bus/pci/devices")
        if environment.read(f"/sys/bus/pci/devices/{pci}/vendor") == NVIDIA_VENDOR
        and environment.read(f"/sys/bus/pci/devices/{pci}/class").startswith("0x03")
    ]
    host = question.fleet.host if question.fleet is not None else None
    wanted = host.gpu if host is not None and host.gpu else ""
    expected = wanted or "an NVIDIA card with its driver (or run on the CPU, slowly)"
    said = environment.command(QUERY)
    if said and said.strip():
        names = [line.strip() for line in said.splitlines() if line.strip()]
        well = not wanted or any(wanted.lower() in name.lower() for name in names)
        return [
            Finding(
                *("gpu", "ok" if well else "warn", "GPU"),
                found="; ".join(names),
                expected=expected,
                next_step="" if well else "correct host_gpu in the inventory",
            )
        ]
    if cards:
        return [
            Finding(
                *("gpu", "fail", "GPU"),
                found=f"card {', '.join(cards)}, but nvidia-smi does not answer",
                expected=expected,
                next_step="install the driver (Debian: nvidia-driver; Ubuntu: ubuntu-drivers "
                "install), then restart",
            )
        ]
    return [
        Finding(
            *("gpu", "fail" if wanted else "note", "GPU"),
            found="no NVIDIA card",
            expected=expected,
            next_step="look at the slot and its power; lspci -d 10de:",
        )
    ]


def check_disk(question: Question) -> list[Finding]:
    """Space for images and for the weight caches that are converted on this host."""
    places = {"/"}
    if question.fleet is not None and question.environment.root.samefile("/"):
        places.add(str(question.fleet.path.resolve().parent))
    findings = []
    for place in sorted(places):
        free = question.environment.free_bytes(place)
        well = free >= DISK_GIB_MIN * GIB
        findings.append(
            Finding(
                *("disk", "ok" if well else "warn", place),
                found=f"{free / GIB:.1f} GiB free",
                expected=f"{DISK_GIB_MIN} GiB; converted weights need more (see shard-weights)",
                next_step="" if well else "duckctl cache prune, or another disk for --cache-dir",
            )
        )
    return findings
