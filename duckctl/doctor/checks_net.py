"""Checks of the domains' ports: names, links, MTU, subnets, ARP, firmware, the kernel's log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from ipaddress import IPv4Interface

from duckctl.doctor.environment import Environment
from duckctl.doctor.finding import Finding
from duckctl.doctor.machine import VFIO, DomainPort, port_name, read_ports
from duckctl.doctor.question import Question

SETUP = "duckctl host setup --inventory FILE"
LINK_FOLDERS = ("/etc/systemd/network", "/run/systemd/network")
# The kernel's neighbour table holds 1024 entries unless told otherwise (gc_thresh3).
NEIGHBOURS_DUCKS = 500
ARP_WANTED = {"arp_ignore": 1, "arp_announce": 2, "rp_filter": 2}
# Firmware of the E810 that DPDK 24.11 was tested with (its ice guide); older is asking for it.
ICE_FIRMWARE_MIN = (4, 6)
LOG_LINES_SHOWN = 3
PROBE_FAILED = re.compile(
    r"\b(igc|igb|ice|i40e|e1000e|r8169|mlx5_core)\b.*"
    r"(probe .*failed|failed with error|NVM checksum|PCIe link lost|Hardware Unit Hang|Safe Mode)",
    re.IGNORECASE,
)


def check_names(question: Question) -> list[Finding]:
    """A kernel update renames ports; PCI addresses and MACs stay (T36)."""
    findings = []
    for entry in question.ports:
        domain, port = entry.domain, entry.port
        if port is None:
            known = read_ports(question.environment)
            findings.append(
                Finding(
                    *("names", "fail", domain.name),
                    found="no such port; here are "
                    + (
                        ", ".join(f"{p.pci} {p.interface} {p.mac}".strip() for p in known) or "none"
                    ),
                    expected=_description(entry),
                    next_step="set domain_host_pci in the inventory to the port of this domain",
                )
            )
        elif port.driver == VFIO:
            findings.append(Finding("names", "ok", domain.name, f"{port.pci} is with {VFIO}"))
        else:
            findings.append(_name_of(question.environment, entry, port.interface))
    return findings


def _name_of(environment: Environment, entry: DomainPort, interface: str) -> Finding:
    domain = entry.domain
    wanted = domain.host_nic or port_name(domain.name)
    fixed = any(
        re.search(rf"^Name={re.escape(wanted)}$", environment.read(name), flags=re.MULTILINE)
        for folder in LINK_FOLDERS
        for name in environment.glob(f"{folder}/*.link")
    )
    if interface == wanted and fixed:
        return Finding("names", "ok", domain.name, f"{wanted}, held by a .link file")
    return Finding(
        *("names", "warn" if domain.host_nic in (None, interface) else "fail", domain.name),
        found=f"the port is {interface or 'without an interface'}"
        + ("" if fixed else f", and no .link file names it {wanted}"),
        expected=f"{wanted}, by a .link file that matches {_description(entry)}",
        next_step=SETUP,
    )


def _description(entry: DomainPort) -> str:
    domain = entry.domain
    if domain.host_pci or domain.host_mac:
        return str(domain.host_pci or domain.host_mac)
    return f"interface {domain.host_nic or '(none given)'}"


def _kernel_ports(question: Question) -> Iterator[tuple[DomainPort, str]]:
    """Domains whose port the kernel has, with the interface."""
    for entry in question.ports:
        if entry.port is not None and entry.port.interface:
            yield entry, entry.port.interface


def check_links(question: Question) -> list[Finding]:
    """Up, and not slower than one of the domain's ducks."""
    environment = question.environment
    findings = []
    for entry, interface in _kernel_ports(question):
        folder = f"/sys/class/net/{interface}"
        speed = environment.read(f"{folder}/speed")
        mbps = int(speed) if speed.isdigit() else 0
        ducks = question.fleet.ducks if question.fleet is not None else ()
        wanted = max(
            [d.link_mbps or 0 for d in ducks if d.domain.name == entry.domain.name], default=0
        )
        if environment.read(f"{folder}/carrier") != "1":
            findings.append(
                Finding(
                    *("links", "fail", f"{entry.domain.name} {interface}"),
                    found="no link",
                    expected="a link to the domain's switch",
                    next_step="look at cable and switch; an E810 at 25G may need FEC: "
                    f"ethtool --show-fec {interface}",
                )
            )
        elif 0 < mbps < wanted:
            findings.append(
                Finding(
                    *("links", "warn", f"{entry.domain.name} {interface}"),
                    found=f"{mbps} Mbit/s",
                    expected=f"at least the ducks' {wanted} Mbit/s",
                    next_step="look at cable, transceiver and the switch port's speed",
                )
            )
        else:
            shown = f"{mbps} Mbit/s" if mbps else "up (the port tells no speed)"
            findings.append(Finding("links", "ok", f"{entry.domain.name} {interface}", shown))
    return findings


def check_mtu(question: Question) -> list[Finding]:
    """The port's MTU is the domain's."""
    findings = []
    for entry, interface in _kernel_ports(question):
        found = question.environment.read(f"/sys/class/net/{interface}/mtu")
        well = found == str(entry.domain.mtu)
        findings.append(
            Finding(
                *("mtu", "ok" if well else "fail", f"{entry.domain.name} {interface}"),
                found=found or "?",
                expected=str(entry.domain.mtu),
                next_step="" if well else f"{SETUP}; switches must pass that size too",
            )
        )
    return findings


