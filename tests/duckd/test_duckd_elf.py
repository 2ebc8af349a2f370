"""Proves that the loader refuses each kind of malformed kernel by name, and loads what is in
order."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from duckd_client import BAD_ELF, KERNEL_REGION, OK, WEIGHTS_REGION, Client
from duckd_process import KERNELS, ROOT, DuckProcess

Kernel = Callable[..., bytes]
PHDR = struct.Struct("<IIQQQQQQ")
LOAD, DYNAMIC, NOTE, GNU_STACK = 1, 2, 4, 0x6474E551


@dataclass
class Elf:
    """A file to take apart: program header `index` of a type, and its fields by name."""

    data: bytearray

    FIELDS = (
        "type",
        "flags",
        "offset",
        "address",
        "physical",
        "file_bytes",
        "memory_bytes",
        "align",
    )

    def headers(self) -> list[dict[str, int]]:
        offset, count = struct.unpack_from("<Q", self.data, 32)[0], self.data[56]
        return [
            dict(zip(self.FIELDS, PHDR.unpack_from(self.data, offset + 56 * i), strict=True))
            for i in range(count)
        ]

    def find(self, type_: int, nth: int = 0) -> int:
        return [i for i, header in enumerate(self.headers()) if header["type"] == type_][nth]

    def set(self, index: int, **fields: int) -> None:
        header = self.headers()[index] | fields
        offset = struct.unpack_from("<Q", self.data, 32)[0] + 56 * index
        PHDR.pack_into(self.data, offset, *(header[name] for name in self.FIELDS))

    def code(self) -> int:
        return next(i for i, h in enumerate(self.headers()) if h["type"] == LOAD and h["flags"] & 1)

    def dynamic(self, tag: int, value: int) -> None:
        """Put an entry in the place of the first one."""
        at = self.headers()[self.find(DYNAMIC)]["offset"]
        struct.pack_into("<qQ", self.data, at, tag, value)

    def relocation(self) -> int:
        """File offset of the first relocation."""
        header = self.headers()[self.find(DYNAMIC)]
        for at in range(header["offset"], header["offset"] + header["file_bytes"], 16):
            tag, value = struct.unpack_from("<qQ", self.data, at)
            if tag == 7:
                for load in self.headers():
                    if load["type"] == LOAD and load["address"] <= value < (
                        load["address"] + load["file_bytes"]
                    ):
                        return int(value - load["address"] + load["offset"])
        raise AssertionError("no relocations")


def put(elf: Elf, at: int, layout: str, value: int) -> None:
    struct.pack_into(layout, elf.data, at, value)


def cut(elf: Elf, size: int) -> None:
    del elf.data[size:]


def huge(elf: Elf) -> None:
    load = elf.find(LOAD, -1)
    elf.set(load, memory_bytes=1 << 40)


def overlap(elf: Elf) -> None:
    elf.set(elf.find(LOAD, 1), address=elf.headers()[elf.find(LOAD)]["address"])


def second_note(elf: Elf) -> None:
    elf.set(elf.find(GNU_STACK), **elf.headers()[elf.find(NOTE)])


def no_segments(elf: Elf) -> None:
    for index, header in enumerate(elf.headers()):
        if header["type"] == LOAD:
            elf.set(index, type=0)


def turn(type_: int) -> Callable[[Elf], None]:
    return lambda elf: elf.set(elf.find(GNU_STACK), type=type_)


MALFORMED: dict[str, tuple[Callable[[Elf], None], str]] = {
    "empty but for one byte": (lambda e: cut(e, 1), "shorter than an ELF header"),
    "cut in the header": (lambda e: cut(e, 63), "shorter than an ELF header"),
    "cut in the program headers": (lambda e: cut(e, 100), "program headers"),
    "cut in the segments": (lambda e: cut(e, 4200), "leave the file"),
    "no ELF": (lambda e: put(e, 0, "<I", 0x12345678), "no ELF"),
    "32-bit": (lambda e: put(e, 4, "<B", 1), "64-bit"),
    "big-endian": (lambda e: put(e, 5, "<B", 2), "little-endian"),
    "ident version": (lambda e: put(e, 6, "<B", 2), "version"),
    "file version": (lambda e: put(e, 20, "<I", 2), "version"),
    "ARM": (lambda e: put(e, 18, "<H", 183), "x86-64"),
    "fixed position": (lambda e: put(e, 16, "<H", 2), "ET_DYN"),
    "core file": (lambda e: put(e, 16, "<H", 4), "ET_DYN"),
    "header size": (lambda e: put(e, 52, "<H", 63), "header size"),
    "program header size": (lambda e: put(e, 54, "<H", 55), "header size"),
    "no program headers": (lambda e: put(e, 56, "<H", 0), "program headers"),
    "65535 program headers": (lambda e: put(e, 56, "<H", 65535), "program headers"),
    "program headers beyond the end": (lambda e: put(e, 32, "<Q", 1 << 40), "program headers"),
    "program headers wrap": (lambda e: put(e, 32, "<Q", (1 << 64) - 8), "program headers"),
    "interpreter": (turn(3), "interpreter"),
    "thread-local storage": (turn(7), "thread-local"),
    "executable stack": (lambda e: e.set(e.find(GNU_STACK), flags=7), "executable stack"),
    "write and execute": (lambda e: e.set(e.code(), flags=7), "writable and executable"),
    "segment beyond the end": (lambda e: e.set(e.code(), offset=1 << 40), "leave the file"),
    "segment offset wraps": (lambda e: e.set(e.code(), offset=(1 << 64) - 16), "leave the file"),
    "more in the file than in memory": (lambda e: e.set(e.code(), memory_bytes=1), "larger in"),
    "empty segment": (lambda e: e.set(e.code(), memory_bytes=0, file_bytes=0), "empty"),
    "huge segment": (huge, "64 MiB"),
    "segment far away": (lambda e: e.set(e.find(LOAD, -1), address=1 << 62), "64 MiB"),
    "overlapping segments": (overlap, "share a page"),
    "no segments": (no_segments, "no PT_LOAD"),
    "entry in data": (lambda e: put(e, 24, "<Q", 0), "entry point"),
    "entry outside": (lambda e: put(e, 24, "<Q", 1 << 50), "entry point"),
    "dynamic section beyond the end": (
        lambda e: e.set(e.find(DYNAMIC), offset=1 << 40),
        "dynamic section",
    ),
    "dynamic section without end": (
        lambda e: e.set(e.find(DYNAMIC), file_bytes=16),
        "dynamic section",
    ),
    "needs a library": (lambda e: e.dynamic(1, 0), "DT_NEEDED"),
    "constructors": (lambda e: e.dynamic(25, 0x1000), "constructors"),
    "init function": (lambda e: e.dynamic(12, 0x1000), "constructors"),
    "PLT relocations": (lambda e: e.dynamic(23, 0x1000), "PLT"),
    "REL relocations": (lambda e: e.dynamic(17, 0x1000), "REL"),
    "RELR relocations": (lambda e: e.dynamic(36, 0x1000), "RELR"),
    "symbol relocation": (lambda e: put(e, e.relocation() + 8, "<Q", 1), "R_X86_64_RELATIVE"),
    "relocated code": (lambda e: put(e, e.relocation(), "<Q", 0x1000), "relocation's place"),
    "relocation beyond the end": (
        lambda e: put(e, e.relocation(), "<Q", (1 << 64) - 4),
        "relocation's place",
    ),
    "relocation to elsewhere": (
        lambda e: put(e, e.relocation() + 16, "<q", -8),
        "relocation's place or target",
    ),
    "no note": (lambda e: e.set(e.find(NOTE), type=0), 'no "duck" note'),
    "two notes": (second_note, "more than one"),
    "note beyond the end": (lambda e: e.set(e.find(NOTE), offset=1 << 40), "note is malformed"),
    "note name too long": (
        lambda e: put(e, e.headers()[e.find(NOTE)]["offset"], "<I", 0xFFFFFFFF),
        "note is malformed",
    ),
    "note too short": (
        lambda e: put(e, e.headers()[e.find(NOTE)]["offset"] + 4, "<I", 28),
        "note is malformed",
    ),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with DuckProcess(tmp_path_factory.mktemp("duck")) as duck, duck.client() as client:
        yield client


@pytest.fixture(scope="module")
def good(kernel: Kernel) -> bytes:
    return kernel("relocated")


@pytest.mark.parametrize("name", list(MALFORMED))
def test_malformed_file_is_refused_by_name(client: Client, good: bytes, name: str) -> None:
    spoil, words = MALFORMED[name]
    elf = Elf(bytearray(good))
    spoil(elf)
    client.load(KERNEL_REGION, bytes(elf.data))
    reply = client.open()
    assert reply.status == BAD_ELF, reply
    assert words in reply.text


def test_good_file_is_relocated_and_runs(client: Client, good: bytes) -> None:
    client.load(KERNEL_REGION, good)
    assert client.open().status == OK
    assert client.call(b"") == b"two" + bytes(4093)  # from a table of pointers, then zeroed memory
    assert client.close_session().status == OK


def test_every_truncation_is_refused(client: Client, good: bytes) -> None:
    """Whatever is cut off the part that is loaded, no session comes of it."""
    loaded = max(h["offset"] + h["file_bytes"] for h in Elf(bytearray(good)).headers())
    for size in range(1, loaded, 997):
        client.load(KERNEL_REGION, good[:size])
        assert client.open().status == BAD_ELF


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["-no-pie", "-static"], "ET_DYN"),
        (["-pie", "-Wl,--dynamic-linker=/lib/ld.so"], "interpreter"),
        (["-static-pie", "-Wl,-z,execstack"], "executable stack"),
    ],
)
def test_real_linker_mistakes(client: Client, tmp_path: Path, flags: list[str], words: str) -> None:
    target = tmp_path / "kernel.elf"
    command = ["gcc", "-O1", "-ffreestanding", "-fPIE", "-nostdlib", "-fno-stack-protector"]
    command += [f"-I{ROOT}/kernels/include", "-Wl,-e,entry", *flags]
    subprocess.run([*command, KERNELS / "relocated.c", "-o", target], check=True)
    client.reserve(WEIGHTS_REGION, 0)
    client.load(KERNEL_REGION, target.read_bytes())
    reply = client.open()
    assert reply.status == BAD_ELF
    assert words in reply.text
