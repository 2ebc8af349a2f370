"""C++ test programs, linked with the installed library or with the transport's sources."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from transport_kit import ROOT, library

FOLDER = ROOT / "host_runtime/transport"
SEAL = [ROOT / "kernels/wire/seal.c", ROOT / "kernels/wire/trust.c"]
INCLUDES = [f"-I{part}" for part in (ROOT / "kernels/include", ROOT / "kernels/wire", FOLDER)]
VERSION = '-DDUCK_BUILD_HASH="0123456789012345678901234567890123456789"'
WARNINGS = ["-Wall", "-Wextra", "-Werror"]
COMPILERS = 2  # at a time

# Objects of the whole transport, built with a sanitizer's name (e.g. "thread") once.
SanitizedObjects = Callable[[str], list[str]]


def sanitizer_flags(sanitizer: str) -> list[str]:
    flags = ["-O1", "-g1", f"-fsanitize={sanitizer}", "-fno-omit-frame-pointer"]
    return [*flags, "-fno-sanitize-recover=all"]


def compile_one(source: Path, folder: Path, flags: Sequence[str]) -> str:
    compiler = ["cc", "-std=c11"] if source.suffix == ".c" else ["c++", "-std=c++17", VERSION]
    out = folder / f"{source.name}.o"
    command = [*compiler, *WARNINGS, *flags, *INCLUDES, "-c", str(source), "-o", str(out)]
    subprocess.run(command, check=True)
    return str(out)


def compile_all(sources: Sequence[Path], folder: Path, flags: Sequence[str]) -> list[str]:
    with ThreadPoolExecutor(COMPILERS) as pool:
        return list(pool.map(lambda source: compile_one(source, folder, flags), sources))


def transport_sources() -> list[Path]:
    return [*sorted(FOLDER.glob("*.cc")), *SEAL]


def link(folder: Path, name: str, flags: Sequence[str], objects: Sequence[str]) -> Path:
    program = folder / name
    command = ["c++", *flags, *objects, "-lbearssl", "-lpthread", "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def build_with_library(name: str, folder: Path) -> Path:
    """tests/transport/NAME.cc with libduckhost.so; -rdynamic: its operator new serves both."""
    flags = ["-O0", "-rdynamic"]
    sources = [Path(__file__).with_name(f"{name}.cc"), *SEAL]
    objects = compile_all(sources, folder, flags)
    return link(folder, name, flags, [*objects, str(library()), f"-Wl,-rpath,{library().parent}"])


def build_sanitized(name: str, folder: Path, sanitizer: str, objects: SanitizedObjects) -> Path:
    """tests/transport/NAME.cc with the transport's sources, all under the sanitizer."""
    flags = sanitizer_flags(sanitizer)
    program = compile_one(Path(__file__).with_name(f"{name}.cc"), folder, flags)
    return link(folder, name, flags, [program, *objects(sanitizer)])
