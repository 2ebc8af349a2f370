"""Proves the portable core alone, under the address and undefined-behaviour sanitizers: its rules
on a fake platform, and that no packet, kernel or ELF makes it break them."""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path

import pytest
from duckd_process import ROOT

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
REPLAY = ROOT / "tests/tools/replay_inputs.c"
RULES = (
    "test_core_network",
    "test_core_compute",
    "test_core_arrival",
    "test_core_bulk",
    "test_core_start",
)
FLAGS = [
    "-std=c11",
    "-D_GNU_SOURCE",
    "-g",
    "-O1",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wconversion",
    "-Wshadow",
    "-Wvla",
    "-Wstrict-prototypes",
    "-Wmissing-prototypes",
]


SEAL = [ROOT / "kernels/wire/seal.c", ROOT / "kernels/wire/trust.c"]
INCLUDES = [f"-I{ROOT / p}" for p in ("images/core", "kernels/include", "kernels/wire")]


def compile_to(folder: Path, sources: list[Path]) -> list[Path]:
    objects = [folder / f"{source.stem}.o" for source in sources]
    for source, target in zip(sources, objects, strict=True):
        command: list[str | Path] = [
            "gcc",
            *FLAGS,
            *INCLUDES,
            f"-I{HERE}",
            "-c",
            source,
            "-o",
            target,
        ]
        subprocess.run(command, check=True)
    return objects


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("core")
    sources = [*sorted((ROOT / "images/core").glob("*.c")), *SEAL]
    common = compile_to(
        folder, [*sources, *(HERE / f"{n}.c" for n in ("fake_platform", "fake_host", "fuzz_rules"))]
    )
    built = {}
    for name in (*RULES, "fuzz_core", "fuzz_script"):
        own = compile_to(folder, [HERE / f"{name}.c", *([REPLAY] if name == "fuzz_script" else [])])
        built[name] = folder / name
        command: list[str | Path] = [
            "gcc",
            *FLAGS,
            *common,
            *own,
            "-l:libbearssl.a",
            "-pthread",
            "-o",
            built[name],
        ]
        subprocess.run(command, check=True)
    return built


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", RULES)
def test_rules_of_the_core(programs: dict[str, Path], name: str, seed: int) -> None:
    done = subprocess.run([programs[name], str(seed)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def run_fuzz(program: Path, seed: int, seconds: int) -> None:
    command: list[str | Path] = [program, str(seed), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 120)
    assert done.returncode == 0, done.stdout[-200:] + done.stderr
    assert " 0 calls finished" not in done.stdout, "the fuzzer no longer gets through to a session"


@pytest.mark.slow
def test_fuzz_same_seeds(programs: dict[str, Path]) -> None:
    run_fuzz(programs["fuzz_core"], 1, 5)


@pytest.mark.slow
def test_fuzz_new_seeds(programs: dict[str, Path]) -> None:
    run_fuzz(programs["fuzz_core"], secrets.randbits(40), 30)


def test_kept_inputs(programs: dict[str, Path]) -> None:
    """What long runs of tests/tools/fuzz.sh found worth keeping breaks no rule."""
    inputs = sorted(CORPUS.iterdir())
    assert len(inputs) > 100
    command: list[str | Path] = [programs["fuzz_script"], *inputs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == f"{len(inputs)} inputs\n"


@pytest.mark.slow
def test_core_is_freestanding(tmp_path: Path) -> None:
    """The core needs the memcpy family and sealing from outside, and its platform; nothing else."""
    objects = []
    for source in sorted((ROOT / "images/core").glob("*.c")):
        objects.append(tmp_path / f"{source.stem}.o")
        flags = ["-std=c11", "-O2", "-ffreestanding", "-fno-stack-protector", *INCLUDES]
        command: list[str | Path] = ["gcc", *flags, "-c", source, "-o", objects[-1]]
        subprocess.run(command, check=True)
    joined = tmp_path / "joined.o"
    command = ["ld", "-r", *objects, "-o", joined]
    subprocess.run(command, check=True)
    listed = subprocess.run(["nm", "-u", joined], check=True, capture_output=True, text=True)
    needed = {line.split()[-1] for line in listed.stdout.splitlines()}
    own = {name for name in needed if name.startswith(("plat_", "duck_"))}
    assert needed - own <= {"memcpy", "memmove", "memset", "memcmp", "strlen"}
