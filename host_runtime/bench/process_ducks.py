"""Ducks as processes on this machine with the `gap` kernel loaded, and raw sockets beside them."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import selectors
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from host_runtime import wire
from host_runtime.errors import HostError
from host_runtime.transport import DomainEndpoint, DuckEndpoint, Transport, TransportOptions, native

START_S_MAX = 10.0
STOP_S_MAX = 5.0
REQUEST_MS = 10_000
PUBLIC_LABEL = "duck-p256-public:"
POLICIES = {
    "spin": wire.PollPolicy.SPIN,
    "sleep": wire.PollPolicy.SLEEP,
    "block": wire.PollPolicy.BLOCK,
}


@dataclass(frozen=True)
class Natives:
    """The folder of the installed native parts."""

    folder: Path

    @property
    def library(self) -> Path:
        return self.folder / "libduckhost.so"

    def program(self, name: str) -> str:
        return str(self.folder / name)


@dataclass(frozen=True)
class Shelf:
    """Ready ducks: where they listen, and the key that they obey."""

    natives: Natives
    key: bytes
    ports: tuple[int, ...]

    def transport(self, domains: int, mtu: int, options: TransportOptions) -> Transport:
        """A transport with the kernel loaded on every duck; duck i is in domain i % domains."""
        ends = [DomainEndpoint(f"domain{i + 1}", "127.0.0.1", None, mtu) for i in range(domains)]
        ducks = [
            DuckEndpoint(f"d{i + 1:02}", "127.0.0.1", port, i % domains)
            for i, port in enumerate(self.ports)
        ]
        transport = Transport(self.natives.library, ends, ducks, self.key, options)
        kernel = Path(self.natives.program("gap.elf")).read_bytes()
        for index in range(len(ducks)):
            transport.hello(index, REQUEST_MS)
            fill(transport, index, wire.Region.KERNEL, kernel)
        return transport


def fill(transport: Transport, duck: int, region: wire.Region, data: bytes) -> None:
    """Reserve, write and commit one region."""
    reserve = wire.Reserve(region=region, bytes=len(data))
    transport.request(duck, wire.MessageType.RESERVE, bytes(reserve), REQUEST_MS)
    transport.write(duck, region, 0, data)
    commit = wire.Commit(region=region, flags=wire.COMMIT_LAST, bytes=len(data))
    digest = hashlib.sha256(data).digest()
    commit.sha256[:] = list(digest)
    commit.set_id[:] = list(digest)
    transport.request(duck, wire.MessageType.COMMIT, bytes(commit), REQUEST_MS)


def open_request(bytes_max: int) -> wire.Open:
    """A session for calls and results of up to ``bytes_max``."""
    return wire.Open(
        flags=wire.OPEN_TAKEOVER,
        core_count=1,
        call_bytes_max=bytes_max,
        result_bytes_max=bytes_max,
        scratch_bytes=4096,
        call_time_limit_ms=10_000,
    )


@contextlib.contextmanager
def running_shelf(natives: Natives, count: int, poll: str) -> Iterator[Shelf]:
    """``count`` ducks on loopback; they end with the block."""
    library = native.load(natives.library)
    private, public = ctypes.create_string_buffer(32), ctypes.create_string_buffer(65)
    if library.duckhost_make_key(private, public) != 0:
        raise HostError("the system gives no random bytes")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="duck-bench-")))
        key_file = folder / "fleet.pub"
        key_file.write_text(f"{PUBLIC_LABEL}{public.raw.hex()}\n", encoding="ascii")
        key_file.chmod(0o644)
        ports = []
        for index in range(count):
            command = [natives.program("duckd"), "--name", f"d{index + 1:02}", "--cores", "1"]
            command += ["--listen", "127.0.0.1:0", "--fleet-pub", str(key_file), "--poll", poll]
            line = stack.enter_context(process(command))
            told = dict(word.split("=", 1) for word in line.split()[2:])
            ports.append(int(told["listen"].rsplit(":", 1)[1]))
        yield Shelf(natives, private.raw, tuple(ports))


@contextlib.contextmanager
def process(command: Sequence[str]) -> Iterator[str]:
    """A process that says one line when it is ready; it is ended with the block."""
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1
    )
    try:
        yield first_line(child, command[0])
    finally:
        child.kill()
        child.wait(STOP_S_MAX)


def first_line(child: subprocess.Popen[str], name: str) -> str:
    """What a started process says first."""
    assert child.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        line = child.stdout.readline() if selector.select(START_S_MAX) else ""
    if not line:
        raise HostError(f"{name} did not start")
    return line
