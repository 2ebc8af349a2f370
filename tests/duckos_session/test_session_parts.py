"""Proves the parts of duckos' sessions that need no bare machine, under the sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SESSION = ROOT / "images/duckos/session"
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wconversion", "-Wshadow", "-Wvla"]
INCLUDES = [
    f"-I{ROOT / folder}"
    for folder in ("images/duckos", "images/core", "kernels/include", "kernels/wire")
]
SANITIZE = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
AS_DUCKOS = [
    *("-O2", "-ffreestanding", "-fpie", "-fvisibility=hidden", "-mgeneral-regs-only"),
    *("-mno-red-zone", "-fno-omit-frame-pointer", "-fno-stack-protector"),
    *("-fno-asynchronous-unwind-tables", "-fcf-protection=none"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("session") / "parts"
    sources = [SESSION / f"{name}.c" for name in ("areas", "layout", "verdict", "stub")]
    sources += [ROOT / "images/core" / f"{name}.c" for name in ("elf", "text")]
    command = [
        "gcc",
        "-std=c11",
        "-D_GNU_SOURCE",
        *SANITIZE,
        *WARNINGS,
        *INCLUDES,
    ]
    command += [str(HERE / "test_session_parts.c"), *map(str, sources), "-pthread"]
    subprocess.run([*command, "-o", str(target)], check=True)
    return target


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_session_parts(program: Path, seed: int) -> None:
    """Areas, layouts, verdicts and waits keep their rules for this seed."""
    done = subprocess.run([program, str(seed)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("fine")


def test_rest_beside_a_session(tmp_path: Path) -> None:
    """The main loop rests exactly when no core 0 has work and nothing is to be told."""
    target = tmp_path / "cores"
    command = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-g", "-O1", *WARNINGS, *INCLUDES]
    command += ["-fsanitize=undefined", "-fno-sanitize-recover=all"]
    command += ["-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections"]
    command += [str(HERE / "test_session_cores.c"), str(SESSION / "cores.c")]
    subprocess.run([*command, "-o", str(target)], check=True)
    done = subprocess.run([target], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "fine\n"


def test_stub_is_self_contained(tmp_path: Path) -> None:
    """The ring-3 code is copied to another address: it has no relocation and no other section."""
    target = tmp_path / "stub.o"
    command = ["gcc", "-std=c11", *AS_DUCKOS, *WARNINGS, *INCLUDES, "-c"]
    subprocess.run([*command, SESSION / "stub.c", "-o", target], check=True)
    relocations = subprocess.run(
        ["objdump", "-r", target], check=True, capture_output=True, text=True
    ).stdout
    assert "R_X86_64" not in relocations
    sizes = subprocess.run(
        ["objdump", "-h", target], check=True, capture_output=True, text=True
    ).stdout
    rows = [line.split() for line in sizes.splitlines() if line.strip()[:1].isdigit()]
    size = {row[1]: int(row[2], 16) for row in rows}
    assert 0 < size["user_stub"] <= 4096
    assert sum(size.get(name, 0) for name in (".text", ".data", ".bss", ".rodata")) == 0
