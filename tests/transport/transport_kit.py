"""Real ducks with the echo kernel, and a transport that is connected to them."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import numpy.typing as npt
from real_duckd import DuckdProcess, new_key

from duckctl.native import native_path
from host_runtime import wire
from host_runtime.transport import (
    DomainEndpoint,
    DuckEndpoint,
    Transport,
    TransportError,
    TransportOptions,
)

ROOT = Path(__file__).resolve().parents[2]
HELLO_MS = 5000
REQUEST_MS = 10000
OPEN_MS = 10000

# commands of echo_kernel.c
ECHO, SCALE, GENERATE, REFUSE, CRASH, FOREVER, BUSY = range(7)

COMPILE_FLAGS = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-ffreestanding", "-fPIE"]
COMPILE_FLAGS += ["-fvisibility=hidden", "-fno-stack-protector", "-fcf-protection=none"]
COMPILE_FLAGS += ["-fno-asynchronous-unwind-tables", "-fno-tree-loop-distribute-patterns"]
LINK_FLAGS = ["-nostdlib", "-static-pie", "-Wl,--no-dynamic-linker"]
LINK_FLAGS += ["-Wl,--entry=duck_kernel_entry", "-Wl,-z,noexecstack", "-Wl,-z,separate-code"]
LINK_FLAGS += ["-Wl,-z,norelro", "-Wl,-z,max-page-size=4096", "-Wl,--build-id=none"]

Floats = npt.NDArray[np.float32]


def build_echo_kernel(folder: Path) -> bytes:
    """The ELF of echo_kernel.c."""
    out = folder / "echo.elf"
    source = Path(__file__).with_name("echo_kernel.c")
    include = f"-I{ROOT / 'kernels/include'}"
    subprocess.run(
        ["cc", *COMPILE_FLAGS, include, str(source), "-o", str(out), *LINK_FLAGS], check=True
    )
    return out.read_bytes()


def library() -> Path:
    return native_path("libduckhost.so")


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll with a deadline; ``what`` says in the failure what did not come."""
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, f"after {seconds} s still not: {what}"
        time.sleep(0.01)


def let_pass(seconds: float) -> None:
    """For tests of what happens while time goes by."""
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= end, seconds + 5, "the time")


@dataclass
class Shelf:
    """Some running ducks and their key; ``domains[i]`` is the domain of duck i."""

    folder: Path
    key: bytes
    kernel: bytes
    ducks: list[DuckdProcess]
    domains: list[int]
    mtu: int = 1500
    call_addresses: dict[int, str] = field(default_factory=dict)
    bind_addresses: dict[int, str] = field(default_factory=dict)
    devices: dict[int, str] = field(default_factory=dict)

    def transport(
        self, options: TransportOptions | None = None, key: bytes | None = None
    ) -> Transport:
        domains = [
            DomainEndpoint(
                f"domain{i + 1}",
                self.bind_addresses.get(i),
                self.call_addresses.get(i),
                self.mtu,
                self.devices.get(i),
            )
            for i in range(max(self.domains) + 1)
        ]
        ducks = [
            DuckEndpoint(duck.name, duck.address, duck.port, domain)
            for duck, domain in zip(self.ducks, self.domains, strict=True)
        ]
        return Transport(library(), domains, ducks, key or self.key, options)


@contextlib.contextmanager
def running_shelf(
    folder: Path,
    kernel: bytes,
    domains: Sequence[int],
    mtu: int = 1500,
    binary: Path | None = None,
) -> Iterator[Shelf]:
    """Ducks d01, d02, ... on loopback, one per entry of ``domains``."""
    key = new_key()
    ducks = [
        DuckdProcess(f"d{i + 1:02}", folder, key, binary or native_path("duckd"))
        for i in range(len(domains))
    ]
    try:
        for duck in ducks:
            duck.start()
        yield Shelf(folder, key, kernel, ducks, list(domains), mtu)
    finally:
        for duck in ducks:
            duck.kill()


# ---- loading -----------------------------------------------------------------------------------
def done(transport: Transport, duck: int, kind: wire.MessageType, payload: bytes) -> wire.Done:
    reply_type, reply = transport.request(duck, kind, payload, REQUEST_MS)
    assert reply_type == wire.MessageType.DONE
    return wire.Done.from_buffer_copy(reply)


def reserve(transport: Transport, duck: int, region: wire.Region, size: int) -> None:
    done(transport, duck, wire.MessageType.RESERVE, bytes(wire.Reserve(region=region, bytes=size)))


