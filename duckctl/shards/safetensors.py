"""Headers of safetensors files, read and checked without touching the payload.

A file is: 8 bytes little-endian header length, header (JSON: name -> dtype, shape, data_offsets),
payload. The offsets count from the payload's first byte. Everything a header says is checked
against itself and against the file's size before a byte of payload is used.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from duckctl.shards.errors import CheckpointError

HEADER_BYTES_MAX = 100_000_000  # the format's own limit
DIMENSIONS_MAX = 8
DTYPE_BYTES = {
    "F64": 8, "I64": 8, "U64": 8,
    "F32": 4, "I32": 4, "U32": 4,
    "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
DOWNLOAD_AGAIN = "download the file again, or remove the directory and download the model again"


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file; ``offset`` counts from the file's first byte."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FileHeader:
    """A checked header. ``header`` is kept raw: digests of a checkpoint cover it."""

    path: Path
    size_bytes: int
    mtime_ns: int
    header: bytes
    tensors: tuple[TensorEntry, ...]


def read_header(path: Path) -> FileHeader:
    """Reads and checks one file's header; raises CheckpointError naming file and tensor."""
    descriptor = open_regular(path)
    try:
        status = os.fstat(descriptor)
        raw = _raw_header(path, descriptor, status.st_size)
    finally:
        os.close(descriptor)
    payload_start = 8 + len(raw)
    tensors = tuple(
        _entry(path, name, value, payload_start) for name, value in _parse(path, raw).items()
    )
    _check_coverage(path, tensors, payload_start, status.st_size)
    return FileHeader(path, status.st_size, status.st_mtime_ns, raw, tensors)


