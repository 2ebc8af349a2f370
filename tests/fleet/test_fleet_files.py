"""Fleet, key and cache files are read exactly, and each kind of wrong file is refused by name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fleet_files import cut, fleet_content, meaningless_cache, write_json, write_key

from host_runtime import wire
from host_runtime.errors import FileFormatError
from host_runtime.fleet.cache import CacheDamagedError, load_cache, read_piece, slice_for
from host_runtime.fleet.config import load_fleet, read_key

Edit = Callable[[dict[str, Any]], object]


def test_fleet_file(tmp_path: Path) -> None:
    key = write_key(tmp_path)
    fleet = load_fleet(write_json(tmp_path / "fleet.json", fleet_content(key, [7001, 7002])))
    assert [(duck.name, duck.endpoint, duck.slot) for duck in fleet.ducks] == [
        ("d01", "127.0.0.1:7001", 0),
        ("d02", "127.0.0.1:7002", 1),
    ]
    assert fleet.key_file == key
    assert (fleet.domains[0].mtu, fleet.domains[0].call_address) == (1500, None)
    assert fleet.domain_index(fleet.ducks[1]) == 0


FLEET_EDITS: list[tuple[Edit, str]] = [
    (lambda c: c.update(color="red"), "unknown key 'color'"),
    (lambda c: c["ducks"][1].update(prot=1), "ducks[1]: unknown key 'prot'; did you mean 'port'?"),
    (lambda c: c.pop("domains"), "the key 'domains' is missing"),
    (lambda c: c.update(schema_version=2), "schema_version: is 2"),
    (lambda c: c.update(key_file="fleet.key"), "not an absolute path"),
    (lambda c: c.update(ducks=[]), "expected 1 to 64 ducks, found 0"),
    (lambda c: c.update(ducks=c["ducks"][:1] * 2), "ducks[1]: slot: is 0, expected 1"),
    (lambda c: c["ducks"][1].update(name="d01"), "d01 has the same name 'd01'"),
    (lambda c: c["ducks"][1].update(port=7001), "d02 has the same address 127.0.0.1:7001 as d01"),
    (lambda c: c["ducks"][1].update(port=70000), "port: expected a whole number from 1 to 65535"),
    (lambda c: c["ducks"][1].update(port=True), "port: expected a whole number"),
    (lambda c: c["ducks"][0].update(address="duck.local"), "'duck.local' is not an IPv4 address"),
    (lambda c: c["ducks"][0].update(domain="domain9"), "'domain9' is not one of domain1"),
    (lambda c: c["ducks"][0].update(name="-x"), "ducks[0]: name: '-x' must be"),
    (lambda c: c["ducks"][0].update(name="x" * 32), "must be 1 to 31 letters"),
    (lambda c: c["domains"].append(c["domains"][0]), "the name 'domain1' appears twice"),
    (lambda c: c["domains"][0].update(mtu=100), "mtu: expected a whole number from 576"),
    (lambda c: c.update(ducks={"d01": 1}), "ducks: expected a list, found"),
    (lambda c: c.update(ducks=["d01"]), 'ducks[0]: expected an object, found "d01"'),
]


@pytest.mark.parametrize(("edit", "message"), FLEET_EDITS)
def test_wrong_fleet_file_is_refused(tmp_path: Path, edit: Edit, message: str) -> None:
    content = fleet_content(tmp_path / "fleet.key", [7001, 7002])
    edit(content)
    path = write_json(tmp_path / "fleet.json", content)
    with pytest.raises(FileFormatError) as caught:
        load_fleet(path)
    assert message in caught.value.message
    assert str(path) in caught.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not valid JSON"),
        ("[]", "expected an object, found []"),
        ('{"name": 1, "name": 2}', "the key 'name' appears twice"),
        ('{"name": NaN}', "NaN is not JSON"),
        ("[" * 100_000, "is not valid JSON"),
    ],
)
def test_malformed_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "fleet.json"
    path.write_text(text)
    with pytest.raises(FileFormatError) as caught:
        load_fleet(path)
    assert message in caught.value.message


def test_missing_file_and_other_encodings(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="cannot be read: No such file"):
        load_fleet(tmp_path / "nothing.json")
    (tmp_path / "latin.json").write_bytes(b'{"name": "\xe4"}')
    with pytest.raises(FileFormatError, match="is not UTF-8"):
        load_fleet(tmp_path / "latin.json")


def test_key_file(tmp_path: Path) -> None:
    path = write_key(tmp_path)
    label = "duck-p256-private:"
    assert read_key(path) == bytes.fromhex(path.read_text().removeprefix(label))
    path.chmod(0o640)
    with pytest.raises(FileFormatError, match=r"other users may read it \(mode 0640\)") as caught:
        read_key(path)
    assert caught.value.hint == f"run: chmod 600 {path}"
    path.chmod(0o600)
    for text in (label + "ab" * 31, label + "xy" * 32, "", label, "\N{DUCK}"):
        path.write_text(text)
        with pytest.raises(FileFormatError, match=f"expected '{label}' and 64 hex digits"):
            read_key(path)
    path.write_text("ab" * 32)
    with pytest.raises(FileFormatError, match="shared key of an older version") as caught:
        read_key(path)
    assert "duckctl init" in caught.value.hint
    with pytest.raises(FileFormatError, match="cannot be read"):
        read_key(tmp_path / "nothing.key")


def test_cache_file(tmp_path: Path) -> None:
    content = meaningless_cache(tmp_path)
    cache = load_cache(write_json(tmp_path / "cache.json", content))
    assert (cache.format, cache.layers, cache.expert_count) == (wire.Format.FP8, (1, 2), 2)
    for slot, part in enumerate(cache.slices):
        assert slice_for(cache, slot, 2) is part
        region = b"".join(read_piece(piece) for piece in part.pieces)
        assert len(region) == part.region_bytes
        assert [piece.layer for piece in part.pieces] == [None, 1, 2]
        digests = b"".join(hashlib.sha256(read_piece(p)).digest() for p in part.pieces)
        assert hashlib.sha256(digests).digest() == part.set_id
    with pytest.raises(FileFormatError, match="is for 2 ducks, the fleet has 4"):
        slice_for(cache, 0, 4)


CACHE_EDITS: list[tuple[Edit, str]] = [
    (lambda c: c.update(extra=1), "unknown key 'extra'"),
    (lambda c: c["model"].update(size=1), "model: unknown key 'size'"),
    (lambda c: c["slices"][0]["pieces"][1].update(crc=1), "pieces[1]: unknown key 'crc'"),
    (lambda c: c.update(layout_version=9), "layout_version: is 9"),
    (lambda c: c.update(format="q1"), "'q1' is not one of"),
    (lambda c: c.update(expert_count=3), "region_bytes: is"),
    (lambda c: c.update(layers=[2, 1]), "ascending layer indices"),
    (lambda c: c.update(layers=[1, "2"]), "'2' is not a layer index"),
    (lambda c: c.update(moe_intermediate_size=256), "cover 128 of 256 MoE intermediate rows"),
    (lambda c: c["slices"].reverse(), "slice: is 1, expected 0"),
    (lambda c: c["slices"][1].update(first_row=32), "first_row: is 32, expected 64"),
    (lambda c: c["slices"][1].update(rows=40), "rows: is 40, expected a multiple of 32"),
    (lambda c: c["slices"][1].update(set_id="00" * 32), "set_id: does not belong to"),
    (lambda c: c["slices"][1].update(set_id="00"), "set_id: expected 64 hex digits"),
    (lambda c: c["slices"][1]["pieces"].pop(1), "layer-002.bin begins at"),
    (lambda c: c["slices"][1]["pieces"].pop(), "bytes together, expected"),
    (lambda c: c["slices"][0]["pieces"][0].update(file="../x"), "'../x' leaves the cache folder"),
    (lambda c: c["slices"][0]["pieces"][0].update(file="/etc/x"), "leaves the cache folder"),
    (lambda c: c["slices"][0]["pieces"][1].update(layer=7), "7 is not one of the file's layers"),
]


@pytest.mark.parametrize(("edit", "message"), CACHE_EDITS)
def test_wrong_cache_file_is_refused(tmp_path: Path, edit: Edit, message: str) -> None:
    content = meaningless_cache(tmp_path)
    edit(content)
    with pytest.raises(FileFormatError) as caught:
        load_cache(write_json(tmp_path / "cache.json", content))
    assert message in caught.value.message


def test_damaged_piece_is_refused_by_name(tmp_path: Path) -> None:
    cache = load_cache(write_json(tmp_path / "cache.json", meaningless_cache(tmp_path)))
    piece = cache.slices[1].pieces[2]
    whole = piece.file.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0x10
    for data, problem in ((flipped, "its SHA-256 is"), (whole[:-1], "expected"), (b"", "0 bytes")):
        piece.file.write_bytes(data)
        with pytest.raises(CacheDamagedError, match=r"slice-01/layer-002\.bin") as caught:
            read_piece(piece)
        assert problem in caught.value.message
        assert "shard-weights" in caught.value.hint
    piece.file.unlink()
    with pytest.raises(CacheDamagedError, match="No such file"):
        read_piece(piece)


@pytest.mark.parametrize("ducks", [1, 2, 3, 4, 5, 8])
def test_cut_covers_all_rows(ducks: int) -> None:
    rows = cut(256, ducks)
    assert [first for first, _ in rows[1:]] == [first + count for first, count in rows[:-1]]
    assert rows[-1][0] + rows[-1][1] == 256