def check_subnets(question: Question) -> list[Finding]:
    """No other interface of this host is in a domain's subnet (T37)."""
    said = question.environment.command(["ip", "-json", "-4", "address", "show"])
    if said is None or not question.ports:
        return []
    addresses = [
        (str(link.get("ifname", "")), IPv4Interface(f"{item['local']}/{item['prefixlen']}"))
        for link in json.loads(said)
        for item in link.get("addr_info", ())
    ]
    findings = []
    for entry in question.ports:
        domain = entry.domain
        own = entry.port.interface if entry.port is not None else ""
        others = [
            f"{name} {address}"
            for name, address in addresses
            if name != own and address.network.overlaps(domain.subnet)
        ]
        has = any(name == own and address.ip == domain.host_address for name, address in addresses)
        if others:
            level, found = "fail", f"also on {', '.join(others)}"
        elif own and not has:
            level, found = "fail", f"{own} has not the address {domain.host_address}"
        else:
            findings.append(Finding("subnets", "ok", domain.name, f"{domain.subnet} is its own"))
            continue
        findings.append(
            Finding(
                *("subnets", "fail" if level == "fail" else "warn", domain.name),
                found=found,
                expected=f"{domain.host_address} on the domain's port, and nowhere else "
                f"{domain.subnet}",
                next_step="give the other interface another subnet" if others else SETUP,
            )
        )
    return findings


def check_arp(question: Question) -> list[Finding]:
    """With several ports a host answers ARP for all of them on each, unless told not to (T37)."""
    environment = question.environment
    ports = list(_kernel_ports(question))
    if len(ports) < 2:
        return []
    wrong = []
    for _, interface in ports:
        for key, wanted in ARP_WANTED.items():
            values = [
                environment.read(f"/proc/sys/net/ipv4/conf/{where}/{key}")
                for where in ("all", interface)
            ]
            # The kernel uses the larger of both (ip-sysctl.rst).
            value = max((int(text) for text in values if text.isdigit()), default=0)
            if value != wanted:
                wrong.append(f"{interface} {key}={value}")
    if not wrong:
        return [Finding("arp", "ok", "ARP settings", "each port answers for itself only")]
    return [
        Finding(
            *("arp", "warn", "ARP settings"),
            found=", ".join(wrong),
            expected=" ".join(f"{key}={value}" for key, value in ARP_WANTED.items()),
            next_step=SETUP,
        )
    ]


def check_neighbours(question: Question) -> list[Finding]:
    """The kernel's table of neighbours overflows with a thousand ducks (T31)."""
    ducks = len(question.fleet.ducks) if question.fleet is not None else 0
    if ducks <= NEIGHBOURS_DUCKS:
        return []
    text = question.environment.read("/proc/sys/net/ipv4/neigh/default/gc_thresh3")
    limit = int(text) if text.isdigit() else 0
    well = limit >= 4 * ducks or limit >= 16384
    return [
        Finding(
            *("neighbours", "ok" if well else "fail", "neighbour table"),
            found=f"gc_thresh3 = {limit} for {ducks} ducks",
            expected=f"at least {min(4 * ducks, 16384)}",
            next_step="" if well else SETUP,
        )
    ]


def check_firmware(question: Question) -> list[Finding]:
    """Driver and firmware of each port, and whether an E810's is too old."""
    findings = []
    for entry, interface in _kernel_ports(question):
        said = question.environment.command(["ethtool", "--driver", interface])
        if said is None:
            continue
        fields = dict(line.partition(": ")[::2] for line in said.splitlines())
        driver, firmware = fields.get("driver", "?"), fields.get("firmware-version", "").strip()
        version = re.match(r"(\d+)\.(\d+)", firmware)
        number = (int(version.group(1)), int(version.group(2))) if version else None
        # ice prints 4.90 for 4.9: two digits of the minor number.
        old = driver == "ice" and number is not None and _release(number) < ICE_FIRMWARE_MIN
        findings.append(
            Finding(
                *("firmware", "warn" if old else "ok", f"{entry.domain.name} {interface}"),
                found=f"{driver} {fields.get('version', '')}, firmware {firmware or 'not told'}",
                expected=f"E810: {ICE_FIRMWARE_MIN[0]}.{ICE_FIRMWARE_MIN[1]} or newer",
                next_step="update the card's NVM, then the ice driver and ice.pkg" if old else "",
            )
        )
    return findings


def _release(number: tuple[int, int]) -> tuple[int, int]:
    major, minor = number
    return major, minor // 10 if minor >= 10 else minor


def check_kernel_log(question: Question) -> list[Finding]:
    """Ports that the kernel could not start or has lost are named there and nowhere else (T41)."""
    said = question.environment.command(["dmesg", "--color=never"])
    if said is None:
        return []
    lines = [line.strip() for line in said.splitlines() if PROBE_FAILED.search(line)]
    if not lines:
        return [Finding("kernel-log", "ok", "network drivers", "no failed probe, no lost port")]
    return [
        Finding(
            *("kernel-log", "fail", "network drivers"),
            found="; ".join(lines[-LOG_LINES_SHOWN:]),
            expected="no failed probe, no lost port",
            next_step="NVM checksum: update the port's firmware; link lost: pcie_aspm=off; then "
            "power the machine off and on",
        )
    ]
