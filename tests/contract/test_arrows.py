"""Imports and includes in the whole tree follow the arrows of the tables below."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# A module may import from areas with a smaller number, and from its own area.
HOST_RUNTIME_RANK = {
    "server": 90,
    "bench": 85,
    "engine": 80,
    "cuda": 75,
    "models": 70,
    "layers": 50,
    "experts": 40,
    "ops": 41,
    "fleet": 30,
    "transport": 20,
    "weights": 15,
    "config": 10,
    "wire": 5,
    "jsonfile": 1,
    "errors": 0,
}
# Areas that stand side by side: neither may import the other.
HOST_RUNTIME_APART = {
    ("experts", "ops"),
    ("ops", "experts"),
    ("ops", "fleet"),
    ("ops", "transport"),
}

DUCKCTL_RANK = {"__main__": 60, "cli": 50, "commands": 40, "inventory": 10, "errors": 0}
DUCKCTL_DOMAIN_RANK = 20
# Small helpers below the inventory: they know nothing of fleets.
DUCKCTL_BASE_RANK = {
    "native": 5,
    "console": 5,
    "patterns": 5,
    "yaml_source": 5,
    "inventory_fields": 7,
    "power_options": 5,
    "rights": 5,
    "process": 5,
    "keys": 5,
    "model_dir": 5,
}

FREESTANDING = r"std(int|def|bool|arg|atomic|align|noreturn)\.h|assert\.h|limits\.h|float\.h"
DUCK = r"duck/\w+\.h"
# Area -> (what <...> may name, where "..." files may lie). Longest matching area counts.
INCLUDE_ARROWS: dict[str, tuple[str, tuple[str, ...]]] = {
    "kernels/include/duck": (r"stdint\.h|stddef\.h|assert\.h", ()),
    "kernels/wire": (rf"{DUCK}|bearssl\.h|stdbool\.h|string\.h", ("kernels/wire",)),
    "kernels/src": (
        rf"{DUCK}|{FREESTANDING}|(imm|x86|xmm|smm|tmm|emm|nmm)intrin\.h",
        ("kernels/src",),
    ),
    "kernels/pack": (rf"{DUCK}|[a-z0-9_]+\.h", ("kernels/pack", "kernels/src")),
    "kernels/bench": (
        rf"{DUCK}|[a-z0-9_]+\.h|(sys|linux)/\w+\.h|c[a-z]+",
        ("kernels/bench", "kernels/pack", "kernels/src"),
    ),
    "images/core": (
        rf"{DUCK}|{FREESTANDING}|string\.h|bearssl\.h|seal\.h",
        ("images/core", "kernels/wire"),
    ),
    "images/duckd": (
        rf"{DUCK}|[a-z0-9_]+\.h|(sys|linux|netinet|arpa|asm|net)/[\w/-]+\.h",
        ("images/duckd", "images/core", "kernels/wire"),
    ),
    "images/linux": (
        r"[a-z0-9_]+\.h|(sys|linux|netinet|arpa|net)/[\w/-]+\.h",
        ("images/linux",),
    ),
    "images/duckos": (
        rf"{DUCK}|{FREESTANDING}|[a-z0-9_]+\.h",
        ("images/duckos", "images/core", "kernels/wire"),
    ),
    "host_runtime/cuda": (r"[a-z0-9_]+\.h", ("host_runtime/cuda",)),
    "host_runtime/transport": (
        rf"{DUCK}|rte_\w+\.h|[a-z0-9_]+(\.h)?|(sys|linux|netinet|arpa|net)/[\w/-]+\.h",
        ("host_runtime/transport", "kernels/wire"),
    ),
}
FORBIDDEN_IN_TRANSPORT = re.compile(r"Python\.h|torch/|ATen/|c10/|cuda")


def python_files(*areas: str) -> Iterator[Path]:
    for area in areas:
        for path in sorted((ROOT / area).rglob("*.py")):
            if "_native" not in path.parts:
                yield path


def imported_modules(path: Path) -> Iterator[str]:
    """Absolute names of everything that a file imports, anywhere in it."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def area_of(path: Path) -> str:
    """``host_runtime/fleet/config.py`` -> ``fleet``; ``duckctl/native.py`` -> ``native``."""
    parts = path.relative_to(ROOT).parts
    return parts[1].removesuffix(".py")


def duckctl_rank(area: str) -> int:
    return DUCKCTL_RANK.get(area, DUCKCTL_BASE_RANK.get(area, DUCKCTL_DOMAIN_RANK))


