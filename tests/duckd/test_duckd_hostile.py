"""Proves that whatever a kernel does ends in a named verdict, and that the duck lives and serves
the next session."""

from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from duckd_client import (
    BAD_REQUEST,
    KERNEL_FAULT,
    KERNEL_REGION,
    NO_SESSION,
    OK,
    QUERY,
    TIME_LIMIT,
    WEIGHTS_REGION,
    Client,
    Fault,
    parse_fault,
)
from duckd_client import FAULT as FAULT_MESSAGE
from duckd_process import KERNELS, DuckProcess, build_kernel

(NONE, MEMORY, ILLEGAL, ARITHMETIC, BUS, FORBIDDEN, STACK, EXITED, KILLED) = range(9)
Kernel = Callable[..., bytes]

# attack: (number in hostile.c, kinds that are right, address or None)
ATTACKS: dict[str, tuple[int, set[int], int | None]] = {
    "null write": (1, {MEMORY}, 0x10),
    "write to the weights": (2, {MEMORY}, None),
    "stack overflow": (4, {STACK}, None),
    "run data": (5, {MEMORY}, None),
    "change code": (6, {MEMORY}, None),
    "change the context": (7, {MEMORY}, None),
    "overwrite the verdict page, then fault": (9, {MEMORY, EXITED, KILLED}, None),
    "illegal instruction": (10, {ILLEGAL}, 0),
    "divide by zero": (11, {ARITHMETIC}, 0),
    "unmasked float exception": (12, {ARITHMETIC}, 0),
    "hlt": (13, {ILLEGAL}, 0),
    "cli": (14, {ILLEGAL}, 0),
    "port input": (15, {ILLEGAL}, 0),
    "breakpoint": (16, {ILLEGAL}, 0),
    "alignment check": (17, {BUS}, None),
    "misaligned vector load": (18, {MEMORY}, None),
    "impossible address": (19, {MEMORY}, None),
    "lost thread pointer": (20, {MEMORY}, 0x10),
    "control register": (21, {ILLEGAL}, 0),
    "getpid": (30, {FORBIDDEN}, 39),
    "exit of one core": (31, {FORBIDDEN}, 60),
    "exit of the process": (32, {EXITED}, 3),
    "write to stdout": (33, {FORBIDDEN}, 1),
    "fork": (34, {FORBIDDEN}, 57),
    "socket": (35, {FORBIDDEN}, 41),
    "mprotect of the weights": (36, {FORBIDDEN}, 10),
    "kill": (37, {FORBIDDEN}, 62),
    "nonsense sigreturn": (38, {MEMORY, ILLEGAL, KILLED}, None),
    "32-bit system call": (39, {FORBIDDEN, MEMORY, ILLEGAL}, None),
    "x32 system call": (40, {FORBIDDEN}, 39 | 0x40000000),
    "too much output": (50, {NONE}, None),
    "completion of another call": (51, {NONE}, None),
    "return to nowhere": (53, {MEMORY}, 0),
    "beyond the call buffers": (54, {MEMORY, BUS}, None),
}


def start(client: Client, kernel: bytes, **fields: int) -> None:
    client.load(KERNEL_REGION, kernel)
    assert client.open(**fields).status == OK


def attack(client: Client, number: int) -> bytes | Fault:
    return client.call(struct.pack("<II", number, 0) * 4)


def assert_works(client: Client, kernel: bytes) -> None:
    start(client, kernel)
    assert client.call(b"still alive" * 300) == b"still alive" * 300
    assert client.close_session().status == OK


@pytest.mark.parametrize("name", list(ATTACKS))
def test_attack_is_named_and_survived(duck: DuckProcess, kernel: Kernel, name: str) -> None:
    number, kinds, address = ATTACKS[name]
    weights = bytes(range(256)) * 64
    with duck.client() as client:
        client.load(WEIGHTS_REGION, weights)
        start(client, kernel("hostile"))
        fault = attack(client, number)
        assert isinstance(fault, Fault), fault
        assert fault.status == KERNEL_FAULT
        assert fault.kind in kinds, fault
        assert fault.text
        assert fault.call == 1
        if address is not None:
            assert fault.address == address, fault
        assert client.ping() == 4  # FAULTED
        assert duck.children() == []
        assert_works(client, kernel("echo"))
        assert client.read(WEIGHTS_REGION, 0, 1024) == weights[:1024]
        assert client.commit(WEIGHTS_REGION, weights).status == OK


def test_a_forged_verdict_is_printable(duck: DuckProcess, kernel: Kernel) -> None:
    """A kernel writes its own verdict: no byte of its words can steer a terminal."""
    with duck.serving(kernel("hostile")) as client:
        fault = attack(client, 22)
        assert isinstance(fault, Fault)
        assert fault.text == "?]0;owned???"


