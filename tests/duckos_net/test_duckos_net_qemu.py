"""The real image in QEMU, in a network namespace of its own: an address from dnsmasq, echoes up to
9000-byte packets, and a second NIC that is left alone."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from duckctl.native import native_path

HERE = Path(__file__).parent
MAC = "52:54:00:12:34:56"
ADDRESS = "198.18.0.101"
BOOT_LIMIT_S = 30.0
PROGRAMS = {"qemu-system-x86_64": "qemu-system-x86", "dnsmasq": "dnsmasq-base", "ip": "iproute2"}


def why_not() -> str:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [package for name, package in PROGRAMS.items() if not shutil.which(name, path=path)]
    if missing:
        return f"needs the packages {' '.join(missing)}"
    if os.geteuid() != 0 or not Path("/dev/net/tun").exists():
        return "needs root and /dev/net/tun for a network namespace"
    return ""


pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


@dataclass(frozen=True)
class Lan:
    namespace: str
    folder: Path

    def run(self, *words: str) -> str:
        command = ["ip", "netns", "exec", self.namespace, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        command = ["ip", "netns", "exec", self.namespace, *words]
        with (self.folder / f"{words[0]}.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


@contextmanager
def running(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture
def lan(tmp_path: Path) -> Iterator[Lan]:
    """A bridge with the host's address, two taps and a DHCP server."""
    lan = Lan(f"dn{secrets.token_hex(3)}", tmp_path)
    subprocess.run(["ip", "netns", "add", lan.namespace], check=True)
    try:
        lan.run("ip", "link", "set", "lo", "up")
        lan.run("ip", "link", "add", "br0", "mtu", "9000", "type", "bridge", "forward_delay", "0")
        lan.run("ip", "link", "set", "br0", "up")
        lan.run("ip", "addr", "add", "198.18.0.1/24", "brd", "+", "dev", "br0")
        for tap in ("t0", "t1"):
            lan.run("ip", "tuntap", "add", tap, "mode", "tap")
            lan.run("ip", "link", "set", tap, "mtu", "9000", "up")
        lan.run("ip", "link", "set", "t0", "master", "br0")
        options = ["--port=0", "--interface=br0", "--bind-interfaces", "--no-ping", "--user=root"]
        options += ["--dhcp-range=198.18.0.100,198.18.0.120,5m", "--dhcp-option=26,9000"]
        options += [f"--dhcp-host={MAC},{ADDRESS},d01", f"--dhcp-leasefile={tmp_path}/leases"]
        server = lan.start("dnsmasq", "-k", "-C", "/dev/null", "--pid-file=", *options)
        with running(server):
            yield lan
    finally:
        subprocess.run(["ip", "netns", "del", lan.namespace], check=True)


@contextmanager
def guest(lan: Lan, machine: str, *nics: str) -> Iterator[Path]:
    """The image by -kernel; yields its serial log."""
    log = lan.folder / "serial.log"
    words = ["-M", machine, "-accel", "tcg", "-cpu", "max", "-m", "64", "-display", "none"]
    words += ["-monitor", "none", "-serial", f"file:{log}", "-no-reboot"]
    words += ["-qmp", f"unix:{lan.folder}/control,server=on,wait=off"]
    words += ["-kernel", str(native_path("duckos.img")), "-append", "poll=hlt"]
    for index, nic in enumerate(nics):
        words += ["-netdev", f"tap,id=n{index},ifname=t{index},script=no,downscript=no"]
        words += ["-device", f"{nic},netdev=n{index}"]
    with running(lan.start("qemu-system-x86_64", *words)):
        yield log


def wait_for(log: Path, words: str) -> str:
    limit = time.monotonic() + BOOT_LIMIT_S
    text = ""
    while time.monotonic() < limit:
        text = log.read_text(errors="replace") if log.exists() else ""
        if words in text:
            return text
        time.sleep(0.05)
    raise AssertionError(f"no {words!r} within {BOOT_LIMIT_S:.0f} s:\n{text[-2000:]}")


def echoes(lan: Lan, *sizes: int) -> list[str]:
    """The sizes that were lost."""
    words = [sys.executable, str(HERE / "ping_inside.py"), ADDRESS, *map(str, sizes)]
    return [line for line in lan.run(*words).splitlines() if line.endswith("lost")]


@pytest.mark.parametrize(
    ("machine", "nic", "driver"),
    [
        ("pc", f"virtio-net-pci,host_mtu=9000,mac={MAC}", "virtio-net"),
        ("q35", f"virtio-net-pci,mac={MAC}", "virtio-net"),
        ("pc", f"e1000e,mac={MAC}", "e1000e"),
        ("q35", f"e1000e,mac={MAC}", "e1000e"),
    ],
)
def test_address_and_echoes(lan: Lan, machine: str, nic: str, driver: str) -> None:
    """The image gets its address by MAC and answers unfragmented packets of every size to 9000."""
    check_address_and_echoes(lan, machine, nic, driver)


def test_igb_where_qemu_has_one(lan: Lan) -> None:
    """The igb driver and its rings, which igc shares, on the 82576 that QEMU emulates since 8.0."""
    models = subprocess.run(
        ["qemu-system-x86_64", "-device", "help"], check=True, capture_output=True, text=True
    ).stdout
    if 'name "igb"' not in models:
        pytest.skip("this QEMU has no igb: needs qemu-system-x86 8.0 or later")
    check_address_and_echoes(lan, "q35", f"igb,mac={MAC}", "igb")


def check_address_and_echoes(lan: Lan, machine: str, nic: str, driver: str) -> None:
    with guest(lan, machine, nic) as log:
        text = wait_for(log, f"address {ADDRESS}")
        assert f" {driver} " in text
        assert echoes(lan, 0, 1, 56, 64, 1472, 1473, 4096, 8971, 8972) == []
        assert "not yet seen on silicon" not in text


def test_the_nic_that_has_a_server_is_used(lan: Lan) -> None:
    """Of two NICs with a link the one that gets an address stays, and the log names both."""
    first, second = f"e1000e,mac={MAC}", "virtio-net-pci,mac=52:54:00:12:34:57"
    with guest(lan, "q35", first, second) as log:
        text = wait_for(log, f"address {ADDRESS}")
        assert "nic 00:02.0: e1000e 82574L" in text and "nic 00:03.0: virtio-net" in text
        assert echoes(lan, 56, 8972) == []


def set_link(lan: Lan, up: bool) -> None:
    """The cable of NIC n0, through QEMU's control socket."""
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(str(lan.folder / "control"))
        with control.makefile("rw") as talk:
            talk.readline()  # its greeting
            for order, words in (
                ("qmp_capabilities", {}),
                ("set_link", {"name": "n0", "up": up}),
            ):
                talk.write(json.dumps({"execute": order, "arguments": words}) + "\n")
                talk.flush()
                while "return" not in json.loads(talk.readline()):
                    pass  # an event


@pytest.mark.parametrize("nic", ["virtio-net-pci", "e1000e"])
def test_a_link_that_goes_and_comes(lan: Lan, nic: str) -> None:
    """A cable that is pulled and put back costs no address: the duck asks whether it may stay."""
    with guest(lan, "q35", f"{nic},mac={MAC}") as log:
        wait_for(log, f"address {ADDRESS}")
        set_link(lan, False)
        wait_for(log, "link down")
        set_link(lan, True)
        wait_for(log, "link down\nnet: ")
        assert echoes(lan, 56, 8972) == []
        assert "address lost" not in log.read_text()
