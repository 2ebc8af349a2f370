"""The note of a kernel ELF is found, and files that are no kernels are refused by name."""

from __future__ import annotations

import hashlib
import random
import struct
from pathlib import Path

import pytest

from duckctl.native import native_path
from host_runtime import wire
from host_runtime.errors import FileFormatError
from host_runtime.fleet.kernel_file import find_note, load_kernel_file


def make_elf(notes: bytes, *, kind: int = 3, machine: int = 62) -> bytes:
    """An ELF with one PT_LOAD and one PT_NOTE; enough for a reader of notes."""
    header = struct.pack(
        "<4sBBBB8xHHIQQQIHHHHHH",
        *(b"\x7fELF", 2, 1, 1, 0, kind, machine, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0),
    )
    at = 64 + 2 * 56
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 4096, 4096, 4096)
    note = struct.pack("<IIQQQQQQ", 4, 4, at, at, at, len(notes), len(notes), 4)
    return header + load + note + notes


def make_note(name: bytes, kind: int, data: bytes) -> bytes:
    padded = name + bytes(-len(name) % 4)
    return struct.pack("<III", len(name), len(data), kind) + padded + data + bytes(-len(data) % 4)


KERNEL_NOTE = bytes(wire.KernelNote(abi_version=1, cpu_features=5, name=b"experts-avx2"))
BUILD_ID = make_note(b"GNU\0", 3, b"12345")
GOOD = make_elf(BUILD_ID + make_note(b"duck\0", wire.KERNEL_NOTE_TYPE, KERNEL_NOTE))


def test_note_is_found_among_others(tmp_path: Path) -> None:
    path = tmp_path / "kernel.elf"
    path.write_bytes(GOOD)
    kernel = load_kernel_file(path)
    assert (kernel.name, kernel.abi_version, kernel.cpu_features) == ("experts-avx2", 1, 5)
    assert (kernel.data, kernel.sha256) == (GOOD, hashlib.sha256(GOOD).digest())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"#!/bin/sh\n" * 20,
        GOOD[:100],
        GOOD[:-40],
        make_elf(BUILD_ID),
        make_elf(make_note(b"duck\0", 7, KERNEL_NOTE)),
        make_elf(make_note(b"duck\0", wire.KERNEL_NOTE_TYPE, KERNEL_NOTE[:16])),
        make_elf(make_note(b"duck\0", wire.KERNEL_NOTE_TYPE, KERNEL_NOTE), kind=2),
        make_elf(make_note(b"duck\0", wire.KERNEL_NOTE_TYPE, KERNEL_NOTE), machine=183),
    ],
)
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "kernel.elf"
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match=r"kernel\.elf: is not a kernel"):
        load_kernel_file(path)


def test_missing_and_oversized_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="cannot be read"):
        load_kernel_file(tmp_path / "nothing.elf")
    (tmp_path / "big.elf").write_bytes(bytes(wire.KERNEL_ELF_BYTES_MAX + 1))
    with pytest.raises(FileFormatError, match="at most"):
        load_kernel_file(tmp_path / "big.elf")


def test_damaged_files_never_crash_the_reader() -> None:
    seed = 7
    generator = random.Random(seed)
    for _ in range(3000):
        data = bytearray(GOOD)
        for _ in range(generator.randint(1, 4)):
            data[generator.randrange(len(data))] = generator.randrange(256)
        find_note(bytes(data[: generator.randint(0, len(data))]))


@pytest.mark.parametrize("name", ["experts-avx2.elf", "experts-scalar.elf"])
def test_installed_kernels_say_what_they_need(name: str) -> None:
    kernel = load_kernel_file(native_path(name))
    assert kernel.abi_version == wire.KERNEL_ABI_VERSION
    assert bool(kernel.cpu_features & wire.CPU_AVX2) is ("avx2" in name)
