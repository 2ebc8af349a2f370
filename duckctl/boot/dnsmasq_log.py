"""dnsmasq's log (``log-dhcp``) and our HTTP log -> BootEvents.

With ``log-dhcp`` each packet is a group of lines that begin with its transaction id; the tag line
holds ``archN`` (option 93, see ``duckctl.boot.dnsmasq``), the ``sent size`` lines what the client
got. A group ends with the first line that is not of it, or when the log falls silent (``flush``).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import PurePosixPath

from duckctl.boot.dnsmasq import DOMAIN_TAG
from duckctl.boot.events import BootEvent, Kind
from duckctl.console import plain
from duckctl.inventory import Fleet

LINE = re.compile(r"(\w{3} [ \d]\d \d\d:\d\d:\d\d) (dnsmasq(?:-dhcp|-tftp)?)\[\d+\]: (.*)")
GROUP_LINE = re.compile(r"(\d{1,10}) (.*)")
MESSAGE = re.compile(
    r"(DHCP[A-Z]+|PXE)\(([^)]+)\) (?:(\d+\.\d+\.\d+\.\d+) )?"
    r"([0-9a-f]{2}(?::[0-9a-f]{2}){5}) ?(.*)"
)
SENT_OPTION = re.compile(r"sent size: *\d+ option: *(\d+) \S+ +(.*)")
TFTP_SENT = re.compile(r"(sent|failed sending) (.+) to (\d+\.\d+\.\d+\.\d+)")
TFTP_ERROR = re.compile(r"error (\d+) (.*) received from (\d+\.\d+\.\d+\.\d+)")
TFTP_MISSING = re.compile(r"file (.+) not found for (\d+\.\d+\.\d+\.\d+)")
DUCK_SCRIPT = re.compile(r"/duck/([0-9a-f]{2}(?:-[0-9a-f]{2}){5})\.ipxe")
USER_ABORT = 8  # EDK2 asks for the size, aborts, and asks again: no failure
YEARS_BACK_MAX = 9  # 1896 to 1904 and 2096 to 2104 have no leap year between them
ADDRESSES_MAX = 16_384  # of boxes seen; far above what a fleet has
MESSAGES: dict[str, Kind] = {
    "DHCPDISCOVER": "discover",
    "DHCPOFFER": "offer",
    "DHCPREQUEST": "request",
    "DHCPACK": "ack",
    "DHCPNAK": "nak",
    "DHCPDECLINE": "decline",
    "DHCPRELEASE": "release",
    "DHCPINFORM": "request",
}


@dataclass
class _Group:
    """The lines of one packet, as far as they were read."""

    xid: str
    time: float
    events: list[BootEvent] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    file: str = ""
    is_ack: bool = False


class BootLog:
    """Reads log lines one by one. Addresses are told to boxes by reservations and leases."""

    def __init__(
        self,
        fleet: Fleet,
        tftp_root: str,
        clock: Callable[[], float] = time.time,
        leases: Mapping[str, str] | None = None,
    ) -> None:
        self._clock = clock
        self._tftp_root = PurePosixPath(tftp_root)
        self._by_mac = {duck.mac: duck for duck in fleet.ducks if duck.mac is not None}
        self._domain_of = {f"{DOMAIN_TAG}{domain.name}": domain.name for domain in fleet.domains}
        self._host_addresses = {str(domain.host_address) for domain in fleet.domains}
        self._mac_of = {str(duck.address): duck.mac for duck in fleet.ducks if duck.mac}
        self._mac_of.update(leases or {})
        self.at_group_start = False  # the line read last began the lines of a packet
        self._group: _Group | None = None
        self._errors: dict[str, tuple[int, str]] = {}

    def line(self, text: str) -> list[BootEvent]:
        """The events that this line of dnsmasq's log completes."""
        self.at_group_start = False
        match = LINE.match(plain(text.rstrip("\n")))
        if match is None:
            return []
        stamp, program, rest = match.groups()
        if program == "dnsmasq":
            return []  # warnings of its DNS half stand between the lines of a group
        if program == "dnsmasq-tftp":
            return [*self._end_group(), *self._tftp(self._time(stamp), rest)]
        grouped = GROUP_LINE.fullmatch(rest)
        if grouped is None:
            return []
        xid, rest = grouped.groups()
        done = []
        if self._group is None or self._group.xid != xid or rest.startswith("available DHCP"):
            done = self._end_group()
            self._group = _Group(xid, self._time(stamp))
            self.at_group_start = True
        self._add(self._group, rest)
        return done

    @property
    def in_group(self) -> bool:
        """Lines of a packet were read, and more of them may come."""
        return self._group is not None or bool(self._errors)

    def flush(self) -> list[BootEvent]:
        """The events of the group that was read last; call it when the log falls silent."""
        self._errors.clear()
        return self._end_group()

    def _end_group(self) -> list[BootEvent]:
        group, self._group = self._group, None
        if group is None:
            return []
        arch = next((int(tag[4:]) for tag in group.tags if re.fullmatch(r"arch\d+", tag)), None)
        domain = next((self._domain_of[tag] for tag in group.tags if tag in self._domain_of), None)
        done = []
        for event in group.events:
            if event.kind == "proxy" and group.is_ack:
                event = replace(event, kind="boot_server")
            answered = event.kind in ("offer", "ack", "proxy", "boot_server")
            event = replace(
                event,
                arch=arch,
                domain=domain or event.domain,
                ipxe="ipxe" in group.tags,
                file=(group.file or None) if answered else None,
            )
            self._learn(event)
            done.append(event)
        return done

    def request(self, text: str) -> list[BootEvent]:
        """The event of one line of the HTTP log."""
        try:
            entry = json.loads(text)
            path, status = plain(str(entry["path"])), int(entry["status"])
            method, problem = str(entry["method"]), plain(str(entry.get("problem") or ""))
            address, at = plain(str(entry["address"])), float(entry["time"])
        except (ValueError, KeyError, TypeError):
            return []
        kind: Kind = "http" if method == "GET" else "http_head"
        if status == 404:
            kind = "http_missing"
        elif problem or not 200 <= status < 300:
            kind = "http_failed"
        mac, is_claimed = self._requester(address, path)
        event = BootEvent(at, kind, mac, address=address, file=path, domain=entry.get("domain"),
                          text=problem, is_claimed=is_claimed)  # fmt: skip
        return [self._named(event)]

    def _requester(self, address: str, path: str) -> tuple[str | None, bool]:
        """Whose request it is, and whether only the script's name says so.

        Anybody can ask for any duck's script. A name counts where nobody is known to have the
        client's address (another DHCP server gave it), in the duck's own subnet."""
        known = self._mac_of.get(address)
        match = DUCK_SCRIPT.fullmatch(path.lower())
        if known is not None or match is None or address in self._host_addresses:
            return known, False
        duck = self._by_mac.get(match.group(1).replace("-", ":"))
        try:
            is_near = duck is not None and IPv4Address(address) in duck.domain.subnet
        except ValueError:
            is_near = False
        return (duck.mac, True) if duck is not None and is_near else (None, False)

    def _time(self, stamp: str) -> float:
        """dnsmasq writes UTC (it is started so) and no year: the last one that has this day and
        makes it lie in the past (a day of slack). February 29 is up to eight years ago; a day of no
        year counts as now."""
        now = self._clock()
        latest = datetime.fromtimestamp(now, UTC) + timedelta(days=1)
        for year in range(latest.year, latest.year - YEARS_BACK_MAX, -1):
            try:
                found = datetime.strptime(f"{year} {stamp} +0000", "%Y %b %d %H:%M:%S %z")
            except ValueError:
                continue
            if found <= latest:
                return found.timestamp()
        return now

    def _add(self, group: _Group, rest: str) -> None:
        if match := MESSAGE.fullmatch(rest):
            word, _, address, mac, text = match.groups()
            kind: Kind | None = "proxy" if word == "PXE" else MESSAGES.get(word)
            if kind is None:
                return
            if text.startswith("no address"):
                kind = "no_address"
            group.events.append(
                self._named(BootEvent(group.time, kind, mac, address=address, text=text))
            )
        elif rest.startswith("tags: "):
            group.tags = rest.removeprefix("tags: ").split(", ")
        elif rest.startswith("bootfile name: "):
            group.file = rest.removeprefix("bootfile name: ")
        elif match := SENT_OPTION.match(rest):
            option, value = match.groups()
            if option == "67":
                group.file = value.strip()
            elif option == "53":
                group.is_ack = value.strip() == "5"

    def _learn(self, event: BootEvent) -> None:
        """Who has an address, for the lines of TFTP and HTTP that name only the address."""
        if event.kind not in ("ack", "request", "boot_server"):
            return
        address, mac = event.address, event.mac
        if address and mac and (len(self._mac_of) < ADDRESSES_MAX or address in self._mac_of):
            self._mac_of[address] = mac

    def _named(self, event: BootEvent) -> BootEvent:
        duck = self._by_mac.get(event.mac) if event.mac else None
        if duck is None:
            return event
        return replace(event, duck=duck.name, domain=event.domain or duck.domain.name)

    def _tftp(self, at: float, rest: str) -> list[BootEvent]:
        if match := TFTP_ERROR.fullmatch(rest):
            # dnsmasq goes on with one "sent" or "failed sending" line for the same transfer.
            code, text, address = match.groups()
            if len(self._errors) < ADDRESSES_MAX:
                self._errors[address] = (int(code), text)
                self.at_group_start = True
            return []
        if match := TFTP_SENT.fullmatch(rest):
            word, path, address = match.groups()
            kind: Kind = "tftp" if word == "sent" else "tftp_failed"
            error = self._errors.pop(address, None)
            text = ""
            if error is not None:
                kind = "tftp_abort" if error[0] == USER_ABORT else "tftp_failed"
                text = f"error {error[0]} {error[1]}"
        elif match := TFTP_MISSING.fullmatch(rest):
            path, address = match.groups()
            kind, text = "tftp_missing", ""
        else:
            return []
        mac = self._mac_of.get(address)
        event = BootEvent(at, kind, mac, address=address, file=self._below_root(path), text=text)
        return [self._named(event)]

    def _below_root(self, path: str) -> str:
        place = PurePosixPath(path)
        if not place.is_relative_to(self._tftp_root):
            return path
        return str(place.relative_to(self._tftp_root))
