"""Proves on the real image that whatever a kernel does ends in a named verdict, and that the duck
lives, keeps its weights and takes the next session."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator

import pytest
from duckd_client import (
    BAD_ELF,
    BAD_REQUEST,
    KERNEL_FAULT,
    KERNEL_REGION,
    OK,
    TIME_LIMIT,
    WEIGHTS_REGION,
    Client,
    Fault,
)
from duckos_guest import DuckosGuest, need_qemu
from test_duckd_elf import MALFORMED, Elf
from test_duckd_hostile import (
    ARITHMETIC,
    ATTACKS,
    BUS,
    FORBIDDEN,
    ILLEGAL,
    KILLED,
    MEMORY,
    attack,
    start,
)

Kernel = Callable[..., bytes]
WEIGHTS = bytes(range(256)) * 64

# Where bare metal differs from a process: there is no process to exit and no signal to return from,
# the thread pointer is no kernel's business, and there is nothing but the guard before the mailbox.
DIFFERENT: dict[str, tuple[set[int], int | None]] = {
    "exit of the process": ({FORBIDDEN}, 231),
    "nonsense sigreturn": ({FORBIDDEN}, 15),
    "32-bit system call": ({FORBIDDEN}, 20),
    "lost thread pointer": ({MEMORY, ILLEGAL}, None),
    "overwrite the verdict page, then fault": ({MEMORY}, None),
}
# TCG raises neither exception: the kernel's answer is accepted, the verdict is proven for the
# process duck by Linux and for the mapping by test_session_parts.c.
NOT_EMULATED = {"unmasked float exception": ARITHMETIC, "alignment check": BUS}


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DuckosGuest]:
    need_qemu()
    with DuckosGuest(tmp_path_factory.mktemp("guest"), cores=1) as running:
        yield running


@pytest.fixture(scope="module")
def client(guest: DuckosGuest) -> Iterator[Client]:
    with guest.client() as host:
        host.load(WEIGHTS_REGION, WEIGHTS)
        yield host


def assert_works(client: Client, kernel: bytes) -> None:
    start(client, kernel)
    assert client.call(b"still alive" * 300) == b"still alive" * 300
    assert client.close_session().status == OK
    assert client.commit(WEIGHTS_REGION, WEIGHTS).status == OK


@pytest.mark.parametrize("name", list(ATTACKS))
def test_attack_is_named_and_survived(client: Client, kernel: Kernel, name: str) -> None:
    """Each attack ends in the verdict that duckd gives, and the next session works."""
    number, kinds, address = ATTACKS[name]
    kinds, address = DIFFERENT.get(name, (kinds, address))
    start(client, kernel("hostile"))
    fault = attack(client, number)
    if name in NOT_EMULATED and not isinstance(fault, Fault):
        assert client.close_session().status == OK
        pytest.skip("QEMU's TCG does not raise this exception")
    assert isinstance(fault, Fault), fault
    assert (fault.status, fault.call) == (KERNEL_FAULT, 1)
    assert fault.kind in kinds | {NOT_EMULATED.get(name, -1)}, fault
    assert fault.text
    if address is not None:
        assert fault.address == address, fault
    assert client.ping() == 4  # FAULTED
    assert_works(client, kernel("echo"))


IMAGE, ARENA = 0xFFFFFFFF80001000, 0x200000
OS_ATTACKS: dict[str, tuple[int, int, int]] = {
    "jump into the image": (60, MEMORY, IMAGE),
    "write to the image": (61, MEMORY, IMAGE),
    "read the image": (62, MEMORY, IMAGE),
    "read the arena": (63, MEMORY, ARENA),
    "jump into the arena": (64, MEMORY, ARENA),
    "descriptor table": (65, ILLEGAL, 0),
    "model-specific register": (66, ILLEGAL, 0),
    "the OS's own interrupt": (67, ILLEGAL, 0),
}


@pytest.mark.parametrize("name", list(OS_ATTACKS))
def test_the_os_is_out_of_reach(client: Client, kernel: Kernel, name: str) -> None:
    """The OS is in the session's page tables, and closed to ring 3 in every way."""
    number, kind, address = OS_ATTACKS[name]
    start(client, kernel("hostile"))
    fault = attack(client, number)
    assert isinstance(fault, Fault), fault
    assert (fault.status, fault.kind, fault.address) == (KERNEL_FAULT, kind, address)
    assert_works(client, kernel("echo"))


