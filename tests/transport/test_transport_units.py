"""Cutting messages, adding results and injecting faults do by themselves what they promise."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from transport_kit import ROOT

FOLDER = ROOT / "host_runtime/transport"
PARTS = [FOLDER / name for name in ("base.cc", "fault_port.cc", "message.cc", "sum.cc")]
SEAL = ROOT / "kernels/wire/seal.c"


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("units")
    flags = ["-O0", "-fsanitize=undefined", "-fno-sanitize-recover=all", "-Wall", "-Wextra"]
    flags += [f"-I{ROOT / 'kernels/include'}", f"-I{ROOT / 'kernels/wire'}", f"-I{FOLDER}"]
    seal, program = folder / "seal.o", folder / "units"
    subprocess.run(["cc", "-std=c11", *flags, "-c", str(SEAL), "-o", str(seal)], check=True)
    version = '-DDUCK_BUILD_HASH="0123456789012345678901234567890123456789"'
    source = str(Path(__file__).with_name("units.cc"))
    command = ["c++", "-std=c++17", *flags, version, source, *map(str, PARTS), str(seal)]
    subprocess.run([*command, "-lbearssl", "-o", str(program)], check=True)
    return program


@pytest.mark.parametrize(
    "name", ["off", "seed", "all_or_nothing", "reorder", "cut", "corrupt", "cutting", "sums"]
)
def test_unit(units: Path, name: str) -> None:
    result = subprocess.run([units, name], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
