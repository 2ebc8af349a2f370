"""Proves the one-shot mode: `duckd run KERNEL.elf` gives the output and a verdict line."""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from duckd_process import duckd_binary

Kernel = Callable[..., bytes]


def run(kernel: bytes, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = folder / "kernel.elf"
    path.write_bytes(kernel)
    command = [str(duckd_binary()), "run", str(path), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def with_input(folder: Path, data: bytes) -> list[str]:
    (folder / "input").write_bytes(data)
    return ["--input", str(folder / "input"), "--output", str(folder / "output")]


@pytest.mark.parametrize("cores", [1, 2])
def test_finished(kernel: Kernel, tmp_path: Path, cores: int) -> None:
    data = b"quack" * 10_000
    done = run(kernel("echo"), tmp_path, *with_input(tmp_path, data), "--cores", str(cores))
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"verdict=finished time_ns=[1-9]\d* cycles=[1-9]\d* output_bytes=50000\n", done.stderr
    )
    assert done.stdout == ""
    assert (tmp_path / "output").read_bytes() == data


def test_without_files(kernel: Kernel, tmp_path: Path) -> None:
    done = run(kernel("echo"), tmp_path)
    assert done.returncode == 0
    assert "output_bytes=0" in done.stderr


def test_weights_and_scratch(kernel: Kernel, tmp_path: Path) -> None:
    weights = bytes(range(100))
    (tmp_path / "weights").write_bytes(weights)
    words = [*with_input(tmp_path, b"WGHT" + bytes(4)), "--weights", str(tmp_path / "weights")]
    done = run(kernel("echo"), tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "output").read_bytes() == weights[:64] + bytes(64)
    assert run(kernel("echo"), tmp_path, *with_input(tmp_path, b"SCRA" + bytes(4))).returncode == 0
    assert (tmp_path / "output").read_bytes() == struct.pack("<I", 1)


def test_time_limit(kernel: Kernel, tmp_path: Path) -> None:
    words = with_input(tmp_path, struct.pack("<II", 3, 0))
    done = run(kernel("hostile"), tmp_path, *words, "--time-limit-ms", "200")
    assert done.returncode == 1
    assert done.stderr == "verdict=time-limit limit_ms=200\n"
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize(
    ("attack", "verdict"),
    [
        (1, r"verdict=fault kind=memory address=0x10 instruction=0x[0-9a-f]+ core=0 text=.*\n"),
        (4, r"verdict=fault kind=stack address=0x[0-9a-f]+ instruction=0x[0-9a-f]+ core=0 .*\n"),
        (10, r"verdict=fault kind=illegal-instruction .* core=0 .*\n"),
        (11, r"verdict=fault kind=arithmetic .* core=0 .*\n"),
        (30, r"verdict=fault kind=forbidden-call address=0x27 .* core=0 .*\n"),
        (32, r"verdict=fault kind=exited .*\n"),
        (22, r'verdict=fault kind=memory .* text="\?\]0;owned\?\?\?"\n'),
        (55, r"verdict=memory-limit kind=memory address=0x[0-9a-f]+ .* core=0 .*\n"),
    ],
)
def test_faults(kernel: Kernel, tmp_path: Path, attack: int, verdict: str) -> None:
    words = with_input(tmp_path, struct.pack("<II", attack, 0))
    done = run(kernel("hostile"), tmp_path, *words)
    assert done.returncode == 1
    assert re.fullmatch(verdict, done.stderr)
    assert not (tmp_path / "output").exists()


def test_refusals(kernel: Kernel, tmp_path: Path) -> None:
    done = run(kernel("echo"), tmp_path, *with_input(tmp_path, b"BAD!" + bytes(4)))
    assert (done.returncode, done.stderr) == (1, 'verdict=refused status=7 text="bad call"\n')
    done = run(kernel("echo", "REFUSE_START"), tmp_path)
    assert done.returncode == 1
    assert done.stderr == 'verdict=refused status=42 text="weights have the wrong colour"\n'


def test_files_that_are_wrong(kernel: Kernel, tmp_path: Path) -> None:
    done = run(b"no ELF at all" * 10, tmp_path)
    assert (done.returncode, "this is no ELF file" in done.stderr) == (1, True)
    done = run(b"", tmp_path)
    assert (done.returncode, "empty" in done.stderr) == (1, True)
    done = run(kernel("echo"), tmp_path, "--input", str(tmp_path / "missing"))
    assert (done.returncode, "missing: No such file" in done.stderr) == (1, True)
    done = run(kernel("echo"), tmp_path, "--weights", "/dev/zero")
    assert (done.returncode, "not a regular file" in done.stderr) == (1, True)
    done = run(kernel("echo", "TEST_ABI_VERSION=2"), tmp_path)
    assert (done.returncode, "kernel ABI 2, this duckd has 1" in done.stderr) == (1, True)
    done = run(kernel("echo"), tmp_path, "--memory-limit", "1000000")
    assert (done.returncode, "memory limit" in done.stderr) == (1, True)
    words = [*with_input(tmp_path, b"x")[:2], "--output", str(tmp_path / "no" / "where")]
    done = run(kernel("echo"), tmp_path, *words)
    assert (done.returncode, "where: No such file" in done.stderr) == (1, True)