def open_regular(path: Path) -> int:
    """Opens a regular file; pipes, folders and link loops are named, never waited for."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
            raise CheckpointError(f"{path} is {kind}, expected a file", DOWNLOAD_AGAIN)
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CheckpointError(*_why_unreadable(path, error)) from error


def _why_unreadable(path: Path, error: OSError) -> tuple[str, str]:
    if error.errno == errno.ELOOP:
        return f"{path} is a symbolic link that leads back to itself", DOWNLOAD_AGAIN
    if error.errno == errno.ENOENT:
        linked = " (a symbolic link whose target is gone)" if path.is_symlink() else ""
        return f"{path} is missing{linked}", DOWNLOAD_AGAIN
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{path} cannot be read: {error.strerror}", "give yourself read access to the file"
    return f"{path} cannot be read: {error.strerror}", DOWNLOAD_AGAIN


def read_exactly(descriptor: int, buffer: memoryview, offset: int, path: Path) -> None:
    """Fills ``buffer`` from ``offset``; a file that ends early is an error, not a short read."""
    done = 0
    while done < len(buffer):
        try:
            count = os.preadv(descriptor, [buffer[done:]], offset + done)
        except OSError as error:
            raise _failed_read(path, offset + done, error) from error
        if count == 0:
            raise _ends_early(path, offset + done, offset + len(buffer))
        done += count


def read_pages(
    descriptor: int, buffer: memoryview, offset: int, needed_bytes: int, path: Path
) -> None:
    """read_exactly for direct I/O: whole pages, of which the first ``needed_bytes`` must exist."""
    done = 0
    while done < needed_bytes:
        try:
            count = os.preadv(descriptor, [buffer[done:]], offset + done)
        except OSError as error:
            raise _failed_read(path, offset + done, error) from error
        done += count
        if done < needed_bytes and (count == 0 or done % 4096):
            raise _ends_early(path, offset + done, offset + needed_bytes)


def _failed_read(path: Path, offset: int, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"reading {path} at byte {offset} failed: {error.strerror}",
        "check the disk (dmesg, smartctl), then run the command again",
    )


def _ends_early(path: Path, found: int, needed: int) -> CheckpointError:
    return CheckpointError(
        f"{path} ends at byte {found}, expected {needed} or more", DOWNLOAD_AGAIN
    )


def _raw_header(path: Path, descriptor: int, size_bytes: int) -> bytes:
    if size_bytes < 8:
        raise CheckpointError(
            f"{path} has {size_bytes} bytes, too short for a safetensors file", DOWNLOAD_AGAIN
        )
    length = struct.unpack("<Q", os.pread(descriptor, 8, 0))[0]
    if length > HEADER_BYTES_MAX:
        raise CheckpointError(
            f"{path} claims a header of {length} bytes; {HEADER_BYTES_MAX} are allowed",
            "the file is not a safetensors file or is damaged; " + DOWNLOAD_AGAIN,
        )
    if 8 + length > size_bytes:
        raise CheckpointError(
            f"{path} has {size_bytes} bytes but claims a header of {length} bytes", DOWNLOAD_AGAIN
        )
    raw = bytearray(length)
    read_exactly(descriptor, memoryview(raw), 8, path)
    return bytes(raw)


def _unique(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"'{key}' appears twice")
        result[key] = value
    return result


def load_json_object(path: Path, raw: bytes, what: str) -> dict[str, object]:
    """A JSON object without repeated keys; anything else is a CheckpointError."""
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{what} of {path} is not valid: {error}", DOWNLOAD_AGAIN) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{what} of {path} is not a JSON object", DOWNLOAD_AGAIN)
    return value


def _parse(path: Path, raw: bytes) -> dict[str, object]:
    if raw[:1] != b"{":
        raise CheckpointError(f"the header of {path} does not begin with '{{'", DOWNLOAD_AGAIN)
    header = load_json_object(path, raw, "the header")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise CheckpointError(f"'__metadata__' of {path} is not an object", DOWNLOAD_AGAIN)
    return header


def _integers(value: object, count_max: int) -> tuple[int, ...] | None:
    if not isinstance(value, list) or len(value) > count_max:
        return None
    if not all(type(item) is int and item >= 0 for item in value):
        return None
    return tuple(value)


def _entry(path: Path, name: str, value: object, payload_start: int) -> TensorEntry:
    def refuse(problem: str) -> CheckpointError:
        return CheckpointError(f"tensor '{name}' in {path}: {problem}", DOWNLOAD_AGAIN)

    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise refuse("expected exactly dtype, shape and data_offsets")
    dtype = value["dtype"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise refuse(f"data type {dtype!r} is not supported (known: {', '.join(DTYPE_BYTES)})")
    shape = _integers(value["shape"], DIMENSIONS_MAX)
    if shape is None:
        raise refuse(f"shape {value['shape']!r} is not a list of sizes")
    offsets = _integers(value["data_offsets"], 2)
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise refuse(f"data_offsets {value['data_offsets']!r} are not [begin, end]")
    begin, end = offsets
    expected_bytes = math.prod(shape) * DTYPE_BYTES[dtype]
    if end - begin != expected_bytes:
        raise refuse(
            f"{dtype} {list(shape)} needs {expected_bytes} bytes, data_offsets give {end - begin}"
        )
    return TensorEntry(name, dtype, shape, path, payload_start + begin, expected_bytes)


def _check_coverage(
    path: Path, tensors: Sequence[TensorEntry], payload_start: int, file_bytes: int
) -> None:
    """Tensors must tile the payload: no overlap, no hole, no missing or surplus tail."""
    expected = payload_start
    previous = "the header"
    for entry in sorted(tensors, key=lambda entry: (entry.offset, entry.size_bytes)):
        if entry.offset != expected:
            problem = "overlaps" if entry.offset < expected else "leaves a hole after"
            raise CheckpointError(
                f"tensor '{entry.name}' in {path} {problem} {previous}: it begins at byte "
                f"{entry.offset}, expected {expected}",
                DOWNLOAD_AGAIN,
            )
        expected += entry.size_bytes
        previous = f"'{entry.name}'"
    if file_bytes != expected:
        problem = "is truncated" if file_bytes < expected else "has surplus bytes at its end"
        raise CheckpointError(
            f"{path} {problem}: {file_bytes} bytes, the header describes {expected}",
            DOWNLOAD_AGAIN,
        )
