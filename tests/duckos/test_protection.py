"""What the OS does to itself is caught: each mistake is made in the running guest, by a debugger
that changes its code or registers, and must end in a panic that names it and reboots."""

from __future__ import annotations

from pathlib import Path

import pytest
from boot_guest import UP, Guest
from gdb_stub import RIP, RSP, GdbStub

from duckctl.native import native_path

CODE_AT = 0xFFFFFFFF80001040  # entry_32: ran before paging, never again

# Machine code, put there.
PUSH_FOR_EVER = bytes.fromhex("50 eb fd")  # push %rax; jmp to the push
WRITE_TO_CODE = bytes.fromhex("c6 05 00 00 00 00 00")  # movb $0, 0(%rip)
READ_NULL = bytes.fromhex("8a 04 25 00 00 00 00")  # movb 0, %al
READ_FREE_MEMORY = bytes.fromhex("8a 04 25 00 00 00 01")  # movb 0x1000000, %al
WRITE_TO_CONSTANTS = bytes.fromhex("c6 04 25 00 20 00 80 00")  # the config block
DIVIDE_BY_ZERO = bytes.fromhex("31 c9 f7 f1")  # xorl %ecx, %ecx; divl %ecx
BAD_INSTRUCTION = bytes.fromhex("0f 0b")
HANG = bytes.fromhex("fb eb fe")  # sti; jmp to itself


def panic_of(folder: Path, code: bytes, seconds: float = 30.0) -> list[str]:
    """The lines of the panic that `code` leads to."""
    stub = folder / "gdb"
    arguments = ("-gdb", f"unix:{stub},server=on,wait=off", "-append", "panic_seconds=0 poll=hlt")
    with Guest(folder, "-kernel", native_path("duckos.img"), *arguments, memory="64M") as guest:
        guest.wait_for(UP)
        debugger = GdbStub(stub)
        if code:
            debugger.write(CODE_AT, code)
        debugger.set_register(RIP, CODE_AT if code else debugger.register(RSP) - 256)
        debugger.go_on()
        guest.wait_for("^PANIC", seconds)
        guest.wait_for("^panic: reboot in 0 s")
        assert guest.exit_code() == 0
        return guest.lines[[line.startswith("PANIC") for line in guest.lines].index(True) :]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (PUSH_FOR_EVER, "double fault (stack overflow?)"),
        (WRITE_TO_CODE, "page fault (vector 14, error 3)"),
        (WRITE_TO_CONSTANTS, "page fault (vector 14, error 3)"),
        (READ_NULL, "page fault (vector 14, error 0)"),
        (READ_FREE_MEMORY, "page fault (vector 14, error 0)"),
        (b"", "page fault (vector 14, error 11)"),  # runs on its stack: no code there
        (DIVIDE_BY_ZERO, "division error"),
        (BAD_INSTRUCTION, "invalid opcode"),
    ],
    ids=["overflow", "code", "constants", "null", "free", "stack", "divide", "opcode"],
)
def test_a_mistake_is_a_named_panic(tmp_path: Path, code: bytes, words: str) -> None:
    """Guard page, write protection, no execution of data, nothing mapped that is not used."""
    lines = panic_of(tmp_path, code)
    assert lines[0].startswith(f"PANIC on core 0: {words}"), lines
    assert any(line.startswith("panic: at ") for line in lines)


@pytest.mark.slow
def test_a_hanging_main_loop_is_a_panic(tmp_path: Path) -> None:
    """Ten seconds without a round of the main loop: the watchdog reboots."""
    lines = panic_of(tmp_path, HANG, seconds=60)
    assert lines[0].startswith("PANIC on core 0: watchdog: the main loop hangs at 0xffffffff8")
