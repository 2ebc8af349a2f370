"""Back-traces name functions: the list in the image is right, in order, and searched right."""

from __future__ import annotations

import ctypes
import struct

import duckos_host
import pytest
from duckos_host import DUCKOS

from duckctl.native import native_path

LIST = b"".join(
    struct.pack("<I", at) + name + b"\0"
    for at, name in [(0x100, b"first"), (0x180, b"second"), (0x180, b"alias"), (0x900, b"last")]
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("symbols")
    extra = folder / "extra.c"
    extra.write_text(
        "#include <stdint.h>\n"
        "const uint8_t symbols[1], symbols_end[1], image_start[1], _text_end[1];\n"
    )
    library = duckos_host.build_library(folder, DUCKOS / "panic/symbols.c", extra)
    library.symbol_find.restype = ctypes.c_char_p
    return library


@pytest.mark.parametrize(
    ("offset", "name", "start"),
    [
        (0xFF, None, 0),
        (0x100, b"first", 0x100),
        (0x17F, b"first", 0x100),
        (0x180, b"alias", 0x180),
        (0x8FF, b"alias", 0x180),
        (0xFFFFFFFF, b"last", 0x900),
    ],
)
def test_the_function_that_holds_an_offset(
    library: ctypes.CDLL, offset: int, name: bytes | None, start: int
) -> None:
    """The last function that begins at or before the offset; none before the first."""
    found = ctypes.c_uint32(0)
    result = library.symbol_find(
        LIST, ctypes.c_size_t(len(LIST)), ctypes.c_uint32(offset), ctypes.byref(found)
    )
    assert (result, found.value) == (name, start)
    assert library.symbol_find(b"", ctypes.c_size_t(0), 5, ctypes.byref(found)) is None


def test_the_image_holds_names_in_order() -> None:
    """From the first byte's name on, offsets rise, and known functions are there."""
    image = native_path("duckos.img").read_bytes()
    at = image.index(b"\0\0\0\0image_start\0")
    names: dict[str, int] = {}
    before = 0
    while at + 5 < len(image):
        offset: int = struct.unpack_from("<I", image, at)[0]
        end = image.index(b"\0", at + 4)
        name = image[at + 4 : end].decode()
        if not name.isidentifier() or offset < before:
            break
        names[name] = before = offset
        at = end + 1
    assert {"early_entry", "duckos_main", "trap_handle", "br_sha256_out"} <= names.keys()
    assert names["early_jump"] < names["duckos_main"]
