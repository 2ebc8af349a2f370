"""A cpio archive in the kernel's "newc" form, the same bytes for the same content.

Documentation/driver-api/early-userspace/buffer-format.rst of the kernel describes the form: a
header of eight-digit hex fields, the name, the data, each padded to four bytes.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass

FILE_BYTES_MAX = 0xFFFF_FFFF
MAGIC = b"070701"
HEADER_BYTES = len(MAGIC) + 13 * 8
TRAILER = "TRAILER!!!"


@dataclass(frozen=True)
class Entry:
    """A folder, file or device. ``path`` has no leading slash. ``device``: major and minor."""

    path: str
    mode: int
    data: bytes = b""
    device: tuple[int, int] = (0, 0)


def folder(path: str) -> Entry:
    return Entry(path, stat.S_IFDIR | 0o755)


def file(path: str, data: bytes, mode: int = 0o644) -> Entry:
    return Entry(path, stat.S_IFREG | mode, data)


def character_device(path: str, major: int, minor: int) -> Entry:
    return Entry(path, stat.S_IFCHR | 0o600, b"", (major, minor))


def archive(entries: Iterable[Entry]) -> bytes:
    """Sorted by path; owner root, no times; folders that are missing are added."""
    named = {entry.path: entry for entry in entries}
    for path in list(named):
        parts = path.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            above = "/".join(parts[:depth])
            named.setdefault(above, folder(above))
    pieces = [_record(number, named[path]) for number, path in enumerate(sorted(named), 1)]
    pieces.append(_record(0, Entry(TRAILER, 0)))
    return b"".join(pieces)


def files_in(data: bytes) -> dict[str, bytes]:
    """The regular files of an archive that ``archive`` made, by path. Raises ValueError where the
    bytes are none."""
    found: dict[str, bytes] = {}
    at = 0
    while data.startswith(MAGIC, at):
        fields = [int(data[place : place + 8], 16) for place in range(at + 6, at + HEADER_BYTES, 8)]
        mode, size, name_bytes = fields[1], fields[6], fields[11]
        name = data[at + HEADER_BYTES : at + HEADER_BYTES + name_bytes - 1].decode()
        if name == TRAILER:
            return found
        start = at + len(_padded(bytes(HEADER_BYTES + name_bytes)))
        if stat.S_ISREG(mode):
            found[name] = data[start : start + size]
        at = start + size + -size % 4
    raise ValueError(f"no cpio record at byte {at}")


def _record(number: int, entry: Entry) -> bytes:
    if len(entry.data) > FILE_BYTES_MAX:
        raise ValueError(f"{entry.path} is too large for a cpio archive")
    name = entry.path.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    major, minor = entry.device
    # ino mode uid gid nlink mtime filesize devmajor devminor rdevmajor rdevminor namesize check
    fields = (number, entry.mode, 0, 0, links, 0, len(entry.data), 0, 0, major, minor, len(name), 0)
    header = MAGIC + b"".join(b"%08x" % field for field in fields)
    return _padded(header + name) + _padded(entry.data)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
