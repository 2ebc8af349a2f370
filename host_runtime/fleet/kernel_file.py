"""The kernel ELF as the host reads it: its bytes, and the note that says what it needs.

The duck checks the whole ELF again before it runs it; here the note tells in time which ducks
could not run it (docs/reference/kernel-abi.md).
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path

from host_runtime import wire
from host_runtime.errors import FileFormatError
from host_runtime.fleet.told import told_text

ELF64 = struct.Struct("<4sBBBB8xHHIQQQIHHHHHH")
PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
NOTE_HEADER = struct.Struct("<III")
PROGRAM_HEADERS_MAX = 64
ET_DYN, EM_X86_64, PT_LOAD, PT_NOTE = 3, 62, 1, 4
PAGE_BYTES = 4096
HINT = "give the experts kernel that was installed with duckctl (experts-avx2.elf)"


@dataclass(frozen=True)
class KernelFile:
    """A kernel ELF; ``cpu_features`` are the CPU_* bits of wire.h that its code needs."""

    path: Path
    data: bytes
    sha256: bytes
    name: str
    abi_version: int
    cpu_features: int


def load_kernel_file(path: Path) -> KernelFile:
    """Read a kernel ELF and its note; raises FileFormatError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _refuse(path, f"cannot be read: {error.strerror}") from error
    if len(data) > wire.KERNEL_ELF_BYTES_MAX:
        raise _refuse(path, f"has {len(data)} bytes, at most {wire.KERNEL_ELF_BYTES_MAX}")
    note = find_note(data)
    if note is None:
        raise _refuse(path, "is not a kernel: an x86-64 ELF (ET_DYN) with a 'duck' note")
    return KernelFile(
        path=path,
        data=data,
        sha256=hashlib.sha256(data).digest(),
        name=told_text(note.name),
        abi_version=note.abi_version,
        cpu_features=note.cpu_features,
    )


def find_note(data: bytes) -> wire.KernelNote | None:
    """The kernel note of an ELF image, None when it has none or is no such ELF."""
    if len(data) < ELF64.size:
        return None
    header = ELF64.unpack_from(data)
    magic, bits, order, kind, machine = header[0], header[1], header[2], header[5], header[6]
    if (magic, bits, order, kind, machine) != (b"\x7fELF", 2, 1, ET_DYN, EM_X86_64):
        return None
    table, entry_bytes, count = header[9], header[13], header[14]
    if entry_bytes != PROGRAM_HEADER.size or count > PROGRAM_HEADERS_MAX:
        return None
    for index in range(count):
        at = table + index * entry_bytes
        if at + entry_bytes > len(data):
            return None
        segment = PROGRAM_HEADER.unpack_from(data, at)
        if segment[0] == PT_NOTE:
            note = _note_in(data[segment[2] : segment[2] + segment[5]])
            if note is not None:
                return note
    return None


def memory_span(data: bytes) -> int:
    """Bytes of memory that a kernel's segments span, whole pages; the file has a note already."""
    header = ELF64.unpack_from(data)
    table, count = header[9], header[14]
    ends = [0]
    for index in range(count):
        segment = PROGRAM_HEADER.unpack_from(data, table + index * PROGRAM_HEADER.size)
        if segment[0] == PT_LOAD:
            ends.append(segment[3] + segment[6])
    return int(-(-max(ends) // PAGE_BYTES) * PAGE_BYTES)


def _note_in(segment: bytes) -> wire.KernelNote | None:
    """Notes are (name size, data size, type), name, data, each padded to 4 bytes."""
    at = 0
    while at + NOTE_HEADER.size <= len(segment):
        name_bytes, data_bytes, kind = NOTE_HEADER.unpack_from(segment, at)
        name_at = at + NOTE_HEADER.size
        data_at = name_at + (name_bytes + 3) // 4 * 4
        name = segment[name_at : name_at + name_bytes].rstrip(b"\0")
        wanted = name == b"duck" and kind == wire.KERNEL_NOTE_TYPE
        if wanted and data_bytes == ctypes.sizeof(wire.KernelNote):
            if data_at + data_bytes > len(segment):
                return None
            return wire.KernelNote.from_buffer_copy(segment, data_at)
        at = data_at + (data_bytes + 3) // 4 * 4
    return None


def _refuse(path: Path, problem: str) -> FileFormatError:
    return FileFormatError(f"kernel file {path}: {problem}", HINT)
