"""The transport under address, undefined and thread sanitizers; calls take no memory."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from transport_kit import ROOT, library, running_shelf

SOURCES = sorted((ROOT / "host_runtime/transport").glob("*.cc"))
INCLUDES = [
    f"-I{ROOT / part}" for part in ("kernels/include", "kernels/wire", "host_runtime/transport")
]
HASH = '-DDUCK_BUILD_HASH="0123456789012345678901234567890123456789"'
WARNINGS = ["-Wall", "-Wextra", "-Werror"]
RUN_S_MAX = 240


def build_storm(folder: Path, flags: list[str], parts: list[str]) -> Path:
    seal, program = folder / "seal.o", folder / "storm"
    command = ["cc", "-std=c11", *flags, *INCLUDES, "-c", str(ROOT / "kernels/wire/seal.c")]
    subprocess.run([*command, "-o", str(seal)], check=True)
    storm = Path(__file__).with_name("storm.cc")
    command = ["c++", "-std=c++17", *flags, *WARNINGS, HASH, *INCLUDES, str(storm), *parts]
    command += [str(seal), "-lbearssl", "-lpthread", "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def run_storm(folder: Path, kernel: bytes, program: Path, calls: int) -> str:
    kernel_file = folder / "echo.elf"
    kernel_file.write_bytes(kernel)
    with running_shelf(folder, kernel, [0, 1, 0]) as shelf:
        ports = [str(duck.port) for duck in shelf.ducks]
        command = [str(program), shelf.key.hex(), str(kernel_file), str(calls), *ports]
        result = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX)
    assert result.returncode == 0, result.stderr[-6000:]
    assert result.stderr == ""
    assert "storm is over" in result.stdout
    return result.stdout


def test_calls_take_no_memory(tmp_path: Path, echo_kernel: bytes) -> None:
    """The program's operator new counts, also for the library: -rdynamic puts it first."""
    folder = library().parent
    flags = ["-O0", "-rdynamic"]
    parts = [str(library()), f"-Wl,-rpath,{folder}"]
    told = run_storm(tmp_path, echo_kernel, build_storm(tmp_path, flags, parts), 300)
    before, during = (int(line.split()[-1]) for line in told.splitlines() if "alloc" in line)
    assert before > 0, "loading and opening take memory, and it is counted"
    assert during == 0


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(tmp_path: Path, echo_kernel: bytes, sanitizer: str) -> None:
    flags = ["-O1", "-g", f"-fsanitize={sanitizer}", "-fno-omit-frame-pointer"]
    flags += ["-fno-sanitize-recover=all"]
    sources = [str(source) for source in SOURCES]
    run_storm(tmp_path, echo_kernel, build_storm(tmp_path, flags, sources), 600)
