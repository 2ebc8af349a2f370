"""A DHCP client of our own, for packets that no real firmware would let us choose (RFC 2131)."""

from __future__ import annotations

import secrets
import socket
import struct
import time
from dataclasses import dataclass, field
from ipaddress import IPv4Address

COOKIE = bytes.fromhex("63825363")
DISCOVER, OFFER, REQUEST, ACK, NAK = 1, 2, 3, 5, 6
WAIT_S = 1.2  # dnsmasq answers in milliseconds; silence has to be waited for


@dataclass(frozen=True)
class Reply:
    """What a server answered. ``file``: option 67, else the header's field."""

    kind: int
    address: str
    server: str  # siaddr
    source: str
    options: dict[int, bytes] = field(default_factory=dict)
    header_file: str = ""

    @property
    def file(self) -> str:
        named = self.options.get(67, b"").rstrip(b"\0").decode()
        return named or self.header_file


def options_of(mac: str, arch: int | None, ipxe: bool, vendor: str | None) -> list[bytes]:
    """Options of a boot client. ``vendor`` None: what firmware of this arch sends."""
    found = []
    if vendor is None and arch is not None:
        name = "HTTPClient" if arch in (15, 16, 20) else "PXEClient"
        vendor = f"{name}:Arch:{arch:05d}:UNDI:003000"
    if arch is not None:
        found += [b"\x5d\x02" + struct.pack(">H", arch), b"\x5e\x03\x01\x03\x00"]
        uuid = b"\0" + bytes(10) + bytes.fromhex(mac.replace(":", ""))
        found.append(b"\x61" + bytes([len(uuid)]) + uuid)
    if vendor:
        found.append(b"\x3c" + bytes([len(vendor)]) + vendor.encode())
    if ipxe:
        found += [b"\x4d\x04iPXE", b"\xaf\x03\xb1\x01\x01"]
    found.append(b"\x37\x08" + bytes([1, 3, 26, 43, 60, 66, 67, 175]))
    return found


def packet(kind: int, mac: str, xid: int, options: list[bytes], ciaddr: str = "0.0.0.0") -> bytes:
    header = struct.pack(">BBBBIHH", 1, 1, 6, 0, xid, 0, 0x8000)
    header += IPv4Address(ciaddr).packed + bytes(12)
    header += bytes.fromhex(mac.replace(":", "")) + bytes(10) + bytes(192) + COOKIE
    body = bytes([53, 1, kind]) + b"\x39\x02\x05\xc0" + b"".join(options) + b"\xff"
    return header + body.ljust(64, b"\0")


def parse(raw: bytes, source: str) -> Reply:
    options: dict[int, bytes] = {}
    at = 240
    while at < len(raw) and raw[at] != 255:
        if raw[at] == 0:
            at += 1
            continue
        options[raw[at]] = raw[at + 2 : at + 2 + raw[at + 1]]
        at += 2 + raw[at + 1]
    return Reply(
        options[53][0],
        str(IPv4Address(raw[16:20])),
        str(IPv4Address(raw[20:24])),
        source,
        options,
        raw[108:236].split(b"\0")[0].decode(errors="replace"),
    )


class Client:
    """One box on one socket (bound to port 68 of its namespace)."""

    def __init__(self, box: socket.socket, mac: str) -> None:
        self.box, self.mac = box, mac

    def ask(
        self,
        kind: int,
        arch: int | None,
        ipxe: bool = False,
        vendor: str | None = None,
        extra: tuple[bytes, ...] = (),
        to: tuple[str, int] = ("255.255.255.255", 67),
        ciaddr: str = "0.0.0.0",
        wait_s: float = WAIT_S,
    ) -> list[Reply]:
        """Sends one packet; the first answer to it, or nothing when the wait is over."""
        xid = secrets.randbits(32)
        options = [*options_of(self.mac, arch, ipxe, vendor), *extra]
        self.box.sendto(packet(kind, self.mac, xid, options, ciaddr), to)
        deadline = time.monotonic() + wait_s
        while (left := deadline - time.monotonic()) > 0:
            self.box.settimeout(left)
            try:
                raw, source = self.box.recvfrom(4096)
            except TimeoutError:
                break
            if len(raw) > 240 and raw[4:8] == xid.to_bytes(4, "big"):
                return [parse(raw, source[0])]
        return []

    def discover(
        self, arch: int | None, ipxe: bool = False, wait_s: float = WAIT_S
    ) -> Reply | None:
        """The offer, or None."""
        replies = self.ask(DISCOVER, arch, ipxe, wait_s=wait_s)
        return replies[0] if replies else None

    def lease(self, arch: int | None, ipxe: bool = False) -> Reply | None:
        """DISCOVER, OFFER, REQUEST, ACK; the ACK or NAK, or None when there was no offer."""
        offer = self.discover(arch, ipxe)
        if offer is None:
            return None
        extra = (
            b"\x32\x04" + IPv4Address(offer.address).packed,
            b"\x36\x04" + offer.options[54],
        )
        replies = self.ask(REQUEST, arch, ipxe, extra=extra)
        return replies[0] if replies else None
