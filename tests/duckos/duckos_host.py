"""Compiles parts of duckos for this machine, so that tests call them as they are."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DUCKOS = ROOT / "images" / "duckos"
HERE = Path(__file__).parent

WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wconversion", "-Wvla"]
FLAGS = [*WARNINGS, "-g", "-O1", f"-I{DUCKOS}", f"-I{ROOT / 'kernels/include'}", f"-I{HERE}"]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def build_library(folder: Path, *sources: Path) -> ctypes.CDLL:
    """A library of ``sources`` that traps on undefined behaviour."""
    target = folder / "libduckos_parts.so"
    trap = ["-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"]
    command: list[str | Path] = ["gcc", *FLAGS, *trap, "-fPIC", "-shared", *sources, "-o", target]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(target))


def build_program(folder: Path, name: str, *sources: Path, flags: list[str] = SANITIZE) -> Path:
    target = folder / name
    command: list[str | Path] = ["gcc", *FLAGS, *flags, *sources, HERE / f"{name}.c", "-o", target]
    subprocess.run(command, check=True)
    return target


def run_program(program: Path, *arguments: str) -> str:
    """Its output; a failed check or a sanitizer's finding fails the test with its text."""
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
