"""The kernel ELFs keep what the ABI promises: freestanding, W^X, only AVX2, FMA and F16C."""

from __future__ import annotations

import re
import struct
import subprocess

import pytest

from duckctl.native import native_path

ELFS = ["experts-scalar.elf", "experts-avx2.elf"]
PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_NOTE, PT_TLS = 1, 2, 3, 4, 7
R_X86_64_RELATIVE = 8


def segments(data: bytes) -> list[tuple[int, int, int, int, int, int, int, int]]:
    offset, count = struct.unpack_from("<Q", data, 32)[0], struct.unpack_from("<H", data, 56)[0]
    return [struct.unpack_from("<IIQQQQQQ", data, offset + 56 * i) for i in range(count)]


@pytest.mark.parametrize("name", ELFS)
def test_structure(name: str) -> None:
    data = native_path(name).read_bytes()
    assert data[:7] == b"\x7fELF\x02\x01\x01"
    kind, machine = struct.unpack_from("<HH", data, 16)
    assert (kind, machine) == (3, 62)  # ET_DYN, x86-64
    assert len(data) < 4 << 20
    headers = segments(data)
    kinds = {h[0] for h in headers}
    assert PT_INTERP not in kinds and PT_TLS not in kinds
    for header in headers:
        if header[0] == PT_LOAD:
            assert header[1] & 3 != 3, "a segment is writable and executable"
    entry = struct.unpack_from("<Q", data, 24)[0]
    assert any(h[0] == PT_LOAD and h[1] & 1 and h[3] <= entry < h[3] + h[5] for h in headers), (
        "entry lies in code"
    )


@pytest.mark.parametrize("name", ELFS)
def test_only_relative_relocations_and_nothing_undefined(name: str) -> None:
    path = str(native_path(name))
    relocations = subprocess.run(
        ["readelf", "-rW", path], capture_output=True, text=True, check=True
    ).stdout
    kinds = set(re.findall(r"R_X86_64_\w+", relocations))
    assert kinds <= {"R_X86_64_RELATIVE"}
    symbols = subprocess.run(["nm", "-u", path], capture_output=True, text=True, check=True).stdout
    assert symbols.strip() == ""


@pytest.mark.parametrize(("name", "features"), [(ELFS[0], 2), (ELFS[1], 1 | 2 | 4)])
def test_note_names_abi_features_and_kernel(name: str, features: int) -> None:
    data = native_path(name).read_bytes()
    notes = [h for h in segments(data) if h[0] == PT_NOTE]
    assert len(notes) == 1
    offset, size = notes[0][2], notes[0][5]
    name_bytes, content_bytes, kind = struct.unpack_from("<III", data, offset)
    assert (name_bytes, content_bytes, kind) == (5, 32, 0x4455434B)
    assert size == 12 + 8 + 32
    assert data[offset + 12 : offset + 20] == b"duck\0\0\0\0"
    abi, bits, text = struct.unpack_from("<II24s", data, offset + 20)
    assert (abi, bits) == (1, features)
    assert text.rstrip(b"\0").decode() == name.removesuffix(".elf")


@pytest.mark.parametrize("name", ELFS)
def test_instructions_stay_within_avx2_fma_f16c(name: str) -> None:
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", str(native_path(name))],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert listing.count("vfmadd") > 0
    assert not re.search(
        r"%zmm|%k[0-7]\b|\{vex\}|vpdp|vp2intersect|%[xy]mm(1[6-9]|2\d|3[01])", listing
    )
    assert not re.search(r"\bsyscall\b|\bint\s+\$0x80", listing)
    if name == ELFS[0]:
        assert "%ymm" not in listing, "the reference is scalar"
