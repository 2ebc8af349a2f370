"""A unified kernel image: systemd's EFI stub with kernel, initramfs and command line as sections.

UEFI HTTP boot loads such a file with no boot loader between, and it can be signed as a whole.
Sections are named as the UAPI group's specification of unified kernel images says.
"""

from __future__ import annotations

import struct
from pathlib import Path

from duckctl.image.manifest import ImageError

STUBS = (
    Path("/usr/lib/systemd/boot/efi/linuxx64.efi.stub"),
    Path("/usr/lib/gummiboot/linuxx64.efi.stub"),
)
SECTION_BYTES = 40
INITIALISED_READABLE = 0x4000_0040
OPTIONAL_SECTION_ALIGNMENT = 32  # offsets in the PE32+ optional header; file alignment follows
OPTIONAL_IMAGE_BYTES = 56
OPTIONAL_HEADER_BYTES = 60
OPTIONAL_CHECKSUM = 64
PE32_PLUS = 0x20B


def find_stub() -> Path | None:
    """The stub of Debian's package systemd-boot-efi, if it is installed."""
    return next((path for path in STUBS if path.is_file()), None)


def make_uki(stub: bytes, kernel: bytes, initrd: bytes, command_line: str, release: str) -> bytes:
    """The stub with the sections .osrel .cmdline .uname .initrd .linux behind its own."""
    os_release = f'ID=duck\nNAME="duck"\nPRETTY_NAME="duck {release}"\n'
    return add_sections(
        stub,
        {
            ".osrel": os_release.encode() + b"\0",
            ".cmdline": command_line.encode() + b"\0",
            ".uname": release.encode() + b"\0",
            ".initrd": initrd,
            ".linux": kernel,  # last: a kernel may be unpacked in place and grow behind its end
        },
    )


def add_sections(image: bytes, sections: dict[str, bytes]) -> bytes:
    """A PE32+ file with more sections. Raises ImageError when it is none, or has no room."""
    try:
        pe = struct.unpack_from("<I", image, 0x3C)[0]
        count, optional_bytes = (
            struct.unpack_from("<H", image, pe + 6)[0],
            struct.unpack_from("<H", image, pe + 20)[0],
        )
        optional = pe + 24
        is_pe = image[pe : pe + 4] == b"PE\0\0"
        if not is_pe or struct.unpack_from("<H", image, optional)[0] != PE32_PLUS:
            raise ImageError("the EFI stub is no PE32+ file")
        section_align, file_align = struct.unpack_from(
            "<II", image, optional + OPTIONAL_SECTION_ALIGNMENT
        )
        header_bytes = struct.unpack_from("<I", image, optional + OPTIONAL_HEADER_BYTES)[0]
        table = optional + optional_bytes
        last = table + SECTION_BYTES * (count - 1)
        virtual_bytes, virtual_at = struct.unpack_from("<II", image, last + 8)
    except struct.error as error:
        raise ImageError("the EFI stub is damaged") from error
    end = table + SECTION_BYTES * (count + len(sections))
    if end > header_bytes:
        raise ImageError(f"the EFI stub has no room for {len(sections)} more sections")
    result = bytearray(image)
    result += bytes(-len(result) % file_align)
    address = _round_up(virtual_at + virtual_bytes, section_align)
    at = table + SECTION_BYTES * count
    for name, data in sections.items():
        padded = data + bytes(-len(data) % file_align)
        struct.pack_into("<8sIIIIIIHHI", result, at, name.encode(), len(data), address,
                         len(padded), len(result), 0, 0, 0, 0,
                         INITIALISED_READABLE)  # fmt: skip
        result += padded
        address = _round_up(address + len(data), section_align)
        at += SECTION_BYTES
    struct.pack_into("<H", result, pe + 6, count + len(sections))
    struct.pack_into("<I", result, optional + OPTIONAL_IMAGE_BYTES, address)
    struct.pack_into("<I", result, optional + OPTIONAL_CHECKSUM, 0)
    return bytes(result)


def _round_up(value: int, unit: int) -> int:
    return (value + unit - 1) // unit * unit
