"""What happened at boot, as typed events: the language between the logs and the lifecycle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "discover",  # a DHCPDISCOVER; the file of the offer, if any, comes with ``offer``
    "offer",
    "request",
    "ack",
    "nak",
    "decline",
    "release",
    "no_address",  # asked, but no address is free or reserved: the pool is exhausted
    "proxy",  # a boot file was offered beside another DHCP server (port 67)
    "boot_server",  # the same, asked at port 4011
    "tftp",  # a file was sent whole
    "tftp_abort",  # the client asked for the size only ("error 8"): normal, not a failure
    "tftp_missing",
    "tftp_failed",
    "http",  # a file was sent whole
    "http_head",
    "http_missing",
    "http_failed",
]


@dataclass(frozen=True)
class BootEvent:
    """One thing that a box did, or was answered. What a log line does not tell is None.

    ``time``: seconds since 1970. ``arch``: DHCP option 93. ``file``: TFTP path below the root, or
    HTTP path. ``duck``: its name in the inventory, None for a box that no duck is. ``is_claimed``:
    only the client says that it is this box.
    """

    time: float
    kind: Kind
    mac: str | None = None
    duck: str | None = None
    domain: str | None = None
    address: str | None = None
    arch: int | None = None
    ipxe: bool = False
    file: str | None = None
    text: str = ""
    is_claimed: bool = False
