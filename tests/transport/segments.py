"""Ethernet segments in network namespaces: one bridge per domain, a host, ducks."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from real_duckd import DuckdProcess, new_key
from transport_kit import Shelf, call, library, scale_call, scaled_sum

from duckctl.native import native_path
from host_runtime.transport import Transport

ETHERTYPE_IPV4 = 0x0800
# A frame must hold the MTU and fit the packet buffers, a block is whole frames and whole pages.
AF_PACKET = "net_af_packet,iface={nic},framesz=9216,blocksz=36864,framecnt=512"
CLONE_NEWNET = 0x40000000
PORT = 7211
DOMAINS, DUCKS_PER_DOMAIN = 2, 2


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
    if not (library().parent / "libduckdpdk.so").exists():
        return "built without DPDK (libdpdk-dev)"
    return why_not()


class Segments:
    """A switch namespace with one bridge per domain, a host namespace, one per duck.

    With ``bare`` the host's kernel has no addresses there: its cards are for another driver, which
    must get frames as they are on a wire, not what a sender wants to have cut into them.
    """

    def __init__(self, mtu: int, domains: int = DOMAINS, *, bare: bool = False) -> None:
        self.domains = domains
        self._bare = bare
        self._mark = secrets.token_hex(3)
        self._mtu = str(mtu)
        self._names: list[str] = []
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

    def set_host_link(self, domain: int, state: str) -> None:
        """The host's network card of a domain goes "down" or "up"."""
        ip("-n", self.host, "link", "set", f"nic{domain}", state)

    def set_port(self, domain: int, state: str) -> None:
        """The switch's port of the host: the card keeps its state and loses its carrier."""
        ip("-n", self.switch, "link", "set", f"h{domain}", state)

    def sent_bytes(self, domain: int) -> int:
        """Bytes, since packets that leave together count as one here."""
        path = f"/sys/class/net/nic{domain}/statistics/tx_bytes"
        command = ["ip", "netns", "exec", self.host, "cat", path]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    @contextlib.contextmanager
    def captured(self) -> Iterator[list[list[bytes]]]:
        """The beginnings of the IPv4 frames that pass each domain's bridge, complete at the end."""
        sniffers = []
        with self.inside(self.switch):
            for domain in range(self.domains):
                sniffer = socket.socket(
                    socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE_IPV4)
                )
                sniffer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
                sniffer.bind((f"br{domain}", ETHERTYPE_IPV4))
                sniffer.setblocking(False)
                sniffers.append(sniffer)
        frames: list[list[bytes]] = [[] for _ in sniffers]
        try:
            yield frames
        finally:
            for sniffer, found in zip(sniffers, frames, strict=True):
                with contextlib.suppress(BlockingIOError):
                    while True:
                        found.append(sniffer.recv(64))
                sniffer.close()

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

    def _namespace(self, role: str) -> str:
        name = f"duck{self._mark}-{role}"
        ip("netns", "add", name)
        self._names.append(name)
        ip("-n", name, "link", "set", "lo", "up")
        return name

    def _plug(self, namespace: str, nic: str, domain: int, port: str, address: str | None) -> None:
        peer = ["type", "veth", "peer", "name", nic, "mtu", self._mtu, "netns", namespace]
        ip("-n", self.switch, "link", "add", port, "mtu", self._mtu, *peer)
        ip("-n", self.switch, "link", "set", port, "master", f"br{domain}", "up")
        if address is not None:
            ip("-n", namespace, "addr", "add", f"{address}/24", "brd", "+", "dev", nic)
        ip("-n", namespace, "link", "set", nic, "up")


@contextlib.contextmanager
def running_segments(
    folder: Path,
    kernel: bytes,
    mtu: int,
    domains: int = DOMAINS,
    per_domain: int = DUCKS_PER_DOMAIN,
    *,
    device: str = "",
) -> Iterator[tuple[Segments, Shelf]]:
    """Ducks on their segments. ``device``: of a DPDK port, "{nic}" stands for the host's card."""
    key = new_key()
    segments = Segments(mtu, domains, bare=bool(device))
    ducks: list[DuckdProcess] = []
    try:
        for index in range(domains * per_domain):
            namespace, address = segments.add_duck(index // per_domain, index)
            prefix = ("ip", "netns", "exec", namespace)
            # Any address: a socket bound to its own would not hear broadcasts.
            duck = DuckdProcess(
                f"d{index + 1:02}", folder, key, native_path("duckd"), "0.0.0.0", PORT, prefix
            )
            ducks.append(duck)
            duck.start()
            duck.address = address
        places = [index // per_domain for index in range(len(ducks))]
        broadcast = {domain: f"10.21.{domain + 1}.255" for domain in range(domains)}
        shelf = Shelf(folder, key, kernel, ducks, places, mtu, broadcast)
        if device:
            for domain in range(domains):
                shelf.bind_addresses[domain] = f"10.21.{domain + 1}.1"
                shelf.devices[domain] = device.format(nic=f"nic{domain}")
        yield segments, shelf
    finally:
        for duck in ducks:
            duck.kill()
        segments.remove()


def check_call(transport: Transport, ducks: list[int]) -> None:
    values = np.arange(3000, dtype=np.float32) / np.float32(7)
    np.testing.assert_array_equal(
        call(transport, scale_call(values), len(values)), scaled_sum(values, ducks)
    )
