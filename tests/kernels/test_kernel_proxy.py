"""The inner loops stay within what an N100 needs to run at memory speed, counted in the ELF.

Model (docs/reference/kernels.md): Gracemont does vector work on three 128-bit ports, so a loop over
32 weights needs at least (128-bit vector operations) / 3 cycles. Loads are not counted; a 256-bit
operation counts twice, and so does vcvtph2ps to 256 bits.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from functools import cache

import pytest

from duckctl.native import native_path

INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*)$")
LOAD_ONLY = ("vmovdqu", "vmovdqa", "vmovups", "vmovaps", "vbroadcastss", "vpbroadcastd")
COSTLY = re.compile(r"^(vextracti128|vpshufb|vperm|vhadd|vpblendvb|vblendv|vpgather)")
WEIGHTS_PER_MULTIPLICATION = 8  # one vector of rows, one column, one token


@dataclass(frozen=True)
class Loop:
    """Per 32 weights."""

    instructions: float
    vector_operations: float
    costly: list[str]
    stack: list[str]


@cache
def functions() -> dict[str, list[tuple[int, str, str]]]:
    """Name -> (address, mnemonic, operands) of every instruction."""
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", str(native_path("experts-avx2.elf"))],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found: dict[str, list[tuple[int, str, str]]] = {}
    name = ""
    for line in listing.splitlines():
        header = re.match(r"^[0-9a-f]+ <(\w+(?:\.\w+)*)>:$", line)
        if header:
            name = header[1]
            found[name] = []
        elif name and (match := INSTRUCTION.match(line)):
            found[name].append((int(match[1], 16), match[2], match[3]))
    return found


def operations(mnemonic: str, operands: str) -> int:
    """128-bit vector operations of one instruction."""
    if not mnemonic.startswith("v") or (mnemonic in LOAD_ONLY and "(" in operands):
        return 0
    return 2 if "%ymm" in operands else 1


def inner_loop(name: str) -> Loop:
    """The smallest loop (backward jump) with enough multiplications for 8 columns."""
    code = functions()[name]
    multiply = re.compile(r"vfmadd")
    best: list[tuple[int, str, str]] | None = None
    for index, (address, mnemonic, operands) in enumerate(code):
        target = re.match(r"^([0-9a-f]+)", operands)
        if not mnemonic.startswith("j") or target is None or int(target[1], 16) >= address:
            continue
        body = [entry for entry in code[: index + 1] if entry[0] >= int(target[1], 16)]
        count = sum(bool(multiply.match(entry[1])) for entry in body)
        if count >= 32 and (best is None or len(body) < len(best)):
            best = body
    assert best is not None, f"{name} has no inner loop"
    tokens = int(name.rsplit("_", 1)[1])
    multiplications = sum(bool(multiply.match(entry[1])) for entry in best)
    per_32 = 32 * tokens / (WEIGHTS_PER_MULTIPLICATION * multiplications)
    return Loop(
        len(best) * per_32,
        sum(operations(m, o) for _, m, o in best) * per_32,
        [m for _, m, _ in best if COSTLY.match(m)],
        [f"{m} {o}" for _, m, o in best if "(%rsp)" in o and "%ymm" in o],
    )


@pytest.mark.parametrize(
    ("name", "instructions", "vector_operations"),
    [
        ("duck_run_fp8_cvt_1", 22.0, 26.5),
        ("duck_run_fp8_int_1", 16.0, 26.5),
        ("duck_run_fp9_narrow_1", 21.0, 26.5),
        ("duck_run_fp7_cvt_1", 29.0, 33.0),
    ],
)
def test_one_token_loop(name: str, instructions: float, vector_operations: float) -> None:
    loop = inner_loop(name)
    assert loop.instructions <= instructions, loop
    assert loop.vector_operations <= vector_operations, loop
    assert loop.costly == []
    assert loop.stack == []


@pytest.mark.parametrize("name", ["duck_run_fp8_cvt_2", "duck_run_fp8_int_2"])
def test_two_token_loop_does_not_spill(name: str) -> None:
    loop = inner_loop(name)
    assert loop.costly == []
    assert loop.stack == []
    assert loop.vector_operations <= 39.5, (
        loop
    )  # 13.2 cycles; 12.7 would be memory speed at 25.6 GB/s
