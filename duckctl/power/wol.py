"""Wake-on-LAN: a magic packet, from the host's port in the duck's domain.

The packet is six bytes 0xff and the MAC sixteen times ("Magic Packet Technology", AMD 20213). It is
sent twice over, since cards differ in what they look at: as UDP to port 9 of the subnet's broadcast
address, and, where the process may, as an Ethernet frame of type 0x0842. Nothing answers it, so the
state is unknown, and a card that forgot to arm itself (I226 does at each power cut) stays dark.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from ipaddress import IPv4Address

from duckctl.console import detail
from duckctl.inventory_fields import MAC
from duckctl.power.backend import Action, PowerError, PowerState, PowerTarget

DISCARD_PORT = 9
ETHERTYPE_WOL = 0x0842
SIOCGIFADDR = 0x8915  # netdevice(7)
SEND_COUNT = 3  # no answer tells of a lost one


def magic_packet(mac: str) -> bytes:
    """The 102 bytes that wake the card of this address."""
    return b"\xff" * 6 + _octets(mac) * 16


def raw_frame(mac: str, source_mac: bytes) -> bytes:
    """The magic packet as a broadcast Ethernet frame."""
    return b"\xff" * 6 + source_mac + struct.pack("!H", ETHERTYPE_WOL) + magic_packet(mac)


def _octets(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


class WolPower:
    """``wol``, option ``mac`` where the card that wakes is not the one that boots."""

    name = "wol"
    actions = frozenset({Action.ON})

    def __init__(self, target: PowerTarget, mac: str | None) -> None:
        self._target = target
        self._mac = (mac or target.duck.mac or "").lower().replace("-", ":")

    def describe(self) -> str:
        return f"wol {self._mac or '(no MAC)'}"

    def state(self) -> PowerState:
        return PowerState.UNKNOWN

    def act(self, action: Action) -> None:
        if action is not Action.ON:
            raise PowerError(f"{self._target.name}: Wake-on-LAN can only switch on")
        if not MAC.fullmatch(self._mac):
            raise PowerError(
                f"{self._target.name}: Wake-on-LAN needs a MAC address, found '{self._mac}'",
                "give the duck its duck_mac, or the backend its mac",
            )
        domain = self._target.duck.domain
        _send_datagrams(self._mac, domain.host_address, domain.subnet.broadcast_address)
        interface = interface_of(domain.host_address)
        if interface is None:
            return
        try:
            _send_frames(self._mac, interface)
        except PermissionError:
            detail(f"{self._target.name}: no raw frame on {interface}: not permitted")


def _send_datagrams(mac: str, host: IPv4Address, broadcast: IPv4Address) -> None:
    """From the host's own address in the domain, so that it leaves by the right port."""
    packet = magic_packet(mac)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        try:
            sender.bind((str(host), 0))
            for _ in range(SEND_COUNT):
                sender.sendto(packet, (str(broadcast), DISCARD_PORT))
        except OSError as error:
            raise PowerError(
                f"cannot send from {host} to {broadcast}: {error.strerror}",
                "has the host's port of this domain its address? see: duckctl doctor",
            ) from error


def interface_of(address: IPv4Address) -> str | None:
    """The interface that has this address; None when no one has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, request)
            except OSError:
                continue  # no IPv4 address
            if IPv4Address(answer[20:24]) == address:
                return name
    return None


def _send_frames(mac: str, interface: str) -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE_WOL)) as sender:
        sender.bind((interface, ETHERTYPE_WOL))
        source = sender.getsockname()[4]
        if len(source) != 6 or not any(source):
            return  # the loopback device
        for _ in range(SEND_COUNT):
            sender.send(raw_frame(mac, source))
