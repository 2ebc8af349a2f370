"""Proves that duckd is a well-behaved process: clear refusals at start, a clean end, nothing left
behind by sessions, and no orphan when it is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import duckd_client as wire
import pytest
from duckd_client import Fault
from duckd_crypto import public_bytes
from duckd_process import DuckProcess, duckd_binary, write_key

Kernel = Callable[..., bytes]


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(duckd_binary()), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=10)


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not true in time"
        time.sleep(0.01)


# ---- start --------------------------------------------------------------------------------------

USAGE: list[tuple[list[str], str]] = [
    ([], "--name is missing"),
    (["--name", "d01"], "--listen is missing"),
    (["--name", "d01", "--listen", "127.0.0.1:0"], "--fleet-pub is missing"),
    (["--nonsense"], 'unknown option "--nonsense"'),
    (["--name"], "--name needs a value"),
    (["--name", ""], "1 to 31 characters"),
    (["--name", "x" * 32], "1 to 31 characters"),
    (["--name", "a b"], "letters, digits"),
    (["--listen", "localhost:7211"], '"localhost" is no IPv4 address'),
    (["--listen", "127.0.0.1"], "an IPv4 address and a port"),
    (["--listen", "127.0.0.1:65536"], "from 0 to 65535"),
    (["--listen", "127.0.0.1:"], "from 0 to 65535"),
    (["--cores", "0"], "from 1 to 64"),
    (["--cores", "65"], "from 1 to 64"),
    (["--cores", "two"], "from 1 to 64"),
    (["--memory-limit", "-1"], "--memory-limit wants a number"),
    (["--poll", "often"], "block, sleep or spin"),
    (["--huge-pages", "always"], "auto or never"),
    (["run"], "the kernel file is missing"),
    (["run", "k.elf", "--time-limit-ms", "0"], "from 1 to"),
    (["run", "k.elf", "--listen", "127.0.0.1:0"], "run: unknown option"),
]


@pytest.mark.parametrize(("words", "complaint"), USAGE)
def test_bad_usage(words: list[str], complaint: str) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "usage: duckd" in done.stderr
    assert done.stdout == ""


def start_with(fleet_pub: Path, identity: Path) -> subprocess.CompletedProcess[str]:
    """Refused starts only: a good one would not end."""
    words = ["--name", "d01", "--listen", "127.0.0.1:0", "--fleet-pub", str(fleet_pub)]
    done = run(*words, "--identity-file", identity)
    assert (done.returncode, done.stdout) == (1, "")
    return done


def test_bad_fleet_keys(tmp_path: Path) -> None:
    """Missing, malformed, of the old kind, the private half, or writable by others."""
    identity = tmp_path / "identity"
    assert "missing.pub: No such file" in start_with(tmp_path / "missing.pub", identity).stderr
    path, key = write_key(tmp_path)
    good = path.read_text()
    label = "duck-p256-public:"
    for text in ("", label, good[:-3], good + "\n", good.strip() + "00", label + "05" + good[19:]):
        path.write_text(text)
        assert "130 hexadecimal digits" in start_with(path, identity).stderr, text
    path.write_text("00" * 32 + "\n")
    assert "shared key of an older version" in start_with(path, identity).stderr
    path.write_text("duck-p256-private:" + "00" * 32 + "\n")
    assert "private key: keep it on the host" in start_with(path, identity).stderr
    path.write_text(good)
    for mode in (0o646, 0o664):
        path.chmod(mode)
        assert "chmod go-w" in start_with(path, identity).stderr
    assert len(key.public) == 65


def test_identity_file(tmp_path: Path) -> None:
    """Made at the first start for the owner's eyes only, and kept; a bad one is refused."""
    with DuckProcess(tmp_path) as duck:
        first = duck.identity.private_bytes_raw()
        path = duck.identity_file
        assert path.stat().st_mode & 0o777 == 0o600
    with DuckProcess(tmp_path) as duck, duck.client() as client:
        assert duck.identity.private_bytes_raw() == first
        assert client.identity == public_bytes(duck.identity)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d01.identity", "d01.stderr", "fleet.pub"]
    path.chmod(0o640)
    assert "chmod 600" in start_with(tmp_path / "fleet.pub", path).stderr
    path.chmod(0o600)
    path.write_text("duck-x25519-private:12\n")
    assert "64 hexadecimal digits" in start_with(tmp_path / "fleet.pub", path).stderr
    nowhere = tmp_path / "no" / "identity"
    assert "cannot be made: No such file" in start_with(tmp_path / "fleet.pub", nowhere).stderr


def test_port_in_use_names_the_address(tmp_path: Path) -> None:
    key_file, _ = write_key(tmp_path)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("--name", "d01", "--listen", address, "--fleet-pub", key_file)
    assert done.returncode == 1
    assert f"can't listen on {address}: Address already in use" in done.stderr
    assert done.stdout == ""