def test_host_runtime_imports_only_downwards() -> None:
    wrong = []
    for path in python_files("host_runtime"):
        area = area_of(path)
        if area == "__init__":
            continue
        assert area in HOST_RUNTIME_RANK, f"{path}: give the area '{area}' a place in this test"
        for module in imported_modules(path):
            parts = module.split(".")
            if parts[0] != "host_runtime" or len(parts) < 2 or parts[1] == area:
                continue
            rank = HOST_RUNTIME_RANK.get(parts[1], -1)
            apart = (area, parts[1]) in HOST_RUNTIME_APART
            if rank >= HOST_RUNTIME_RANK[area] or apart:
                wrong.append(f"{path.relative_to(ROOT)} -> {module}")
    assert wrong == []


def test_duckctl_imports_only_downwards() -> None:
    wrong = []
    for path in python_files("duckctl"):
        area = area_of(path)
        if area == "__init__":
            continue
        for module in imported_modules(path):
            parts = module.split(".")
            if parts[0] != "duckctl" or len(parts) < 2 or parts[1] == area:
                continue
            if parts[1] not in {item.stem for item in (ROOT / "duckctl").iterdir()}:
                continue  # a name of duckctl/__init__.py
            if duckctl_rank(parts[1]) > duckctl_rank(area):
                wrong.append(f"{path.relative_to(ROOT)} -> {module}")
    assert wrong == []


def test_duckctl_and_host_runtime_never_import_each_other() -> None:
    """duckctl starts host_runtime as a process and hands it files."""
    wrong = [
        f"{path.relative_to(ROOT)} -> {module}"
        for area, other in (("duckctl", "host_runtime"), ("host_runtime", "duckctl"))
        for path in python_files(area)
        for module in imported_modules(path)
        if module.split(".")[0] == other
    ]
    assert wrong == []


def test_nothing_imports_tests() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} -> {module}"
        for path in python_files("duckctl", "host_runtime")
        for module in imported_modules(path)
        if module.split(".")[0] in ("tests", "pytest", "hypothesis", "transformers", "openai")
    ]
    assert wrong == []


def c_files() -> list[Path]:
    return sorted(
        path
        for area in ("kernels", "images", "host_runtime")
        for path in (ROOT / area).rglob("*")
        if path.suffix in (".c", ".h", ".cc", ".S") and "_native" not in path.parts
    )


def include_problem(path: Path, bracket: str, name: str) -> str | None:
    relative = path.relative_to(ROOT).as_posix()
    areas = [area for area in INCLUDE_ARROWS if relative.startswith(area + "/")]
    if not areas:
        return f"{relative}: its area has no arrows in this test"
    system, local = INCLUDE_ARROWS[max(areas, key=len)]
    if bracket == "<":
        allowed = re.fullmatch(system, name) is not None
    else:
        places = [path.parent, *(ROOT / area for area in local)]
        allowed = any(
            (place / name).is_file()
            and (place / name).resolve().relative_to(ROOT).as_posix().startswith(local)
            for place in places
        )
    return None if allowed else f"{relative} -> {name}"


def test_c_and_cpp_includes() -> None:
    pattern = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', flags=re.M)
    problems = [
        include_problem(path, bracket, name)
        for path in c_files()
        for bracket, name in pattern.findall(path.read_text())
    ]
    assert [problem for problem in problems if problem] == []


def test_transport_knows_no_python_torch_or_cuda() -> None:
    files = [path for path in c_files() if "host_runtime/transport" in path.as_posix()]
    pattern = re.compile(r"^\s*#\s*include\s+(.*)$", flags=re.M)
    wrong = [
        f"{path.name} -> {line}"
        for path in files
        for line in pattern.findall(path.read_text())
        if FORBIDDEN_IN_TRANSPORT.search(line)
    ]
    assert wrong == []


HEAVY = ("torch", "numpy", "safetensors", "transformers", "fastapi", "httpx", "host_runtime")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_duckctl_starts_without_heavy_imports(arguments: list[str]) -> None:
    """Proven on the running process: what is in sys.modules after the command line ran."""
    program = (
        "import sys\n"
        "from duckctl.cli import main\n"
        f"sys.argv = ['duckctl', *{arguments!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print('heavy:', sorted(set({HEAVY!r}) & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.splitlines()[-1] == "heavy: []"


@pytest.mark.parametrize("module", ["host_runtime.wire", "host_runtime.fleet.probe"])
def test_probe_starts_without_torch(module: str) -> None:
    program = f"import sys, {module}\nprint(sorted({{'torch', 'pydantic'}} & set(sys.modules)))\n"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"