def test_instruction_is_the_offset_in_the_elf(duck: DuckProcess, tmp_path: Path) -> None:
    elf = build_kernel(KERNELS / "hostile.c", tmp_path / "hostile.elf")
    names = subprocess.run(
        ["nm", str(tmp_path / "hostile.elf")], check=True, capture_output=True, text=True
    ).stdout
    (place,) = {line.split()[0] for line in names.splitlines() if "null_write_here" in line}
    with duck.serving(elf) as client:
        fault = attack(client, 1)
        assert isinstance(fault, Fault)
        assert fault.instruction == int(place, 16)
        assert fault.core == 0


def test_fault_is_told_again_until_the_next_open(duck: DuckProcess, kernel: Kernel) -> None:
    with duck.serving(kernel("hostile")) as client:
        first = attack(client, 10)
        client.query(1)
        assert parse_fault(client.expect(FAULT_MESSAGE).payload) == first
        start(client, kernel("echo"))
        client.close_session()
        client.send(QUERY, bytes(208), 1)
        assert parse_fault(client.expect(FAULT_MESSAGE).payload).status == NO_SESSION


def test_endless_loop_meets_its_limit(duck: DuckProcess, kernel: Kernel) -> None:
    with duck.serving(kernel("hostile"), limit_ms=150) as client:
        fault = attack(client, 3)
        assert isinstance(fault, Fault)
        assert (fault.status, fault.kind, fault.call) == (TIME_LIMIT, KILLED, 1)
        assert duck.children() == []
        assert_works(client, kernel("echo"))


def test_mailbox_full_of_ones(duck: DuckProcess, kernel: Kernel) -> None:
    """The kernel destroys the mailbox: whatever the verdict, it comes and the duck lives."""
    with duck.serving(kernel("hostile"), limit_ms=300) as client:
        assert isinstance(attack(client, 8), Fault)
        client.close_session()  # the first fault may have been about the call only
        assert_works(client, kernel("echo"))


def test_call_buffers_full_of_ones_are_the_kernels_right(duck: DuckProcess, kernel: Kernel) -> None:
    with duck.serving(kernel("hostile")) as client:
        assert attack(client, 52) == b"\xff" * 8


def test_wide_descriptor_number_is_no_way_around_the_filter(
    duck: DuckProcess, kernel: Kernel
) -> None:
    """The kernel's write(fd) looks at 32 bits, as the filter does: it reaches the eventfd only."""
    with duck.serving(kernel("hostile")) as client:
        assert isinstance(attack(client, 41), bytes)
        assert attack(client, 0) == client.call(struct.pack("<II", 0, 0) * 4)


def test_fault_while_starting_answers_open(duck: DuckProcess, kernel: Kernel) -> None:
    with duck.client() as client:
        client.load(KERNEL_REGION, kernel("hostile", "FAULT_AT_START"))
        reply = client.open()
        assert (reply.status, reply.detail, reply.value) == (KERNEL_FAULT, MEMORY, 8)
        assert_works(client, kernel("echo"))


def test_other_core_is_named(tmp_path: Path, kernel: Kernel) -> None:
    with DuckProcess(tmp_path, cores=2) as duck, duck.serving(kernel("other_core"), cores=2) as c:
        fault = c.call(b"x" * 8)
        assert isinstance(fault, Fault)
        assert (fault.kind, fault.core) == (MEMORY, 1)


def test_refused_call_keeps_the_session(duck: DuckProcess, kernel: Kernel) -> None:
    with duck.serving(kernel("echo")) as client:
        fault = client.call(b"BAD!" + bytes(400))
        assert isinstance(fault, Fault)
        assert (fault.status, fault.address, fault.call) == (BAD_REQUEST, 7, 1)
        assert fault.text == "bad call"
        client.query(1)
        assert parse_fault(client.expect(FAULT_MESSAGE).payload) == fault
        assert client.call(b"good call") == b"good call"


def test_random_code(duck: DuckProcess, kernel: Kernel) -> None:
    """Kernels whose code is noise: every one ends, and the duck counts them."""
    elf = bytearray(kernel("echo"))
    entry = struct.unpack_from("<Q", elf, 24)[0]
    random.seed(7)
    with duck.client() as client:
        for _ in range(20):
            noisy = bytearray(elf)
            noisy[entry : entry + 64] = random.randbytes(64)
            client.load(KERNEL_REGION, bytes(noisy))
            reply = client.open(limit_ms=50)
            if reply.status == OK:
                client.close_session()
        assert_works(client, kernel("echo"))
