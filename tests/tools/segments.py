"""Ethernet segments in network namespaces: one bridge per domain, a host, ducks."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

from duckctl.native import native_path

ETHERTYPE_IPV4 = b"\x08\x00"
ETH_P_ALL = 3
SO_RCVBUFFORCE = 33
SOL_PACKET, PACKET_STATISTICS = 263, 6  # linux/if_packet.h
SNIFFER_BYTES = 256 << 20  # no more is taken than frames need
# A frame must hold the MTU and fit the packet buffers, a block is whole frames and whole pages.
AF_PACKET = "net_af_packet,iface={nic},framesz=9216,blocksz=36864,framecnt=512"
CLONE_NEWNET = 0x40000000


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def why_not() -> str:
    """Empty when namespaces and bridges can be made here."""
    if shutil.which("ip") is None:
        return "the program ip is not installed"
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"try-{secrets.token_hex(4)}"
    try:
        ip("netns", "add", name)
        try:
            ip("-n", name, "link", "add", "br0", "type", "bridge")
            ip("-n", name, "link", "add", "v0", "type", "veth", "peer", "name", "v1")
        finally:
            ip("netns", "del", name)
    except subprocess.CalledProcessError as error:
        return f"no namespaces with bridges here: {error.stderr.strip()}"
    return ""


def why_not_dpdk() -> str:
    if not (native_path("libduckhost.so").parent / "libduckdpdk.so").exists():
        return "built without DPDK (libdpdk-dev)"
    return why_not()


def _sniffer(port: str) -> socket.socket:
    """Sees what comes in and goes out by one port of a switch."""
    sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # nothing before it is bound
    sniffer.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, SNIFFER_BYTES)
    sniffer.bind((port, ETH_P_ALL))
    sniffer.setblocking(False)
    return sniffer


def _drained(sniffer: socket.socket) -> list[bytes]:
    """The IPv4 frames that it saw; it must not have lost any."""
    frames = []
    with sniffer:
        with contextlib.suppress(BlockingIOError):
            while True:
                frames.append(sniffer.recv(64))
        _, lost = struct.unpack("II", sniffer.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
    assert lost == 0, f"{lost} frames were not captured"
    return [frame for frame in frames if frame[12:14] == ETHERTYPE_IPV4]


class Segments:
    """A switch namespace with one bridge per domain, a host namespace, one per duck.

    With ``bare`` the host's kernel has no addresses there: its cards are for another driver, which
    must get frames as they are on a wire, not what a sender wants to have cut into them.
    """

    def __init__(self, mtu: int, domains: int, *, bare: bool = False) -> None:
        self.domains = domains
        self._bare = bare
        self._mark = secrets.token_hex(3)
        self._mtu = str(mtu)
        self._names: list[str] = []
        self._ports: dict[int, list[str]] = {domain: [] for domain in range(domains)}
        self.switch = self._namespace("sw")
        self.host = self._namespace("host")
        for domain in range(domains):
            ip("-n", self.switch, "link", "add", f"br{domain}", "mtu", self._mtu, "type", "bridge")
            ip("-n", self.switch, "link", "set", f"br{domain}", "up")
            address = None if bare else f"10.21.{domain + 1}.1"
            self._plug(self.host, f"nic{domain}", domain, f"h{domain}", address)

    def add_duck(self, domain: int, number: int) -> tuple[str, str]:
        """The duck's namespace and address."""
        namespace = self._namespace(f"d{domain}{number}")
        address = f"10.21.{domain + 1}.{10 + number}"
        self._plug(namespace, "eth0", domain, f"p{number}.{domain}", address)
        if self._bare:
            ip("-n", namespace, "link", "set", "eth0", "gso_max_segs", "1")
        return namespace, address

    def change_card(self, domain: int, number: int) -> None:
        """The duck's card is another one: its kernel tells nobody."""
        namespace = self._name_of(f"d{domain}{number}")
        ip("-n", namespace, "link", "set", "eth0", "address", f"02:00:00:00:88:{number:02x}")

    def plug_in(self, nic: str, domain: int) -> None:
        """An interface of the switch namespace that carries somebody else's frames. It gets an
        address of its own: what a bridge's ports are addressed by, the bridge keeps to itself."""
        address = f"02:00:00:00:99:{domain:02x}"
        ip("-n", self.switch, "link", "set", nic, "address", address, "mtu", self._mtu)
        ip("-n", self.switch, "link", "set", nic, "master", f"br{domain}", "up")
        self._ports[domain].append(nic)

    def set_host_link(self, domain: int, state: str) -> None:
        """The host's network card of a domain goes "down" or "up"."""
        ip("-n", self.host, "link", "set", f"nic{domain}", state)

    def set_port(self, domain: int, state: str) -> None:
        """The switch's port of the host: the card keeps its state and loses its carrier."""
        ip("-n", self.switch, "link", "set", f"h{domain}", state)

    def sent_bytes(self, domain: int) -> int:
        """Bytes, since packets that leave together count as one here."""
        return self._sent(domain, "tx_bytes")

    def sent_units(self, domain: int) -> int:
        """Packets, those that leave together counted as one."""
        return self._sent(domain, "tx_packets")

    def _sent(self, domain: int, counter: str) -> int:
        path = f"/sys/class/net/nic{domain}/statistics/{counter}"
        command = ["ip", "netns", "exec", self.host, "cat", path]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    @contextlib.contextmanager
    def captured(self) -> Iterator[list[list[bytes]]]:
        """The beginnings of the IPv4 frames that pass any port of each domain's bridge, in and out;
        complete at the end, or an AssertionError."""
        with self.inside(self.switch):
            sniffers = [
                (domain, _sniffer(port)) for domain, ports in self._ports.items() for port in ports
            ]
        frames: list[list[bytes]] = [[] for _ in range(self.domains)]
        try:
            yield frames
        finally:
            for domain, sniffer in sniffers:
                frames[domain] += _drained(sniffer)

    @contextlib.contextmanager
    def in_host(self) -> Iterator[None]:
        """This thread is in the host's namespace: sockets opened now stay there."""
        with self.inside(self.host):
            yield

    @contextlib.contextmanager
    def inside(self, namespace: str) -> Iterator[None]:
        """This thread is in a namespace."""
        libc = ctypes.CDLL(None, use_errno=True)
        with (
            Path("/proc/thread-self/ns/net").open() as home,
            Path(f"/var/run/netns/{namespace}").open() as away,
        ):
            assert libc.setns(away.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            try:
                yield
            finally:
                assert libc.setns(home.fileno(), CLONE_NEWNET) == 0

    def remove(self) -> None:
        for name in self._names:
            ip("netns", "del", name)

    def _name_of(self, role: str) -> str:
        return f"duck{self._mark}-{role}"

    def _namespace(self, role: str) -> str:
        name = self._name_of(role)
        ip("netns", "add", name)
        self._names.append(name)
        ip("-n", name, "link", "set", "lo", "up")
        return name

    def _plug(self, namespace: str, nic: str, domain: int, port: str, address: str | None) -> None:
        peer = ["type", "veth", "peer", "name", nic, "mtu", self._mtu, "netns", namespace]
        ip("-n", self.switch, "link", "add", port, "mtu", self._mtu, *peer)
        ip("-n", self.switch, "link", "set", port, "master", f"br{domain}", "up")
        self._ports[domain].append(port)
        if address is not None:
            ip("-n", namespace, "addr", "add", f"{address}/24", "brd", "+", "dev", nic)
        ip("-n", namespace, "link", "set", nic, "up")
