"""Proves the portable core alone, under the address and undefined-behaviour sanitizers: its rules on
a fake platform, and that no packet, kernel or ELF makes it break them."""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path

import pytest
from duckd_process import ROOT

HERE = Path(__file__).parent
FLAGS = (
    "-std=c11 -D_GNU_SOURCE -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -Wall "
    "-Wextra -Werror -Wconversion -Wshadow -Wvla -Wstrict-prototypes -Wmissing-prototypes"
).split()


def build(target: Path) -> Path:
    includes = ["images/core", "kernels/include", "kernels/wire", "tests/duckd"]
    sources = [*sorted((ROOT / "images/core").glob("*.c")), ROOT / "kernels/wire/seal.c"]
    sources += [HERE / "fake_platform.c", HERE / "fake_host.c", HERE / f"{target.name}.c"]
    command: list[str | Path] = ["gcc", *FLAGS, *(f"-I{ROOT / path}" for path in includes)]
    subprocess.run([*command, *sources, "-l:libbearssl.a", "-o", target], check=True)
    return target


@pytest.fixture(scope="module")
def test_core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("core") / "test_core")


@pytest.fixture(scope="module")
def fuzz_core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("core") / "fuzz_core")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rules_of_the_core(test_core: Path, seed: int) -> None:
    done = subprocess.run([test_core, str(seed)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def run_fuzz(program: Path, seed: int, seconds: int) -> None:
    command = [program, str(seed), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 120)
    assert done.returncode == 0, done.stdout[-200:] + done.stderr
    assert " 0 calls finished" not in done.stdout, "the fuzzer no longer gets through to a session"


def test_fuzz_same_seeds(fuzz_core: Path) -> None:
    run_fuzz(fuzz_core, 1, 5)


@pytest.mark.slow
def test_fuzz_new_seeds(fuzz_core: Path) -> None:
    run_fuzz(fuzz_core, secrets.randbits(40), 45)


def test_core_is_freestanding(tmp_path: Path) -> None:
    """The core needs the memcpy family and sealing from outside, and its platform; nothing else."""
    objects = []
    for source in sorted((ROOT / "images/core").glob("*.c")):
        objects.append(tmp_path / f"{source.stem}.o")
        includes = [f"-I{ROOT / path}" for path in ("kernels/include", "kernels/wire")]
        flags = ["-std=c11", "-O2", "-ffreestanding", "-fno-stack-protector", *includes]
        subprocess.run(["gcc", *flags, "-c", source, "-o", objects[-1]], check=True)
    joined = tmp_path / "joined.o"
    subprocess.run(["ld", "-r", *objects, "-o", joined], check=True)
    listed = subprocess.run(["nm", "-u", joined], check=True, capture_output=True, text=True)
    needed = {line.split()[-1] for line in listed.stdout.splitlines()}
    own = {name for name in needed if name.startswith(("plat_", "duck_"))}
    assert needed - own <= {"memcpy", "memmove", "memset", "memcmp", "strlen"}
