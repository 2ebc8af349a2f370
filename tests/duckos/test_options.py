"""Boot options of duckos: which source wins, what is refused, how values are read."""

from __future__ import annotations

import ctypes
import re
import shutil
from pathlib import Path
from typing import Any

import duckos_host
import pytest
from duckos_host import DUCKOS, HERE

DHCP, BLOCK, LINE = 1, 2, 3
OK, WEAKER, UNKNOWN, FORBIDDEN, NO_ROOM = range(5)
COMPLAIN = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_char), ctypes.c_size_t)

EXTRA = """
#include "boot/config_block.h"
#include "boot/handover.h"
struct handover handover;
const struct config_block config_block;
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("options")
    extra = folder / "extra.c"
    extra.write_text(EXTRA)
    duckos_host.build_library(folder, DUCKOS / "boot/options.c", HERE / "fakes.c", extra)
    return folder / "libduckos_parts.so"


@pytest.fixture
def options(built: Path, tmp_path: Path) -> ctypes.CDLL:
    """Options of nobody yet: a copy of the library has variables of its own."""
    library = ctypes.CDLL(str(shutil.copy(built, tmp_path)))
    library.options_text.restype = ctypes.c_char_p
    library.options_number.restype = ctypes.c_uint64
    library.options_hex.restype = ctypes.c_bool
    library.options_address.restype = ctypes.c_bool
    return library


def put(options: ctypes.CDLL, source: int, key: str, value: str) -> int:
    data = value.encode()
    result: int = options.options_set(source, key.encode(), data, ctypes.c_size_t(len(data)))
    return result


def parse(options: ctypes.CDLL, source: int, text: str, separator: str = " ") -> list[str]:
    complaints: list[str] = []

    def complain(word: Any, count: int) -> None:
        complaints.append(ctypes.string_at(word, count).decode())

    data = text.encode()
    wrong = options.options_parse(
        source, data, ctypes.c_size_t(len(data)), ord(separator), COMPLAIN(complain)
    )
    assert wrong == len(complaints)
    return complaints


def text_of(options: ctypes.CDLL, key: str) -> str | None:
    value: bytes | None = options.options_text(key.encode())
    return None if value is None else value.decode()


def test_the_stronger_source_wins(options: ctypes.CDLL) -> None:
    """Command line over config block over DHCP, in whatever order they come."""
    assert put(options, BLOCK, "host", "198.18.0.1") == OK
    assert put(options, DHCP, "host", "6.6.6.6") == WEAKER
    assert text_of(options, "host") == "198.18.0.1"
    assert put(options, LINE, "host", "198.18.0.2") == OK
    assert put(options, BLOCK, "host", "198.18.0.3") == WEAKER
    assert text_of(options, "host") == "198.18.0.2"


def test_dhcp_never_sets_what_trust_rests_on(options: ctypes.CDLL) -> None:
    """Who answers DHCP can name the duck and the host, but gives it no key and no settings."""
    for key in ("fleet_public", "poll", "memory_limit", "watchdog", "console", "version"):
        assert put(options, DHCP, key, "1") == FORBIDDEN
        assert text_of(options, key) is None
    for key in ("host", "name", "domain", "address", "netmask", "router", "mtu"):
        assert put(options, DHCP, key, "1") == OK


def test_a_renewed_lease_uses_no_new_room(options: ctypes.CDLL) -> None:
    """Ten thousand renewals with the same lengths find room; endless new lengths do not."""
    for i in range(10_000):
        assert put(options, DHCP, "name", f"duck{i % 10}") == OK
    assert put(options, DHCP, "name", "x" * 6000) == OK
    assert put(options, DHCP, "name", "x" * 6100) == NO_ROOM
    assert text_of(options, "name") == "x" * 6000


def test_a_command_line_names_what_it_does_not_know(options: ctypes.CDLL) -> None:
    """Known pairs are taken; unknown keys and words without '=' are named, each once."""
    line = "  poll=hlt BOOT_IMAGE=/duckos.img quiet  watchdog=off =5 cores=2 "
    assert parse(options, LINE, line) == ["BOOT_IMAGE=/duckos.img", "quiet", "=5"]
    assert text_of(options, "poll") == "hlt"
    assert text_of(options, "watchdog") == "off"
    assert text_of(options, "cores") == "2"


def test_a_config_block_has_one_pair_per_line(options: ctypes.CDLL) -> None:
    """Values of a block may hold blanks and '='; zeros end it."""
    block = "version=1.2 (a=b)\nname=duck one\n" + "\0" * 50 + "name=other\n"
    assert parse(options, BLOCK, block, "\n") == []
    assert text_of(options, "version") == "1.2 (a=b)"
    assert text_of(options, "name") == "duck one"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0), ("123", 123), ("64K", 65536), ("3M", 3 << 20), ("2G", 2 << 30),
        ("18446744073709551615", (1 << 64) - 1), ("18446744073709551616", 7), ("", 7),
        ("-1", 7), ("12x", 7), ("0x10", 7), ("99999999999G", 7), ("1KK", 7),
    ],
)  # fmt: skip
def test_numbers(options: ctypes.CDLL, text: str, value: int) -> None:
    """Decimal with K, M or G; anything else, or too large, counts as not given."""
    put(options, LINE, "memory_limit", text)
    assert options.options_number(b"memory_limit", ctypes.c_uint64(7)) == value


def test_hex_keys_have_exactly_their_length(options: ctypes.CDLL) -> None:
    """A key of 65 bytes is read; one digit more, less or wrong is refused."""
    key = bytes(range(4, 69))
    out = (ctypes.c_uint8 * 65)()
    for text, right in [
        (key.hex(), True),
        (key.hex().upper(), True),
        (key.hex()[:-1], False),
        (key.hex() + "0", False),
        ("g" + key.hex()[1:], False),
    ]:
        put(options, LINE, "fleet_public", text)
        assert options.options_hex(b"fleet_public", out, ctypes.c_size_t(65)) == right
    assert bytes(out)[:1] == b"\x04"


@pytest.mark.parametrize(
    ("text", "right"),
    [("198.18.0.1", True), ("1.2.3", False), ("1.2.3.256", False), ("1.2.3.4.5", False)],
)
def test_addresses(options: ctypes.CDLL, text: str, right: bool) -> None:
    """Four numbers of a byte each, nothing else."""
    out = (ctypes.c_uint8 * 4)()
    put(options, LINE, "address", text)
    assert options.options_address(b"address", out) == right
    if right:
        assert list(out) == [198, 18, 0, 1]


def test_the_header_names_every_key() -> None:
    """The list in config_block.h is the list in options.c."""
    source = (DUCKOS / "boot/options.c").read_text()
    header = (DUCKOS / "boot/config_block.h").read_text()
    keys = re.findall(r'^    \{"(\w+)",', source, flags=re.M)
    assert len(keys) >= 10
    documented = header.split("Keys (")[1]
    assert [key for key in keys if not re.search(rf"\b{key}\b", documented)] == []
