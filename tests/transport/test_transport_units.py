"""Cutting messages, adding results and injecting faults do by themselves what they promise."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from native_kit import FOLDER, SEAL, compile_all, link

PARTS = [
    FOLDER / name for name in ("base.cc", "fault_port.cc", "message.cc", "sum.cc", "trace_ring.cc")
]
FLAGS = ["-O0", "-fsanitize=undefined", "-fno-sanitize-recover=all"]


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("units")
    sources = [Path(__file__).with_name("units.cc"), *PARTS, *SEAL]
    return link(folder, "units", FLAGS, compile_all(sources, folder, FLAGS))


@pytest.mark.parametrize(
    "name",
    [
        *("off", "seed", "all_or_nothing", "reorder", "cut", "corrupt", "cutting", "sums"),
        *("clock", "strides", "trace_ring"),
    ],
)
def test_unit(units: Path, name: str) -> None:
    result = subprocess.run([units, name], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
