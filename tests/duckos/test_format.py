"""duckos' small printf says what C's printf says."""

from __future__ import annotations

import ctypes
import random

import duckos_host
import pytest
from duckos_host import DUCKOS

LONG = ctypes.c_int64
CASES: list[tuple[str, tuple[object, ...]]] = [
    ("plain", ()),
    ("%d|%d|%d", (0, -1, 2147483647)),
    ("%5d|%-5d|%05d|%05d", (42, 42, 42, -42)),
    ("%u %x %08x", (4294967295, 3735928559, 48879)),
    ("%ld %zu %lx", (LONG(-(1 << 63)), LONG(-1), LONG(0x123456789ABCDEF))),
    ("%s|%10s|%-10s|%.3s|%.*s", (b"duck", b"duck", b"duck", b"duckling", 2, b"duck")),
    ("%c%c%%", (b"o", b"k")),
    ("%p", (ctypes.c_void_p(0xFFFFFFFF80000000),)),
    ("%016lx", (LONG(255),)),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("format")
    return duckos_host.build_library(folder, DUCKOS / "console/format.c")


def formatted(
    function: object, room: int, text: str, arguments: tuple[object, ...]
) -> tuple[int, bytes]:
    out = ctypes.create_string_buffer(b"\xff" * 300, 300)
    assert callable(function)
    count = function(out, ctypes.c_size_t(room), text.encode(), *arguments)
    assert out.raw[room:] == (b"\xff" * 300)[: 300 - room], "wrote behind its room"
    return count, out.raw[:room].split(b"\0")[0]


@pytest.mark.parametrize(("text", "arguments"), CASES)
def test_same_text_as_printf(
    library: ctypes.CDLL, text: str, arguments: tuple[object, ...]
) -> None:
    """Every conversion of the list gives what the C library gives, and the length of it."""
    ours = formatted(library.format_text, 200, text, arguments)
    theirs = formatted(ctypes.CDLL(None).snprintf, 200, text, arguments)
    assert ours == theirs


def test_cut_text_is_still_terminated(library: ctypes.CDLL) -> None:
    """Whatever the room, the text is cut to it and ends with a zero."""
    for room in range(1, 40):
        count, text = formatted(library.format_text, room, "%s %08x %d", (b"duckos" * 4, 1, -5))
        whole = f"{'duckos' * 4} 00000001 -5"
        assert text == whole[: room - 1].encode()
        assert count == len(text)


def test_unknown_conversions_stay_as_they_are(library: ctypes.CDLL) -> None:
    """A conversion that is not in the list is copied; a percent sign at the end is safe."""
    assert formatted(library.format_text, 100, "%q %5k %", ())[1] == b"%q %5k %"


def test_random_formats_never_leave_their_room(library: ctypes.CDLL) -> None:
    """Any string of format characters is safe when every argument is a number."""
    generator = random.Random(20260801)
    for _ in range(3000):
        text = "".join(generator.choice("%dux-0123456789.lz c") for _ in range(20))
        formatted(library.format_text, 64, text, (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12))
