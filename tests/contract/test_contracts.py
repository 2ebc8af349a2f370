"""C11, C++17 and Python agree on every size, offset, constant and formula of the contracts."""

from __future__ import annotations

import ctypes
import json
import random
import re
import subprocess
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from host_runtime import wire

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "kernels" / "include"
HEADERS = sorted((INCLUDE / "duck").glob("*.h"))
COMPILERS = {"c11": ["gcc", "-std=c11", "-x", "c"], "c++17": ["g++", "-std=c++17", "-x", "c++"]}
FLAGS = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-Wpadded", "-I", str(INCLUDE)]
# Defines that are no numbers: include guards.
GUARD = re.compile(r"^DUCK_\w+_H$")


def text_without_comments() -> str:
    texts = (path.read_text() for path in HEADERS)
    return "\n".join(re.sub(r"/\*.*?\*/", " ", text, flags=re.S) for text in texts)


def camel(c_name: str) -> str:
    """``duck_packet_header`` -> ``PacketHeader``."""
    return "".join(part.capitalize() for part in c_name.removeprefix("duck_").split("_"))


@cache
def header_structs() -> list[str]:
    return re.findall(r"^struct (duck_\w+) \{", text_without_comments(), flags=re.M)


@cache
def header_enums() -> dict[str, list[str]]:
    found = re.findall(r"^enum (duck_\w+) \{(.*?)\}", text_without_comments(), flags=re.M | re.S)
    return {name: re.findall(r"DUCK_\w+", body) for name, body in found}


@cache
def header_defines() -> list[str]:
    names = re.findall(r"^#define (DUCK_\w+)", text_without_comments(), flags=re.M)
    return [name for name in names if not GUARD.match(name)]


def mirror_of_struct(c_name: str) -> type[ctypes.LittleEndianStructure]:
    mirror = getattr(wire, camel(c_name), None)
    assert isinstance(mirror, type), f"host_runtime/wire.py has no class {camel(c_name)}"
    assert issubclass(mirror, ctypes.LittleEndianStructure)
    return mirror


def field_names(mirror: type[ctypes.LittleEndianStructure]) -> list[str]:
    return [field[0] for field in mirror._fields_]


def is_signed_scalar(field_type: Any) -> bool:
    return field_type in (ctypes.c_int8, ctypes.c_int16, ctypes.c_int32, ctypes.c_int64)


RECORD_CASES = [
    (weight_format, hidden, first_row, rows)
    for weight_format in (4, 6, 7, 8, 9)
    for hidden in (128, 256, 7168)
    for first_row, rows in ((0, 32), (32, 64), (96, 160), (64, 2048))
]
# hidden, rows, tokens_max, top_k_max, core_count
SCRATCH_CASES = [
    (hidden, rows, tokens, top_k, cores)
    for hidden in (128, 7168)
    for rows in (32, 160, 2048)
    for tokens, top_k in ((1, 1), (7, 3), (512, 16))
    for cores in (1, 64)
]
OFFSET_CASES = [(tokens, top_k) for tokens in (0, 1, 2, 3, 511, 512) for top_k in (1, 3, 8, 16)]


def formula_rows() -> list[tuple[str, str, int]]:
    """Every inline formula of the headers: name, C expression, what Python computes."""
    rows: list[tuple[str, str, int]] = []

    def add(c_name: str, mirror: Callable[..., int], case: tuple[int, ...]) -> None:
        arguments = ", ".join(f"{value}u" for value in case)
        rows.append((f"{c_name} {case}", f"{c_name}({arguments})", mirror(*case)))

    for record in RECORD_CASES:
        add("duck_record_bytes", wire.record_bytes, record)
    for scratch in SCRATCH_CASES:
        add("duck_experts_scratch_bytes", wire.experts_scratch_bytes, scratch)
    for offset in OFFSET_CASES:
        add("duck_experts_weight_offset", wire.experts_weight_offset, offset)
        add("duck_experts_activation_offset", wire.experts_activation_offset, offset)
    return rows


