"""Frames of ports on NIC queues: built, parsed, damaged and random ones, under the sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from native_kit import FOLDER, compile_all, link, sanitizer_flags

SEED, SECONDS = 7, 2


@pytest.mark.slow
def test_frames(tmp_path: Path) -> None:
    """Right ones are read as they were built; no other one is, and none is read beyond its end."""
    flags = sanitizer_flags("address,undefined")
    parts = [FOLDER / "dpdk" / name for name in ("frame.cc", "neighbours.cc")]
    sources = [Path(__file__).with_name("frames.cc"), *parts]
    program = link(tmp_path, "frames", flags, compile_all(sources, tmp_path, flags))
    command = [str(program), str(SEED), str(SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) >= 1000
