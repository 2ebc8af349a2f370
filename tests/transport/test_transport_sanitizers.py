"""The transport under address, undefined and thread sanitizers; calls take no memory."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from native_kit import (
    FOLDER,
    SanitizedObjects,
    build_sanitized,
    build_with_library,
    compile_all,
    link,
    sanitizer_flags,
)
from transport_kit import ROOT, running_shelf

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
RUN_S_MAX = 240
LIES_S_MAX = 120


def run_storm(folder: Path, kernel: bytes, program: Path, calls: int) -> str:
    """storm.cc: many threads use everything at once, under faults."""
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


def run_hostile(program: Path, seed: int, rounds: int) -> None:
    """hostile.cc: a duck with the right key answers with random, well-sealed packets."""
    command = [str(program), str(seed), str(rounds)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=LIES_S_MAX)
    assert (result.returncode, result.stderr) == (0, ""), f"seed {seed}: {result.stderr[-4000:]}"
    told = result.stdout.split()
    assert int(told[1]) > 100 * rounds, "the duck lied often"
    assert int(told[3]) > 0 and int(told[5]) > 0, "lies were noticed"


@pytest.mark.slow
def test_calls_take_no_memory(tmp_path: Path, echo_kernel: bytes) -> None:
    told = run_storm(tmp_path, echo_kernel, build_with_library("storm", tmp_path), 300)
    before, during = (int(line.split()[-1]) for line in told.splitlines() if "alloc" in line)
    assert before > 0, "loading and opening take memory, and it is counted"
    assert during == 0


@pytest.mark.slow
def test_a_lying_duck_ends_no_host(tmp_path: Path) -> None:
    run_hostile(build_with_library("hostile", tmp_path), seed=1, rounds=3)


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(
    tmp_path: Path, echo_kernel: bytes, sanitized_objects: SanitizedObjects, sanitizer: str
) -> None:
    program = build_sanitized("storm", tmp_path, sanitizer, sanitized_objects)
    run_storm(tmp_path, echo_kernel, program, 600)
    program = build_sanitized("hostile", tmp_path, sanitizer, sanitized_objects)
    for seed in range(2, 5):
        run_hostile(program, seed, rounds=8)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["earlier_session", "keys_change", "waiting_requests", "turns_of_requests"]
)
def test_one_duck(tmp_path: Path, sanitized_objects: SanitizedObjects, name: str) -> None:
    """one_duck.cc: what a session takes as its own, and limits, without any other thread."""
    program = build_sanitized("one_duck", tmp_path, "address,undefined", sanitized_objects)
    done = subprocess.run([program, name], capture_output=True, text=True, timeout=RUN_S_MAX)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_kept_inputs(tmp_path: Path, sanitized_objects: SanitizedObjects) -> None:
    """What long runs of tests/tools/fuzz.sh found worth keeping: lies of ducks, and frames."""
    flags = sanitizer_flags("address,undefined")
    sources = [
        HERE / "fuzz_host.cc",
        FOLDER / "dpdk/frame.cc",
        ROOT / "tests/tools/replay_inputs.c",
    ]
    objects = compile_all(sources, tmp_path, flags)
    program = link(tmp_path, "replay", flags, [*objects, *sanitized_objects("address,undefined")])
    inputs = sorted(CORPUS.iterdir())
    assert len(inputs) > 100
    command = [str(program), *map(str, inputs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == f"{len(inputs)} inputs\n"
