"""The boot service as a process: what it serves, changes that it takes over, how it ends."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from boot_kit import make_fleet, make_images
from dhcp_client import Client, Reply
from netns_kit import Net, inside, ip, needs_namespaces, udp_socket
from service_kit import serving

from duckctl.boot.events import BootEvent
from duckctl.boot.follow import read_log
from duckctl.boot.intents import Intents
from duckctl.boot.plan import BootPaths
from duckctl.boot.watch import read_findings
from duckctl.image.manifest import describe_file, image_dir, images_dir, install_image
from duckctl.inventory import Fleet
from duckctl.process import descendants, is_same, wait_until

pytestmark = needs_namespaces("dnsmasq", "ip")

MAC = "02:00:00:00:00:01"  # duck01, duckos
LINUX_MAC = "02:00:00:00:00:02"
BIG_BYTES = 3 << 20


def install_images(folder: Path) -> None:
    """Images whose files are made up, but there."""
    for image in make_images().values():
        staged = images_dir(folder) / f".{image.name}.new"
        staged.mkdir(parents=True)
        files = {}
        for role, file in image.files.items():
            seed = hashlib.sha256(role.encode()).digest()
            (staged / file.path).write_bytes(seed * (BIG_BYTES // 32 if role == "initrd" else 1000))
            files[role] = describe_file(staged / file.path)
        install_image(folder, replace(image, files=files), staged)


@pytest.fixture
def net() -> Iterator[Net]:
    with Net("s", domains=2) as made:
        ip("-n", made.box, "addr", "add", "198.18.0.11/24", "dev", "br0")
        yield made


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """In a folder with a space in its name, all of it."""
    folder = tmp_path / "my rack"
    install_images(folder)
    return make_fleet(folder)


def fetch(
    net: Net, path: str, method: str = "GET", **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    request = urllib.request.Request(
        f"http://198.18.0.1:8080{path}", method=method, headers=headers
    )

    def get() -> tuple[int, bytes, dict[str, str]]:
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.status, answer.read(), dict(answer.headers)
        except urllib.error.HTTPError as error:
            return error.code, error.read(), dict(error.headers)

    return inside(net.box, get)


def raw_http(net: Net, text: bytes) -> bytes:
    """What the server says to bytes that no library would send."""

    def talk() -> bytes:
        with socket.create_connection(("198.18.0.1", 8080), timeout=5) as connection:
            connection.sendall(text)
            found = b""
            while block := connection.recv(65536):
                found += block
            return found

    return inside(net.box, talk)


def discover(
    net: Net, mac: str, arch: int = 7, ipxe: bool = False, device: str = "br0"
) -> Reply | None:
    box = udp_socket(net.box, device, 68)
    try:
        return Client(box, mac).discover(arch, ipxe)
    finally:
        box.close()


def file_of(net: Net, mac: str, device: str = "br0") -> str:
    reply = discover(net, mac, device=device)
    return reply.file if reply is not None else "silence"


def tftp_get(net: Net, name: str, **options: int) -> tuple[bytes, dict[str, str]]:
    """A TFTP client (RFC 1350, 2347): the file and the options that the server accepted."""
    box = udp_socket(net.box, "br0", 0)
    box.settimeout(5)
    words = "".join(f"{key}\0{value}\0" for key, value in options.items())
    box.sendto(b"\0\1" + f"{name}\0octet\0{words}".encode(), ("198.18.0.1", 69))
    data, accepted, wanted, size = bytearray(), {}, 1, 512
    while True:
        packet, server = box.recvfrom(65536)
        kind, number = struct.unpack(">HH", packet[:4])
        if kind == 6:
            parts = packet[2:].decode().split("\0")
            accepted = dict(zip(parts[::2], parts[1::2], strict=False))
            size = int(accepted.get("blksize", 512))
            box.sendto(b"\0\4\0\0", server)
            continue
        if kind == 5:
            raise AssertionError(packet[4:].decode(errors="replace"))
        if kind == 3 and number == wanted & 0xFFFF:
            data += packet[4:]
            wanted += 1
        box.sendto(b"\0\4" + packet[2:4], server)
        if len(packet) - 4 < size:
            box.close()
            return bytes(data), accepted


def events_of(fleet: Fleet) -> list[BootEvent]:
    return read_log(fleet, BootPaths(fleet.path.parent / "boot"))


def test_files_over_http(net: Net, fleet: Fleet) -> None:
    """HEAD with Content-Length, whole files, ranges, scripts; what is not in the table is 404."""
    initrd = image_dir(fleet.path.parent, "linux") / "initrd.img"
    whole = initrd.read_bytes()
    with serving(net, fleet):
        status, body, headers = fetch(net, "/images/linux/initrd.img", "HEAD")
        assert (status, body, headers["Content-Length"]) == (200, b"", str(len(whole)))
        assert fetch(net, "/images/linux/initrd.img")[1] == whole
        for given, expected in (
            ("bytes=10-19", whole[10:20]),
            ("bytes=-7", whole[-7:]),
            (f"bytes={len(whole) - 3}-", whole[-3:]),
            ("bytes=0-999999999", whole),
            ("lines=1-2", whole),
        ):
            status, body, _ = fetch(net, "/images/linux/initrd.img", Range=given)
            assert body == expected, given
            assert status == (206 if len(expected) < len(whole) else 200), given
        assert fetch(net, "/images/linux/initrd.img", Range=f"bytes={len(whole)}-")[0] == 416
        for path in ("/", "/images/", "/images/linux/", "/images/linux/manifest.json",
                     "/images/linux/../../fleet.key", "/shelf.yml", "/boot/hosts"):  # fmt: skip
            assert fetch(net, path)[0] == 404, path


def test_hostile_requests_reach_no_other_file(net: Net, fleet: Fleet) -> None:
    """Traversal in every spelling, absolute URLs, nonsense: an error, and the server lives on."""
    (fleet.path.parent / "fleet.key").write_text("secret")
    targets = ["/images/linux/../../../fleet.key", "/images/linux/%2e%2e/%2e%2e/fleet.key",
               "/images/linux/..%2f..%2ffleet.key", "//fleet.key", "/images/linux\\..\\fleet.key",
               "http://x/../fleet.key", "/%00", "/duck/../fleet.key", "*"]  # fmt: skip
    with serving(net, fleet):
        for target in targets:
            said = raw_http(
                net, f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
            )
            assert said.startswith(b"HTTP/1.1 404"), (target, said[:60])
            assert b"secret" not in said
        for junk in (b"\r\n\r\n", b"\0" * 200 + b"\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
                     b"POST / HTTP/1.1\r\nConnection: close\r\n\r\n",
                     b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\n\r\n"):  # fmt: skip
            assert not raw_http(net, junk).startswith(b"HTTP/1.1 200")
        assert fetch(net, "/boot.ipxe")[0] == 200


@pytest.mark.slow
def test_t26_intents_are_taken_over_and_one_shots_end_with_hello(net: Net, fleet: Fleet) -> None:
    """local, one-shot image, hello: each is served within seconds, other ducks as before (T26)."""
    intents = Intents(BootPaths(fleet.path.parent / "boot").intents)
    with serving(net, fleet):
        assert file_of(net, MAC) == "duckos/duckos.efi"
        other = file_of(net, LINUX_MAC)
        intents.set_local("duck01")
        assert wait_until(lambda: file_of(net, MAC) == "", 10)
        intents.set_image("duck01", "linux", one_shot=True)
        assert wait_until(lambda: file_of(net, MAC) == other, 10)
        intents.hello("duck01")
        assert wait_until(lambda: file_of(net, MAC) == "", 10), "the standing intent is back"
        intents.clear("duck01")
        assert wait_until(lambda: file_of(net, MAC) == "duckos/duckos.efi", 10)
        assert file_of(net, LINUX_MAC) == other
        reply = discover(net, MAC)
        assert reply is not None
        assert reply.server == "198.18.0.1", "the TFTP server is named by the DHCP process"


@pytest.mark.slow
def test_t11_a_looping_duck_is_stopped(net: Net, fleet: Fleet) -> None:
    """The same first stage again and again: an event, then no boot file until hello (T11)."""
    with serving(net, fleet):
        for _ in range(6):
            tftp_get(net, "duckos/duckos.efi")
        assert wait_until(lambda: file_of(net, MAC) == "", 10)
        assert "fetched duckos/duckos.efi 6 times" in (fleet.path.parent / "serve.log").read_text()
        intents = Intents(BootPaths(fleet.path.parent / "boot").intents)
        assert intents.of("duck01").action == "held"
        findings = read_findings(BootPaths(fleet.path.parent / "boot").findings)
        assert [f.duck for f in findings if f.kind == "loop"] == ["duck01"]
        shown = subprocess.run(
            [sys.executable, "-m", "duckctl", "explain", "duck01", "--json", "--inventory",
             str(fleet.path)], capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert "intent of duck01 is 'held': fetched duckos/duckos.efi 6 times" in shown.stdout
        intents.hello("duck01")
        assert wait_until(lambda: file_of(net, MAC) == "duckos/duckos.efi", 10)


@pytest.mark.slow
def test_a_duck_that_says_hello_each_time_never_loops(net: Net, fleet: Fleet) -> None:
    """Twelve boots with a hello after each are twelve boots, no loop."""
    intents = Intents(BootPaths(fleet.path.parent / "boot").intents)
    with serving(net, fleet):
        for _ in range(12):
            tftp_get(net, "duckos/duckos.efi")
            time.sleep(0.3)
            intents.hello("duck01")
            time.sleep(0.3)
        time.sleep(1)
        assert intents.read() == {}


def test_t22_blksize_of_the_client_is_honoured(net: Net, fleet: Fleet) -> None:
    """Never more than the client asked for, nor than the MTU carries; tsize is right (T21, T22)."""
    wanted = (image_dir(fleet.path.parent, "duckos") / "duckos.img").read_bytes()
    with serving(net, fleet):
        for size in (512, 1024, 1428, 1468, 9000):
            data, accepted = tftp_get(net, "duckos/duckos.img", blksize=size, tsize=0)
            assert data == wanted
            assert int(accepted["blksize"]) <= min(size, 1500 - 32)
            assert int(accepted["tsize"]) == len(wanted)
        data, accepted = tftp_get(net, "duckos/duckos.img")
        assert (data, accepted) == (wanted, {})


@pytest.mark.slow
@pytest.mark.parametrize(("mib", "size"), [(33, 512), (95, 1428)])
def test_t21_block_numbers_wrap(net: Net, fleet: Fleet, mib: int, size: int) -> None:
    """More than 65,535 blocks: over 32 MiB with blocks of 512, over 94 MB with 1,428 (T21)."""
    data = os.urandom(1 << 20) * mib
    with serving(net, fleet):
        (fleet.path.parent / "boot/tftp/big").write_bytes(data)
        got, _ = tftp_get(net, "big", blksize=size)
    assert hashlib.sha256(got).digest() == hashlib.sha256(data).digest()


def test_t23_an_asked_size_is_no_failure(net: Net, fleet: Fleet) -> None:
    """EDK2 asks for the size and aborts with error 8: told as what it is (T23)."""
    with serving(net, fleet):
        box = udp_socket(net.box, "br0", 0)
        box.settimeout(5)
        box.sendto(b"\0\1duckos/duckos.efi\0octet\0tsize\x000\0", ("198.18.0.1", 69))
        _, server = box.recvfrom(2048)
        box.sendto(b"\0\5\0\x08User aborted the transfer\0", server)
        box.close()
        tftp_get(net, "duckos/duckos.efi")
        with pytest.raises(AssertionError, match="not found"):
            tftp_get(net, "nothing")
        assert wait_until(lambda: len(events_of(fleet)) == 3, 5)
    # dnsmasq writes "sent" when it next looks at its transfers, so the order is not ours.
    found = {(event.kind, event.file, event.duck) for event in events_of(fleet)}
    assert found == {
        ("tftp_abort", "duckos/duckos.efi", "duck01"),
        ("tftp", "duckos/duckos.efi", "duck01"),
        ("tftp_missing", "nothing", "duck01"),
    }


@pytest.mark.slow
def test_a_new_inventory_is_taken_over_and_a_bad_one_is_not(net: Net, fleet: Fleet) -> None:
    """A duck that is adopted while the service runs; then a file that cannot be read."""
    with serving(net, fleet):
        new = "02:00:00:00:00:77"
        assert file_of(net, new) == ""
        text = fleet.path.read_text()
        fleet.path.write_text(text.replace("02:00:00:00:00:04", new))
        assert wait_until(lambda: file_of(net, new) == "duckos/duckos.efi", 10)
        fleet.path.write_text("all: [")
        time.sleep(1)
        assert file_of(net, new) == "duckos/duckos.efi"
        assert "warning" in (fleet.path.parent / "serve.log").read_text()


def test_t32_a_taken_port_is_named_with_its_owner(net: Net, fleet: Fleet) -> None:
    """Port 69 held by another program: refused with its name and pid, nothing started (T32)."""
    program = ("import socket,time; s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM);"
               "s.bind(('',69)); print('up', flush=True); time.sleep(60)")  # fmt: skip
    holder = subprocess.Popen(
        net.run_in(net.host, [sys.executable, "-c", program]), stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        command = [sys.executable, "-m", "duckctl", "boot", "serve", "--inventory", str(fleet.path)]
        done = subprocess.run(
            net.run_in(net.host, command), capture_output=True, text=True, check=False, timeout=30
        )
    finally:
        holder.kill()
        holder.wait()
        if holder.stdout:
            holder.stdout.close()
    assert done.returncode == 1
    assert "udp 0.0.0.0:69 is used by python" in done.stderr
    assert f"(pid {holder.pid})" in done.stderr
    assert "udp 0.0.0.0:67" not in done.stderr


@pytest.mark.slow
def test_kill_9_is_cleaned_up_by_the_next_start(net: Net, fleet: Fleet) -> None:
    """A second service is refused; after kill -9 the next one ends what was left, and serves."""
    with serving(net, fleet) as process:
        command = [sys.executable, "-m", "duckctl", "boot", "serve", "--inventory", str(fleet.path)]
        second = subprocess.run(
            net.run_in(net.host, command), capture_output=True, text=True, check=False, timeout=30
        )
        assert second.returncode == 1
        assert f"runs already (pid {process.pid})" in second.stderr
        children = descendants(process.pid)
        assert len(children) == 2
        process.kill()
        process.wait()
    with serving(net, fleet):
        assert not any(is_same(child) for child in children)
        assert file_of(net, MAC) == "duckos/duckos.efi"


@pytest.mark.slow
def test_explain_tells_answers_and_what_was_asked(net: Net, fleet: Fleet) -> None:
    """`duckctl explain` after a real conversation: answers by arch, and the duck's own events."""
    with serving(net, fleet):
        box = udp_socket(net.box, "br0", 68)
        Client(box, MAC).lease(7)
        box.close()
        tftp_get(net, "duckos/duckos.efi")
        fetch(net, "/images/duckos/duckos.efi", "HEAD")
        time.sleep(0.3)
        command = [sys.executable, "-m", "duckctl", "explain", "duck01", "--json",
                   "--inventory", str(fleet.path), "--http-port", "8080"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert told["image"] == "duckos"
    by_arch = {(a["arch"], a["ipxe"]): a["file"] for a in told["answers"]}
    assert by_arch[(0, False)] == "duckos/duckos.img"
    assert by_arch[(7, False)] == by_arch[(9, False)] == "duckos/duckos.efi"
    assert by_arch[(16, False)] == "http://198.18.0.1:8080/images/duckos/duckos.efi"
    kinds = [(event["kind"], event["arch"]) for event in told["last"]]
    assert kinds == [("discover", 7), ("offer", 7), ("request", 7), ("ack", 7), ("tftp", None),
                     ("http_head", None)]  # fmt: skip
