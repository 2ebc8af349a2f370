"""duckhost.h is plain C, the Python side has the same layout, and wrong settings are named."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from real_duckd import new_key
from transport_kit import ROOT, library

from host_runtime.errors import HostError
from host_runtime.transport import (
    DomainEndpoint,
    DuckEndpoint,
    Faults,
    Transport,
    TransportCode,
    TransportError,
    TransportOptions,
    native,
)
from host_runtime.transport.api import _address_of

STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "duckhost_error": native.Error,
    "duckhost_domain": native.Domain,
    "duckhost_duck": native.Duck,
    "duckhost_options": native.Options,
    "duckhost_faults": native.FaultSettings,
    "duckhost_fault_counters": native.FaultCounters,
    "duckhost_progress": native.Progress,
    "duckhost_timing": native.Timing,
    "duckhost_duck_status": native.DuckLinkStatus,
    "duckhost_trace_entry": native.TraceEntry,
    "duckhost_domain_stats": native.DomainStats,
}
INCLUDES = [f"-I{ROOT / 'kernels/include'}", f"-I{ROOT / 'host_runtime/transport'}"]
STRICT = ["-Wall", "-Wextra", "-Werror", "-pedantic"]


def layout_program(header: str, structures: dict[str, type[ctypes.Structure]]) -> str:
    lines = [f"#include <{header}>", "#include <stdio.h>", "int main(void) {"]
    for name, structure in structures.items():
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        for field in structure._fields_:
            item = f"{name}.{field[0]}"
            lines.append(
                f'printf("{item} %zu %zu\\n", offsetof(struct {name}, {field[0]}), '
                f"sizeof(((struct {name} *)0)->{field[0]}));"
            )
    lines += ["return 0;", "}"]
    return "\n".join(lines) + "\n"


def header_layout(
    folder: Path,
    header: str,
    structures: dict[str, type[ctypes.Structure]],
    compiler: str,
    standard: str,
) -> list[str]:
    """Sizes and offsets as a compiler sees them."""
    source = folder / ("layout.c" if compiler == "cc" else "layout.cc")
    source.write_text(layout_program(header, structures))
    program = folder / "layout"
    command = [compiler, f"-std={standard}", *STRICT, *INCLUDES, str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    told = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return told.splitlines()


def python_layout(structures: dict[str, type[ctypes.Structure]]) -> list[str]:
    """The same as ctypes see them."""
    lines = []
    for name, structure in structures.items():
        lines.append(f"{name} {ctypes.sizeof(structure)}")
        for field in structure._fields_:
            place = getattr(structure, field[0])
            lines.append(f"{name}.{field[0]} {place.offset} {place.size}")
    return lines


@pytest.mark.parametrize(("compiler", "standard"), [("cc", "c11"), ("c++", "c++17")])
def test_header_and_ctypes_agree(tmp_path: Path, compiler: str, standard: str) -> None:
    told = header_layout(tmp_path, "duckhost.h", STRUCTURES, compiler, standard)
    assert told == python_layout(STRUCTURES)


def test_codes_are_those_of_the_header(tmp_path: Path) -> None:
    names = {
        code: "DUCKHOST_OK" if code is TransportCode.OK else f"DUCKHOST_ERR_{code.name}"
        for code in TransportCode
    }
    checks = [f"_Static_assert({name} == {code.value}, {name!r});" for code, name in names.items()]
    checks += [
        f"_Static_assert(DUCKHOST_API_VERSION == {native.API_VERSION}u, 'version');",
        f"_Static_assert(DUCKHOST_DUCKS_MAX == {native.DUCKS_MAX}u, 'ducks');",
        f"_Static_assert(DUCKHOST_TICKETS_MAX == {native.TICKETS_MAX}u, 'tickets');",
        f"_Static_assert(DUCKHOST_DOMAINS_MAX == {native.DOMAINS_MAX}u, 'domains');",
    ]
    source = tmp_path / "codes.c"
    source.write_text("#include <duckhost.h>\n" + "\n".join(checks).replace("'", '"') + "\n")
    command = ["cc", "-std=c11", *STRICT, *INCLUDES, "-c", str(source), "-o", str(tmp_path / "o")]
    subprocess.run(command, check=True)


def test_only_the_c_interface_is_exported() -> None:
    told = subprocess.run(
        ["nm", "-D", "--defined-only", library()], check=True, capture_output=True, text=True
    ).stdout
    names = {line.split()[-1] for line in told.splitlines()}
    assert all(name.startswith("duckhost_") for name in names), names


USUAL = TransportOptions()
DOMAIN = DomainEndpoint("domain1", "127.0.0.1", None, 1500)
DUCK = DuckEndpoint("d01", "127.0.0.1", 7211, 0)
OTHER = DuckEndpoint("d02", "127.0.0.1", 7212, 0)


@pytest.mark.parametrize(
    ("domains", "ducks", "options", "words"),
    [
        ([], [DUCK], USUAL, "0 domains: expected 1 to 8"),
        ([DOMAIN], [], USUAL, "0 ducks: expected 1 to 64"),
        ([DOMAIN] * 9, [DUCK], USUAL, "9 domains"),
        ([replace(DOMAIN, mtu=1000)], [DUCK], USUAL, "domain domain1: MTU 1000, expected 1280 to"),
        ([replace(DOMAIN, bind_address="x")], [DUCK], USUAL, "bind_address is not an IPv4 address"),
        ([replace(DOMAIN, bind_address="192.0.2.1")], [DUCK], USUAL, "cannot bind .* to 192.0.2.1"),
        (
            [replace(DOMAIN, call_address="no")],
            [DUCK],
            USUAL,
            "call_address is not an IPv4 address",
        ),
        (
            [replace(DOMAIN, call_address="127.255.255.255")],
            [DUCK, OTHER],
            USUAL,
            r"need the same port; d02 is 127.0.0.1:7212",
        ),
        ([DOMAIN], [replace(DUCK, name="")], USUAL, "duck 0 has no name"),
        ([DOMAIN], [replace(DUCK, address="1.2.3")], USUAL, "d01: its address is not an IPv4"),
        ([DOMAIN], [replace(DUCK, port=0)], USUAL, "d01: port 0, expected 1 to 65535"),
        ([DOMAIN], [replace(DUCK, domain=1)], USUAL, "d01: domain 1, there are 1"),
        ([DOMAIN], [DUCK, replace(OTHER, name="d01")], USUAL, "two ducks are named d01"),
        ([DOMAIN], [DUCK, replace(OTHER, port=7211)], USUAL, "d01 and d02 have the same address"),
        (
            [DOMAIN],
            [DUCK],
            TransportOptions(bulk_chunk_bytes=100),
            "bulk_chunk_bytes is 100: expected a mult",
        ),
        (
            [DOMAIN],
            [DUCK],
            TransportOptions(bulk_chunk_bytes=2 << 20),
            "bulk_chunk_bytes is 2097152",
        ),
        (
            [DOMAIN],
            [DUCK],
            TransportOptions(bulk_chunks_max=9),
            "bulk_chunks_max is 9: expected at most 8",
        ),
        (
            [DOMAIN],
            [DUCK],
            TransportOptions(session_calls_max=0xFFFFFFFF),
            "session_calls_max is 4294967295: expected at most 4294967294",
        ),
        (
            [DOMAIN],
            [DUCK],
            TransportOptions(ping_ms=5000),
            r"ping_ms \(5000\) must be shorter than silence_ms",
        ),
    ],
)
def test_wrong_settings_are_named(
    domains: list[DomainEndpoint],
    ducks: list[DuckEndpoint],
    options: TransportOptions,
    words: str,
) -> None:
    with pytest.raises(TransportError, match=words):
        Transport(library(), domains, ducks, new_key(), options)


@pytest.mark.parametrize("key", [bytes(32), b"\xff" * 32])
def test_keys_that_are_none(key: bytes) -> None:
    """Zero, and a number beyond the order of the curve."""
    with pytest.raises(TransportError, match="not a P-256 private key"):
        Transport(library(), [DOMAIN], [DUCK], key)


def test_wrong_arguments_are_named() -> None:
    with Transport(library(), [DOMAIN], [DUCK], new_key()) as transport:
        with pytest.raises(TransportError, match="duck 5, there are 1"):
            transport.hello(5, 100)
        with pytest.raises(ValueError, match="duck 5, there are 1"):
            transport.duck_status(5)
        with pytest.raises(ValueError, match="no domain 1"):
            transport.domain_stats(1)
        with pytest.raises(TransportError, match=r"fault probability 1\.5: expected 0 to 1"):
            transport.set_faults(Faults(drop=1.5))
    with pytest.raises(TransportError, match="closed") as caught:
        transport.hello(0, 100)
    assert caught.value.code is TransportCode.CLOSED
    transport.close()  # again: nothing


def test_keys_names_and_libraries_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a fleet key has 32 bytes, this one 31"):
        Transport(library(), [DOMAIN], [DUCK], bytes(31))
    with pytest.raises(ValueError, match="too long: at most 31 bytes"):
        Transport(library(), [DOMAIN], [replace(DUCK, name="d" * 32)], bytes(32))
    wrong = tmp_path / "libduckhost.so"
    wrong.write_bytes(b"not a library")
    with pytest.raises(HostError, match="is not a usable host transport library"):
        Transport(wrong, [DOMAIN], [DUCK], bytes(32))


def test_buffers_are_passed_without_a_copy() -> None:
    data = bytearray(b"0123456789")
    with _address_of(memoryview(data)[2:5]) as (address, size):
        assert (ctypes.string_at(address, size), size) == (b"234", 3)
        data[2] = ord("x")
        assert ctypes.string_at(address, size) == b"x34"
    with _address_of(b"fixed") as (address, size):
        assert ctypes.string_at(address, size) == b"fixed"
    with pytest.raises(BufferError), _address_of(memoryview(data)[::2]):
        pass