def test_version() -> None:
    done = run("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("duckd protocol=2 abi=1 build=")


def test_several_addresses(tmp_path: Path) -> None:
    with DuckProcess(tmp_path, "--listen", "127.0.0.2:0") as duck:
        addresses = duck.facts["listen"].split(",")
        assert [a.split(":")[0] for a in addresses] == ["127.0.0.1", "127.0.0.2"]
        with duck.client() as first, wire.Client(int(addresses[1].split(":")[1]), duck.key) as two:
            two.address = ("127.0.0.2", two.address[1])
            assert two.hello().ping() == first.ping() == 0


# ---- end ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("policy", ["block", "sleep", "spin"])
def test_clean_end(tmp_path: Path, kernel: Kernel, number: signal.Signals, policy: str) -> None:
    with DuckProcess(tmp_path, "--poll", policy) as duck, duck.serving(kernel("echo")) as client:
        assert client.call(b"x") == b"x"
        (child,) = duck.children()
        duck.process.send_signal(number)
        assert duck.process.wait(5) == 0
        assert duck.process.stdout is not None
        assert duck.process.stdout.read() == b""  # nothing after the ready line
        wait_until(lambda: not Path(f"/proc/{child}").exists())


@pytest.mark.slow
def test_no_orphan_when_killed(duck: DuckProcess, kernel: Kernel) -> None:
    with duck.serving(kernel("hostile"), limit_ms=600_000) as client:
        client.send_call(bytes([3, 0, 0, 0, 0, 0, 0, 0]))  # an endless loop
        (child,) = duck.children()
        duck.kill()
        wait_until(lambda: not Path(f"/proc/{child}").exists())


def test_killed_session_is_a_verdict(duck: DuckProcess, kernel: Kernel) -> None:
    with duck.serving(kernel("echo")) as client:
        (child,) = duck.children()
        os.kill(child, signal.SIGKILL)
        fault = wire.parse_fault(client.expect(wire.FAULT).payload)
        assert (fault.status, fault.kind, fault.call) == (wire.KERNEL_FAULT, 8, 0)
        assert "signal 9" in fault.text
        assert client.open().status == wire.OK
        assert client.call(b"next") == b"next"


# ---- what a session may see and leave -----------------------------------------------------------


def test_session_child_holds_nothing(duck: DuckProcess, kernel: Kernel) -> None:
    """One eventfd, no environment, no trace of the duck's own key, no way to system calls."""
    with duck.serving(kernel("echo")) as client:
        assert client.call(b"x") == b"x"
        (child,) = duck.children()
        held = [str(link.readlink()) for link in Path(f"/proc/{child}/fd").iterdir()]
        assert held == ["anon_inode:[eventfd]"]
        assert Path(f"/proc/{child}/environ").read_bytes() == b""
        status = Path(f"/proc/{child}/status").read_text()
        assert "NoNewPrivs:\t1" in status
        for task in Path(f"/proc/{child}/task").iterdir():
            assert "Seccomp:\t2" in (task / "status").read_text()
        assert Path(f"/proc/{child}/oom_score_adj").read_text() == "1000\n"
        secret = duck.identity.private_bytes_raw()
        assert not holds(child, secret)
        assert holds(duck.pid, secret)  # the search itself works


def holds(pid: int, secret: bytes) -> bool:
    """Is this secret in the memory that the process has for itself?"""
    with Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, protection, *rest = line.split()
            if protection[:2] != "rw" or rest[-1].startswith("[v"):
                continue
            begin, end = (int(word, 16) for word in span.split("-"))
            try:
                memory.seek(begin)
                if secret in memory.read(min(end - begin, 64 << 20)):
                    return True
            except OSError:
                continue
    return False


@pytest.mark.slow
def test_two_hundred_sessions_leave_nothing(duck: DuckProcess, kernel: Kernel) -> None:
    """Good and bad ends in turn: same descriptors, same memory, no children."""
    with duck.client() as client:
        client.load(wire.KERNEL_REGION, kernel("hostile"))

        def one_session(i: int) -> None:
            assert client.open().status == wire.OK
            attack = [0, 1, 10, 32][i % 4]
            result = client.call(bytes([attack, 0, 0, 0, 0, 0, 0, 0]))
            assert isinstance(result, Fault) == (attack != 0)
            if attack == 0:
                assert client.close_session().status == wire.OK

        for i in range(20):
            one_session(i)
        descriptors, memory = duck.descriptors(), duck.resident_kb()
        for i in range(200):
            one_session(i)
        assert duck.descriptors() == descriptors
        assert duck.resident_kb() <= memory + 256
        assert duck.children() == []
        assert client.stats()["sessions_opened"] == 220
        assert client.stats()["sessions_faulted"] == 165


def test_loading_again_and_again_leaves_nothing(duck: DuckProcess) -> None:
    with duck.client() as client:
        for size in (1 << 20, 3 << 20):
            client.reserve(wire.WEIGHTS_REGION, size)
        client.reserve(wire.WEIGHTS_REGION, 0)
        descriptors, memory = duck.descriptors(), duck.resident_kb("RssShmem")
        for i in range(50):
            size = 1 << 20 if i % 2 else 3 << 20
            assert client.reserve(wire.WEIGHTS_REGION, size).status == wire.OK
            client.write(wire.WEIGHTS_REGION, bytes(65536))
        client.reserve(wire.WEIGHTS_REGION, 0)
        assert duck.descriptors() == descriptors
        assert duck.resident_kb("RssShmem") == memory


# ---- logs ---------------------------------------------------------------------------------------


def test_log_file_is_bounded(tmp_path: Path, kernel: Kernel) -> None:
    log = tmp_path / "duck.log"
    log.write_bytes(b"x" * ((1 << 20) - 100))
    with DuckProcess(tmp_path, "--log-file", str(log)) as duck, duck.client() as client:
        for _ in range(10):
            client.load(wire.KERNEL_REGION, kernel("echo"))
        assert (tmp_path / "duck.log.1").stat().st_size > 1 << 20
        assert log.stat().st_size < 4096
        assert "kernel committed" in log.read_text()


def test_log_file_that_cannot_be(tmp_path: Path) -> None:
    key_file, _ = write_key(tmp_path)
    words = ["--name", "d", "--listen", "127.0.0.1:0", "--fleet-pub", str(key_file), "--log-file"]
    done = run(*words, tmp_path / "no" / "such.log")
    assert done.returncode == 1
    assert "such.log: No such file" in done.stderr
