"""Two network namespaces joined by a bridge per domain: ``host`` and ``box``; root is needed."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

CLONE_NEWNET = 0x40000000
Result = TypeVar("Result")


@cache
def why_no_namespaces() -> str:
    """Empty where a network namespace can be made; tried once, since rights alone do not tell."""
    if shutil.which("ip") is None:
        return "not installed: ip"
    name = f"dbtry{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return "" if done.returncode == 0 else f"no network namespaces: {done.stderr.strip()[:80]}"


def needs_namespaces(*programs: str) -> pytest.MarkDecorator:
    """Skips a test, naming the reason, where namespaces or programs cannot be had."""
    missing = [name for name in programs if shutil.which(name) is None]
    reason = f"not installed: {', '.join(missing)}" if missing else why_no_namespaces()
    return pytest.mark.skipif(bool(reason), reason=reason or "namespaces can be made")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Net:
    """``host`` has nic0, nic1 (198.18.0.1, 198.18.1.1); ``box`` the other ends, eth0, eth1.

    A bridge in ``box`` joins each cable with taps that a machine may use (``add_tap``).
    """

    def __init__(self, label: str, domains: int = 1, mtu: int = 1500) -> None:
        self.prefix = f"db{os.getpid() % 100000}{label}"
        self.host, self.box = f"{self.prefix}h", f"{self.prefix}b"
        self.domains, self.mtu = domains, mtu

    def __enter__(self) -> Net:
        ip("netns", "add", self.host)
        ip("netns", "add", self.box)
        ip("-n", self.host, "link", "set", "lo", "up")
        for index in range(self.domains):
            bridge = f"br{index}"
            ip("-n", self.box, "link", "add", bridge, "type", "bridge", "stp_state", "0",
               "forward_delay", "0", "mcast_snooping", "0")  # fmt: skip
            ip("-n", self.host, "link", "add", f"nic{index}", "mtu", str(self.mtu), "type",
               "veth", "peer", "name", f"eth{index}", "mtu", str(self.mtu),
               "netns", self.box)  # fmt: skip
            ip("-n", self.box, "link", "set", bridge, "mtu", str(self.mtu), "up")
            ip("-n", self.box, "link", "set", f"eth{index}", "master", bridge, "up")
            ip("-n", self.host, "link", "set", f"nic{index}", "up")
            ip("-n", self.host, "addr", "add", f"198.18.{index}.1/24", "brd", "+", "dev",
               f"nic{index}")  # fmt: skip
            ip("-n", self.host, "addr", "add", f"2001:db8:{index}::1/64", "nodad", "dev",
               f"nic{index}")  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        for name in (self.host, self.box):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def add_tap(self, name: str, domain: int = 0) -> None:
        """A new tap; one of that name that an earlier machine had goes."""
        subprocess.run(
            ["ip", "-n", self.box, "link", "del", name], check=False, capture_output=True
        )
        ip("-n", self.box, "tuntap", "add", name, "mode", "tap")
        ip("-n", self.box, "link", "set", name, "mtu", str(self.mtu), "master",
           f"br{domain}", "up")  # fmt: skip

    def run_in(self, namespace: str, words: Sequence[str | Path]) -> list[str]:
        """The command line that runs ``words`` in one of the two namespaces."""
        return ["ip", "netns", "exec", namespace, *map(str, words)]


def inside(namespace: str, action: Callable[[], Result]) -> Result:
    """Runs an action in a namespace; sockets that it opens stay there."""
    found: list[Any] = []

    def work() -> None:
        try:
            with Path(f"/run/netns/{namespace}").open() as place:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(place.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            found.append(action())
        except BaseException as error:  # noqa: BLE001 - carried over to the caller's thread
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    result: Result = found[0]
    return result


def udp_socket(namespace: str, device: str, port: int) -> socket.socket:
    """A socket that may broadcast, bound to one device of a namespace and a port."""

    def make() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
        made.bind(("", port))
        return made

    return inside(namespace, make)