def probe_source() -> str:
    """A program that prints {"name": number} for everything that the headers define."""
    rows: list[tuple[str, str]] = []
    for c_name in header_structs():
        struct = f"struct {c_name}"
        rows.append((f"sizeof {c_name}", f"sizeof({struct})"))
        for field in field_names(mirror_of_struct(c_name)):
            rows.append((f"offset {c_name}.{field}", f"offsetof({struct}, {field})"))
            rows.append((f"bytes {c_name}.{field}", f"sizeof((({struct} *)0)->{field})"))
    for names in header_enums().values():
        rows.extend((name, name) for name in names)
    rows.extend((name, name) for name in header_defines())
    rows.extend((name, expression) for name, expression, _ in formula_rows())
    includes = "\n".join(f"#include <duck/{path.name}>" for path in HEADERS)
    prints = "\n".join(
        f'    printf("%s\\n \\"{name}\\": %lld", {int(i > 0)} ? "," : "", (long long)({value}));'
        for i, (name, value) in enumerate(rows)
    )
    end = '    printf("\\n}\\n");\n    return 0;\n}\n'
    return f'{includes}\n#include <stdio.h>\nint main(void) {{\n    printf("{{");\n{prints}\n{end}'


@pytest.fixture(scope="module", params=sorted(COMPILERS))
def native(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("contract")
    source, program = folder / "probe.txt", folder / "probe"
    source.write_text(probe_source())
    command = [*COMPILERS[request.param], *FLAGS, str(source), "-o", str(program)]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
    return json.loads(subprocess.run([program], capture_output=True, check=True).stdout)


def test_headers_are_found() -> None:
    assert [path.name for path in HEADERS] == ["experts.h", "fp9.h", "kernel_abi.h", "wire.h"]
    assert len(header_structs()) >= 20
    assert len(header_enums()) >= 10
    assert len(header_defines()) >= 50


def test_structs(native: dict[str, int]) -> None:
    for c_name in header_structs():
        mirror = mirror_of_struct(c_name)
        assert native[f"sizeof {c_name}"] == ctypes.sizeof(mirror), c_name
        for field in field_names(mirror):
            descriptor = getattr(mirror, field)
            assert native[f"offset {c_name}.{field}"] == descriptor.offset, f"{c_name}.{field}"
            assert native[f"bytes {c_name}.{field}"] == descriptor.size, f"{c_name}.{field}"


def test_no_struct_has_a_gap() -> None:
    """With -Wpadded on the C side this proves that no field of a header is missing in Python."""
    for c_name in header_structs():
        mirror, end = mirror_of_struct(c_name), 0
        for field in field_names(mirror):
            assert getattr(mirror, field).offset == end, f"{c_name}.{field}"
            end += getattr(mirror, field).size
        assert end == ctypes.sizeof(mirror), c_name


def test_signedness() -> None:
    """Fields that the headers declare int32_t are signed in Python, and no others."""
    text = text_without_comments()
    for c_name in header_structs():
        body = re.search(rf"^struct {c_name} \{{(.*?)^\}}", text, flags=re.M | re.S)
        assert body is not None
        signed = set(re.findall(r"\bint(?:8|16|32|64)_t (\w+)", body.group(1)))
        mirror = mirror_of_struct(c_name)
        found = {field[0] for field in mirror._fields_ if is_signed_scalar(field[1])}
        assert found == signed, c_name


def test_enums(native: dict[str, int]) -> None:
    for c_name, members in header_enums().items():
        mirror = getattr(wire, camel(c_name), None)
        assert isinstance(mirror, type) and issubclass(mirror, IntEnum), c_name
        by_value = {member.value: member.name for member in mirror}
        assert len(by_value) == len(members), c_name
        for member in members:
            name = by_value[native[member]]
            assert member == name or member.endswith("_" + name), f"{member} is {name} in Python"


def test_constants(native: dict[str, int]) -> None:
    for name in header_defines():
        assert getattr(wire, name.removeprefix("DUCK_"), None) == native[name], name


def test_formulas(native: dict[str, int]) -> None:
    for name, _, computed in formula_rows():
        assert computed == native[name], name


def test_headers_include_only_what_freestanding_has() -> None:
    allowed = {"<stdint.h>", "<stddef.h>", "<assert.h>"}
    for path in HEADERS:
        found = set(re.findall(r'^\s*#\s*include\s+([<"][^>"]+[>"])', path.read_text(), flags=re.M))
        assert found == allowed & found, f"{path.name} includes {sorted(found - allowed)}"


def test_bytes_survive_the_mirror() -> None:
    """Random bytes read through a mirror and written back are the same bytes."""
    seed = 20261130
    generator = random.Random(seed)
    for c_name in header_structs():
        mirror = mirror_of_struct(c_name)
        raw = generator.randbytes(ctypes.sizeof(mirror))
        assert bytes(mirror.from_buffer_copy(raw)) == raw, f"{c_name}, seed {seed}"