def commit(transport: Transport, duck: int, region: wire.Region, data: bytes) -> None:
    """The duck hashes its memory: this passes only when every byte arrived."""
    request = wire.Commit(region=region, flags=wire.COMMIT_LAST, bytes=len(data))
    digest = hashlib.sha256(data).digest()
    request.sha256[:] = list(digest)
    request.set_id[:] = list(digest)
    done(transport, duck, wire.MessageType.COMMIT, bytes(request))


def load(transport: Transport, duck: int, kernel: bytes, factor: float) -> None:
    """Session, kernel and weights whose first float is ``factor``."""
    transport.hello(duck, HELLO_MS)
    weights = np.full(1024, factor, np.float32).tobytes()
    for region, data in ((wire.Region.KERNEL, kernel), (wire.Region.WEIGHTS, weights)):
        reserve(transport, duck, region, len(data))
        transport.write(duck, region, 0, data)
        commit(transport, duck, region, data)


def factor_of(duck: int) -> float:
    """Weights of duck i: numbers whose float32 sums depend on the order of adding."""
    return 1.0 + 0.37 * duck


def load_all(transport: Transport, shelf: Shelf) -> None:
    with ThreadPoolExecutor(len(shelf.ducks)) as pool:
        jobs = [
            pool.submit(load, transport, i, shelf.kernel, factor_of(i))
            for i in range(len(shelf.ducks))
        ]
        for job in jobs:
            job.result()


def open_request(
    call_bytes_max: int = 1 << 20, result_bytes_max: int = 4 << 20, time_limit_ms: int = 20000
) -> wire.Open:
    return wire.Open(
        flags=wire.OPEN_TAKEOVER,
        core_count=1,
        call_bytes_max=call_bytes_max,
        result_bytes_max=result_bytes_max,
        scratch_bytes=4096,
        call_time_limit_ms=time_limit_ms,
    )


@contextlib.contextmanager
def serving(
    shelf: Shelf, options: TransportOptions | None = None, request: wire.Open | None = None
) -> Iterator[Transport]:
    """A transport whose ducks are loaded and have a compute session open."""
    with shelf.transport(options) as transport:
        load_all(transport, shelf)
        transport.session_open(range(len(shelf.ducks)), request or open_request(), OPEN_MS)
        yield transport


def make_a_long_call(ports: list[int], key: bytes, kernel: bytes, pipe: Connection) -> None:
    """A host of its own, for a child process: one call that takes seconds."""
    ducks = [DuckEndpoint(f"d{i + 1:02}", "127.0.0.1", port, 0) for i, port in enumerate(ports)]
    domains = [DomainEndpoint("domain1", None, None, 1500)]
    options = TransportOptions(silence_ms=800, ping_ms=100)
    with Transport(library(), domains, ducks, key, options) as transport:
        for i in range(len(ducks)):
            load(transport, i, kernel, factor_of(i))
        transport.session_open(range(len(ducks)), open_request(), OPEN_MS)
        ticket = submit(transport, message(BUSY, 1_000_000_000))
        pipe.send("calling")
        try:
            transport.wait(ticket)
            pipe.send("finished")
        except TransportError as error:
            pipe.send(error.message)


# ---- calls -------------------------------------------------------------------------------------
def message(command: int, argument: int = 0, seed: int = 0, data: bytes = b"") -> bytes:
    return struct.pack("<4I", command, argument, seed, 0) + data


def submit(transport: Transport, content: bytes) -> int:
    held = ctypes.create_string_buffer(content, len(content))
    return transport.submit(ctypes.addressof(held), len(content))


def wait_sum(
    transport: Transport, ticket: int, count: int, dtype: wire.Dtype = wire.Dtype.F32
) -> Floats:
    out = np.full(count, np.nan, np.float32)
    transport.wait_sum(ticket, dtype, out.ctypes.data, count)
    return out


def call(transport: Transport, content: bytes, count: int) -> Floats:
    return wait_sum(transport, submit(transport, content), count)


def scale_call(values: Floats) -> bytes:
    return message(SCALE, data=values.tobytes())


def scaled_sum(values: Floats, ducks: Sequence[int]) -> Floats:
    """What the ducks' SCALE outputs add up to, in duck order, in float32."""
    parts = [values * np.float32(factor_of(duck)) for duck in ducks]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
