"""Checks of network boot: who has its ports, and what iPXE can drive."""

from __future__ import annotations

from duckctl.doctor.finding import Finding
from duckctl.doctor.machine import socket_owner, sockets
from duckctl.doctor.question import Question

PORTS = {("udp", 67): "DHCP", ("udp", 69): "TFTP", ("udp", 4011): "PXE", ("tcp", 80): "HTTP"}
# How dnsmasq is started for ducks, by the boot service and by role pxe.
OURS = ("boot/dnsmasq.conf", "duckctl")
IPXE_FOLDERS = ("/usr/lib/ipxe", "/usr/share/ipxe", "/boot")
# I226-V (8086:125c) as iPXE's table of drivers has it: vendor and device, little-endian.
I226_ID = bytes.fromhex("86805c12")


def check_port_owners(question: Question) -> list[Finding]:
    """Ports 67, 69, 4011 and 80, and the program that has them (T32)."""
    environment = question.environment
    findings = []
    for bound in sockets(environment):
        purpose = PORTS.get((bound.protocol, bound.port))
        if purpose is None:
            continue
        pid, words = socket_owner(environment, bound.inode)
        subject = f"{bound.protocol} {bound.port} ({purpose})"
        who = f"{words} (pid {pid})" if pid else "a process that only root can see"
        ours = any(word in words for word in OURS)
        findings.append(
            Finding(
                *("ports", "ok" if ours else "warn", subject),
                found=f"used by {who[:120]}",
                expected="free, or the boot service",
                next_step=""
                if ours
                else "stop it, or leave this port to it: domain_boot: proxy for DHCP, --http-port "
                "for HTTP",
            )
        )
    unique = {(f.subject, f.found): f for f in findings}
    return list(unique.values()) or [
        Finding("ports", "ok", "ports of network boot", "67, 69, 4011 and 80 are free")
    ]


def check_ipxe(question: Question) -> list[Finding]:
    """Old iPXE does not know the I226; snponly.efi uses the firmware's driver instead (T1)."""
    environment = question.environment
    found = {
        name: f"{folder}/{name}"
        for folder in reversed(IPXE_FOLDERS)
        for name in ("snponly.efi", "ipxe.efi")
        if environment.exists(f"{folder}/{name}")
    }
    fleet = question.fleet
    native = [d.name for d in fleet.ducks if d.ipxe == "ipxe"] if fleet is not None else []
    if not found:
        return [
            Finding(
                *("ipxe", "note", "iPXE"),
                found="not installed",
                expected="only ducks that boot the Linux image by UEFI need it",
                next_step="sudo apt-get install ipxe",
            )
        ]
    findings = []
    if "snponly.efi" not in found:
        findings.append(
            Finding(
                *("ipxe", "warn", "snponly.efi"),
                found="missing",
                expected="the boot loader that uses the firmware's own network driver",
                next_step="install a newer iPXE (Debian: package ipxe)",
            )
        )
    knows = "ipxe.efi" in found and I226_ID in environment.read_bytes(found["ipxe.efi"])
    if "ipxe.efi" in found and not knows:
        ducks = f"; {', '.join(native)} would be given it" if native else ""
        findings.append(
            Finding(
                *("ipxe", "fail" if native else "note", found["ipxe.efi"]),
                found=f"has no driver for 8086:125c (I226-V, as in N100 boxes){ducks}",
                expected="iPXE v2.0.0 or newer, or duck_ipxe: snponly",
                next_step="take duck_ipxe: ipxe out of the inventory; snponly is the default",
            )
        )
    return findings or [Finding("ipxe", "ok", "iPXE", ", ".join(sorted(found.values())))]
