"""Wake-on-LAN: the packet's bytes, and that it leaves by the port of the duck's own domain."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from power_kit import MAC, fleet_with, ladder_with

from duckctl.inventory import InventoryError
from duckctl.power.backend import Action, PowerError, PowerState, PowerTarget
from duckctl.power.ladder import power_ladder
from duckctl.power.wol import WolPower, magic_packet, raw_frame

OCTETS = bytes.fromhex(MAC.replace(":", ""))
MAGIC = b"\xff" * 6 + OCTETS * 16
needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None,
    reason="network namespaces need root and iproute2",
)


def test_the_magic_packet() -> None:
    """Six times 0xff, sixteen times the address; as a frame it is a broadcast of type 0x0842."""
    assert magic_packet(MAC) == MAGIC
    source = bytes(range(6))
    assert raw_frame(MAC, source) == b"\xff" * 6 + source + b"\x08\x42" + MAGIC


def test_only_on_and_no_state(tmp_path: Path) -> None:
    """It cannot tell and cannot switch off, and says so."""
    (wol,) = ladder_with(tmp_path, "{backend: wol}")
    assert wol.state() is PowerState.UNKNOWN
    with pytest.raises(PowerError, match="only switch on"):
        wol.act(Action.OFF)


@pytest.mark.parametrize("mac", ["a8:b8:e0:21:01", "duck", "a8b8e021010b"])
def test_a_bad_address_is_named(tmp_path: Path, mac: str) -> None:
    """The option is checked when it is read, and again before anything is sent."""
    with pytest.raises(InventoryError, match=f"option 'mac' .*'{mac}' is not a MAC address"):
        ladder_with(tmp_path, f"{{backend: wol, mac: '{mac}'}}")
    fleet = fleet_with(tmp_path, "{backend: wol}")
    wol = WolPower(PowerTarget(fleet.ducks[0], fleet), mac)
    with pytest.raises(PowerError, match=f"found '{mac}'"):
        wol.act(Action.ON)


def test_a_host_without_the_domains_address_is_named(tmp_path: Path) -> None:
    """The port of the domain has no address yet: the message names both and the doctor."""
    fleet = fleet_with(tmp_path, "{backend: wol}", "198.18.77.0/24", "198.18.77.1", "198.18.77.11")
    (wol,) = power_ladder(fleet.ducks[0], fleet)
    with pytest.raises(PowerError, match=r"cannot send from 198\.18\.77\.1") as caught:
        wol.act(Action.ON)
    assert "duckctl doctor" in caught.value.hint


# Runs in the ducks' namespace: every frame that arrives at each port within the time.
LISTEN = """\
import json, socket, select, sys, time
ports = {}
for name in sys.argv[1:]:
    ports[socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))] = name
for port, name in ports.items():
    port.bind((name, 3))
print("ready", flush=True)
heard = {name: [] for name in ports.values()}
deadline = time.monotonic() + 20
while not all(len(frames) >= 6 for frames in list(heard.values())[1:2]):
    ready, _, _ = select.select(list(ports), [], [], max(0, deadline - time.monotonic()))
    if not ready:
        break
    for port in ready:
        frame = port.recv(2048)
        if b"\\xff" * 6 in frame[14:]:
            heard[ports[port]].append(frame.hex())
time.sleep(0.2)
print(json.dumps(heard), flush=True)
"""
SEND = """\
import sys
from pathlib import Path
from duckctl.inventory import load_inventory
from duckctl.power.backend import Action
from duckctl.power.ladder import power_ladder
fleet = load_inventory(Path(sys.argv[1]))
(wol,) = power_ladder(fleet.ducks[0], fleet)
wol.act(Action.ON)
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def two_domains() -> Iterator[tuple[str, str]]:
    """A host and a duck side, joined by two cables: 198.18.1.0/24 and 198.18.2.0/24."""
    host, ducks = f"wolh{os.getpid()}", f"wold{os.getpid()}"
    try:
        for name in (host, ducks):
            ip("netns", "add", name)
        for d in (1, 2):
            ip("-n", host, "link", "add", f"nic{d}", "type", "veth", "peer", "name", f"eth{d}",
               "netns", ducks)  # fmt: skip
            ip("-n", host, "addr", "add", f"198.18.{d}.1/24", "brd", "+", "dev", f"nic{d}")
            ip("-n", host, "link", "set", f"nic{d}", "up")
            ip("-n", ducks, "link", "set", f"eth{d}", "up")
        yield host, ducks
    finally:
        for name in (host, ducks):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@needs_namespaces
def test_the_packet_leaves_by_its_domains_port(
    tmp_path: Path, two_domains: tuple[str, str]
) -> None:
    """For a duck of the second domain: datagrams and raw frames there, nothing at the first."""
    host, ducks = two_domains
    fleet_with(tmp_path, "{backend: wol}", "198.18.2.0/24", "198.18.2.1", "198.18.2.11")
    listener = subprocess.Popen(
        ["ip", "netns", "exec", ducks, sys.executable, "-c", LISTEN, "eth1", "eth2"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert listener.stdout is not None
    assert listener.stdout.readline() == "ready\n"
    inventory = str(tmp_path / "shelf.yml")
    subprocess.run(
        ["ip", "netns", "exec", host, sys.executable, "-c", SEND, inventory], check=True, timeout=60
    )
    heard = json.loads(listener.stdout.readline())
    listener.wait(10)
    assert heard["eth1"] == []
    frames = [bytes.fromhex(frame) for frame in heard["eth2"]]
    raw = [frame for frame in frames if frame[12:14] == b"\x08\x42"]
    datagrams = [frame for frame in frames if frame[12:14] == b"\x08\x00"]
    assert [frame[14:] for frame in raw] == [MAGIC] * 3
    assert [frame[42:] for frame in datagrams] == [MAGIC] * 3
    assert {frame[:6] for frame in frames} == {b"\xff" * 6}
    assert {frame[30:34] for frame in datagrams} == {bytes([198, 18, 2, 255])}