@pytest.mark.parametrize("name", list(MALFORMED))
def test_malformed_file_is_refused_by_name(client: Client, kernel: Kernel, name: str) -> None:
    """The image's loader is duckd's: each malformed ELF is refused with its sentence."""
    spoil, words = MALFORMED[name]
    elf = Elf(bytearray(kernel("relocated")))
    spoil(elf)
    client.load(KERNEL_REGION, bytes(elf.data))
    reply = client.open()
    assert reply.status == BAD_ELF, reply
    assert words in reply.text


def test_good_file_is_relocated_and_runs(client: Client, kernel: Kernel) -> None:
    """Relocated pointers, written and zeroed data are in place."""
    client.load(KERNEL_REGION, kernel("relocated"))
    assert client.open().status == OK
    assert client.call(b"") == b"two" + bytes(4093)
    assert client.close_session().status == OK


def test_endless_loop_meets_its_limit(client: Client, kernel: Kernel) -> None:
    """Core 0 in an endless loop: pings are answered meanwhile, and the limit ends it."""
    start(client, kernel("hostile"), limit_ms=400)
    client.send_call(struct.pack("<II", 3, 0) * 4)
    assert client.ping() == 3  # SERVING
    fault = client.collect(1)
    assert isinstance(fault, Fault)
    assert (fault.status, fault.kind, fault.call) == (TIME_LIMIT, KILLED, 1)
    assert_works(client, kernel("echo"))


def test_mailbox_full_of_ones(client: Client, kernel: Kernel) -> None:
    """The kernel destroys mailbox and runtime page: whatever the verdict, it comes."""
    start(client, kernel("hostile"), limit_ms=300)
    assert isinstance(attack(client, 8), Fault)
    client.close_session()  # the first fault may have been about the call only
    assert_works(client, kernel("echo"))


def test_call_buffers_full_of_ones_are_the_kernels_right(client: Client, kernel: Kernel) -> None:
    """All of the call buffers belong to the kernel."""
    start(client, kernel("hostile"))
    assert attack(client, 52) == b"\xff" * 8
    assert client.close_session().status == OK


def test_fault_while_starting_answers_open(client: Client, kernel: Kernel) -> None:
    """A kernel that faults before it is ready is the answer to OPEN."""
    client.load(KERNEL_REGION, kernel("hostile", "FAULT_AT_START"))
    reply = client.open()
    assert (reply.status, reply.detail, reply.value) == (KERNEL_FAULT, MEMORY, 8)
    assert_works(client, kernel("echo"))


def test_refused_call_keeps_the_session(client: Client, kernel: Kernel) -> None:
    """A kernel may refuse a call and serve the next one."""
    start(client, kernel("echo"))
    fault = client.call(b"BAD!" + bytes(400))
    assert isinstance(fault, Fault)
    assert (fault.status, fault.text) == (BAD_REQUEST, "bad call")
    assert client.call(b"good call") == b"good call"
    assert client.close_session().status == OK


def test_scratch_is_zero_and_weights_are_readable(client: Client, kernel: Kernel) -> None:
    """What another session left is gone; the read-ahead behind the weights is readable zeros."""
    start(client, kernel("hostile"))
    attack(client, 56)  # fills scratch
    client.close_session()
    start(client, kernel("echo"))
    assert client.call(b"SCRA" + bytes(4)) == struct.pack("<I", 1)
    assert client.call(b"WGHT" + bytes(4)) == WEIGHTS[:64] + bytes(64)
    assert client.close_session().status == OK


def test_mutated_files(client: Client, kernel: Kernel) -> None:
    """Kernels with a few wrong bytes anywhere: refused or run, the duck lives."""
    elf = kernel("relocated")
    random.seed(11)
    refused = 0
    for _ in range(150):
        wrong = bytearray(elf[: random.choice((len(elf), random.randrange(1, len(elf))))])
        for _ in range(random.randrange(1, 9)):
            near = random.choice((256, len(wrong)))  # the headers, or anywhere
            wrong[random.randrange(min(near, len(wrong)))] = random.randrange(256)
        client.load(KERNEL_REGION, bytes(wrong))
        if client.open(limit_ms=50, call_bytes=4096, result_bytes=4096).status == OK:
            client.close_session()
        else:
            refused += 1
    assert 50 < refused < 150
    assert_works(client, kernel("echo"))


def test_random_code(client: Client, kernel: Kernel) -> None:
    """Kernels whose code is noise: every one ends, and the duck lives."""
    elf = kernel("echo")
    entry = struct.unpack_from("<Q", elf, 24)[0]
    random.seed(7)
    for _ in range(20):
        noisy = bytearray(elf)
        noisy[entry : entry + 64] = random.randbytes(64)
        client.load(KERNEL_REGION, bytes(noisy))
        if client.open(limit_ms=50).status == OK:
            client.close_session()
    assert_works(client, kernel("echo"))
