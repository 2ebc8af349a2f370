"""duck-init's DHCP client and command line: hostile packets, several servers and cards, renewal."""

from __future__ import annotations

import random
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from netns_kit import Net, ip, needs_namespaces, udp_socket

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("dhcp.c", "lease.c", "log.c", "nic.c", "options.c")
MAC = bytes([2, 0, 0, 0, 0, 1])
XID = bytes([1, 2, 3, 4])
COOKIE = bytes.fromhex("63825363")


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, with leases of at least 2 s and the sanitizers."""
    program = tmp_path_factory.mktemp("init") / "harness"
    sources = [ROOT / "images/linux" / name for name in SOURCES]
    subprocess.run(
        ["gcc", "-std=c11", "-D_GNU_SOURCE", "-DLEASE_S_MIN=2u", "-g", "-Wall", "-Wextra",
         "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
         "-Wl,--wrap=poll,--wrap=clock_gettime", "-o", str(program),
         str(ROOT / "tests/boot/init_harness.c"), *map(str, sources)], check=True,
    )  # fmt: skip
    return program


def answer(kind: int, address: str, options: bytes = b"", boot_server: str = "0.0.0.0",
           xid: bytes = XID, mac: bytes = MAC, server: str = "198.18.0.1") -> bytes:  # fmt: skip
    head = struct.pack(">BBBB", 2, 1, 6, 0) + xid + bytes(8)
    head += IPv4Address(address).packed + IPv4Address(boot_server).packed + bytes(4)
    head += mac + bytes(10) + bytes(192) + COOKIE
    identity = b"\x36\x04" + IPv4Address(server).packed
    mask = b"\x01\x04\xff\xff\xff\x00"
    return head + bytes([53, 1, kind]) + identity + mask + options + b"\xff"


def run(harness: Path, mode: str, text: str) -> list[str]:
    done = subprocess.run([harness, mode], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_answers_are_read(harness: Path) -> None:
    """Offer, ACK and NAK with what they carry; a full name gives its first label."""
    options = b"\x1a\x02\x23\x28\x33\x04\x00\x00\x0e\x10\x0c\x0bduck01.rack"
    packets = [answer(2, "198.18.0.11", options), answer(6, "0.0.0.0"),
               answer(2, "0.0.0.0")]  # fmt: skip
    found = run(harness, "parse", "".join(packet.hex() + "\n" for packet in packets))
    assert found[0] == "1 kind=2 address=198.18.0.11 mtu=9000 lease=3600 name=duck01"
    assert found[1].startswith("1 kind=6")
    assert found[2].startswith("0 "), "a proxy's offer has no address"


def test_foreign_and_broken_packets_are_passed_over(harness: Path) -> None:
    """Another transaction, another card, a request, cut options: no answer."""
    good = answer(5, "198.18.0.11")
    bad = [answer(5, "198.18.0.11", xid=b"abcd"), answer(5, "198.18.0.11", mac=bytes(6)),
           b"\x01" + good[1:], good[:200], good[:238], b"",
           good.replace(COOKIE, bytes(4)), good[:-1] + b"\x0c\xff\x41",
           good[:-1] + b"\x0c"]  # fmt: skip
    found = run(harness, "parse", "".join(packet.hex() + "\n" for packet in bad))
    assert [line[0] for line in found] == ["0"] * len(bad)


def test_random_packets_break_nothing(harness: Path) -> None:
    """20,000 mutated and random packets under the address sanitizer (seeded)."""
    seed = 20261130
    chance = random.Random(seed)
    base = answer(5, "198.18.0.11", b"\x0c\x05hello\x1a\x02\x05\xdc" + bytes(30))
    lines = []
    for _ in range(20_000):
        packet = bytearray(base if chance.random() < 0.8 else chance.randbytes(300))
        for _ in range(chance.randrange(1, 8)):
            packet[chance.randrange(len(packet))] = chance.randrange(256)
        lines.append(bytes(packet[: chance.randrange(len(packet) + 1)]).hex() + "\n")
    assert len(run(harness, "parse", "".join(lines))) == len(lines), f"seed {seed}"


def test_the_command_line(harness: Path) -> None:
    """Our words are taken, bad values named and left, other words passed over."""
    line = (
        "console=ttyS0 quiet duck.name=duck07 duck.poll=spin duck.mtu=9000 duck.cores=3 "
        "duck.hugepages=1024 duck.memory=1000000 BOOTIF=01-02-00-00-00-00-01 root=x\n"
    )
    assert run(harness, "options", line) == [
        "name=duck07 poll=spin memory=1000000 mtu=9000 port=7211 cores=3 huge=1024 boot=1"
    ]
    bad = "duck.poll=hlt duck.mtu=90000 duck.port=0 duck.cores=x duck.colour=red BOOTIF=99\n"
    done = subprocess.run(
        [harness, "options"], input=bad, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["name=", "poll=block", "memory=", "mtu=0", "port=7211",
                                   "cores=0", "huge=-1", "boot=0"]  # fmt: skip
    for word in bad.split():
        assert f'"{word}" is not understood' in done.stderr


def test_the_watchdog_is_petted_while_nobody_answers(harness: Path) -> None:
    """Ten minutes without a link and without a server: the armed watchdog (30 s, iTCO) has a sign
    of life every 2 s, or a box whose host is off would restart without end."""
    (line,) = run(harness, "silence", "")
    assert 0 < int(line.removeprefix("longest=")) <= 2000


Answerer = Callable[[int, bytes, bytes], list[tuple[float, bytes]]]


@contextmanager
def server(net: Net, device: str, answers: Answerer) -> Iterator[list[tuple[float, int]]]:
    """A DHCP server whose answers (delay, packet) a function makes; gives (time, kind) of what it
    was asked."""
    box = udp_socket(net.host, device, 67)
    box.settimeout(0.1)
    asked: list[tuple[float, int]] = []
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            try:
                packet = box.recv(2048)
            except (TimeoutError, OSError):
                continue
            kind = packet[packet.index(b"\x35\x01", 236) + 2]
            asked.append((time.monotonic(), kind))
            for delay_s, reply in answers(kind, packet[4:8], packet[28:34]):
                time.sleep(delay_s)
                box.sendto(reply, ("255.255.255.255", 68))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield asked
    finally:
        ended.set()
        thread.join()
        box.close()


def lease(net: Net, harness: Path, *cards: str) -> list[str]:
    done = subprocess.run(net.run_in(net.box, [harness, "lease", *cards]), capture_output=True,
                          text=True, timeout=60, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.fixture
def net() -> Iterator[Net]:
    with Net("d", domains=2) as made:
        ip("-n", made.box, "link", "set", "lo", "up")
        yield made


needs_net = needs_namespaces("ip")


@pytest.mark.slow
@needs_net
def test_t17_the_offer_with_boot_information_wins(net: Net, harness: Path) -> None:
    """Two servers; the first to answer has no boot server: the second is taken (T17)."""

    def answers(kind: int, xid: bytes, mac: bytes) -> list[tuple[float, bytes]]:
        long = b"\x33\x04\x00\x00\x0e\x10"
        bare = answer(2, "198.18.0.50", long, xid=xid, mac=mac, server="198.18.0.3")
        ours = answer(2, "198.18.0.11", long, "198.18.0.1", xid=xid, mac=mac)
        if kind == 1:
            return [(0.0, bare), (0.1, ours)]
        return [(0.0, answer(5, "198.18.0.11", long, "198.18.0.1", xid=xid, mac=mac))]

    with server(net, "nic0", answers):
        assert lease(net, harness, "br0") == ["lease br0 198.18.0.11 mtu=0 name="]


@pytest.mark.slow
@needs_net
def test_t24_the_card_with_a_server_is_found(net: Net, harness: Path) -> None:
    """Two cards, a server behind the second alone (T24)."""

    def answers(kind: int, xid: bytes, mac: bytes) -> list[tuple[float, bytes]]:
        options = b"\x33\x04\x00\x00\x0e\x10\x0c\x06duck09\x1a\x02\x23\x28"
        reply = answer(2 if kind == 1 else 5, "198.18.1.19", options, xid=xid, mac=mac)
        return [(0.0, reply)]

    with server(net, "nic1", answers):
        found = lease(net, harness, "br0", "br1")
    assert found == ["lease br1 198.18.1.19 mtu=9000 name=duck09"]


@pytest.mark.slow
@needs_net
def test_t25_waits_grow_and_the_lease_is_renewed(net: Net, harness: Path) -> None:
    """Silence at first: asked again after 1 to 1.5 s; then a 2 s lease that is renewed at half
    of its time, by the server that gave it (T25)."""

    def answers(kind: int, xid: bytes, mac: bytes) -> list[tuple[float, bytes]]:
        if kind == 1 and sum(kind == 1 for _, kind in asked) == 1:
            return []
        short = b"\x33\x04\x00\x00\x00\x02"
        return [(0.0, answer(2 if kind == 1 else 5, "198.18.0.11", short, xid=xid, mac=mac))]

    with server(net, "nic0", answers) as asked:
        found = lease(net, harness, "br0")
    assert found[0] == "lease br0 198.18.0.11 mtu=0 name="
    assert found.count("renewed br0 198.18.0.11 mtu=0 name=") >= 2
    discovers = [at for at, kind in asked if kind == 1]
    assert len(discovers) == 2
    assert 0.9 < discovers[1] - discovers[0] < 3.0


@pytest.mark.slow
@needs_net
def test_an_address_taken_back_is_given_up(net: Net, harness: Path) -> None:
    """A NAK at renewal: asked anew from nothing, and the new address is told."""

    def answers(kind: int, xid: bytes, mac: bytes) -> list[tuple[float, bytes]]:
        short = b"\x33\x04\x00\x00\x00\x02"
        requests = sum(kind == 3 for _, kind in asked)
        if kind == 3 and requests == 2:
            return [(0.0, answer(6, "0.0.0.0", xid=xid, mac=mac))]
        address = "198.18.0.11" if requests < 2 else "198.18.0.12"
        return [(0.0, answer(2 if kind == 1 else 5, address, short, xid=xid, mac=mac))]

    with server(net, "nic0", answers) as asked:
        found = lease(net, harness, "br0")
    assert found[0].startswith("lease br0 198.18.0.11")
    assert any(line.startswith("moved br0 198.18.0.12") for line in found), found


def test_it_runs_as_process_1_alone() -> None:
    """Started by a person it says what it is and ends."""
    from duckctl.native import native_path

    done = subprocess.run([native_path("duck-init")], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "process 1 of the Linux image" in done.stderr
