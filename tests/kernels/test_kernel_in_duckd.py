"""A duck process runs the same ELF with the same bits as the harness, and names what it refuses."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import packing
import pytest
import running

from duckctl.native import native_path

SEED = 20260105


def run_duckd(
    folder: Path, elf: str, region: bytes, message: bytes, cores: int
) -> tuple[subprocess.CompletedProcess[str], bytes]:
    """`duckd run` with files; returns the process and what the kernel put out."""
    (folder / "weights").write_bytes(region)
    (folder / "input").write_bytes(message)
    output = folder / "output"
    output.unlink(missing_ok=True)
    command = [
        str(native_path("duckd")), "run", str(native_path(elf)),
        "--input", str(folder / "input"), "--output", str(output),
        "--weights", str(folder / "weights"), "--cores", str(cores),
        "--time-limit-ms", "60000",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done, output.read_bytes() if output.exists() else b""


@pytest.mark.parametrize("fmt", [packing.FP8, packing.FP9, packing.Q4])
@pytest.mark.parametrize("elf", ["experts-scalar.elf", "experts-avx2.elf"])
def test_one_shot_gives_the_harness_bits(tmp_path: Path, fmt: int, elf: str) -> None:
    rng = np.random.default_rng(SEED)
    layer = running.make_layer(rng, fmt, hidden=256, moe=96, first_row=32, rows=64, experts=4)
    x, ids, weights = running.random_call(rng, 256, 3, 2, 4)
    with running.Kernel(layer.region, body="scalar", fmt=fmt) as kernel:
        wanted = kernel.experts(layer.layer, x, ids, weights)
    message = running.make_call(layer.layer, x, ids, weights)
    for cores in (1, 2):
        done, output = run_duckd(tmp_path, elf, layer.region, message, cores)
        assert done.returncode == 0, done.stderr
        assert "verdict=finished" in done.stderr
        assert np.array_equal(np.frombuffer(output, np.float32).reshape(3, 256), wanted)


def test_refused_weights_are_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(SEED)
    layer = running.make_layer(
        rng, packing.FP8, hidden=128, moe=32, first_row=0, rows=32, experts=2
    )
    x, ids, weights = running.random_call(rng, 128, 1, 1, 2)
    message = running.make_call(layer.layer, x, ids, weights)
    done, _ = run_duckd(tmp_path, "experts-avx2.elf", layer.region[:-1], message, 1)
    assert done.returncode != 0
    assert "size of the weights region" in done.stderr
