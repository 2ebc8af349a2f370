"""Adopting a box edits the inventory's text in one place, or not at all."""

from __future__ import annotations

import os
import stat
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from lifecycle_kit import INVENTORY, SWITCHED, shelf, write_inventory

from duckctl.cli import run as duckctl
from duckctl.errors import UsageError
from duckctl.inventory import load_inventory
from duckctl.provision.adoption import (
    NewDuck,
    adopt,
    choose_domain,
    free_address,
    unusable_card,
    with_duck,
)
from duckctl.yaml_source import InventoryError

MAC = "a8:b8:e0:21:01:77"
NEW = NewDuck("duck03", MAC, "domain1", IPv4Address("10.21.1.13"))
LINE = f'            duck03: {{duck_mac: "{MAC}", duck_address: 10.21.1.13}}\n'


def text() -> str:
    return INVENTORY.replace("POWER", SWITCHED)


def test_a_line_is_inserted_and_all_else_stays() -> None:
    """Comments, order and blanks are as before; the new line stands behind the last duck."""
    before = text()
    after = with_duck(before, NEW)
    place = before.index("            # duck03 is at the repair shop")
    assert after == before[:place] + LINE + before[place:]


def test_a_duck_in_block_form_is_passed_whole() -> None:
    """The last duck may be written over several lines, with a comment behind it."""
    before = text().replace(
        '            duck05: {duck_mac: "a8:b8:e0:21:02:0c", duck_address: 10.21.2.12}\n',
        "            duck05:\n              duck_address: 10.21.2.12  # no MAC yet\n",
    )
    new = NewDuck("duck06", MAC, "domain2", IPv4Address("10.21.2.13"))
    assert with_duck(before, new) == before + (
        f'            duck06: {{duck_mac: "{MAC}", duck_address: 10.21.2.13}}\n'
    )


def test_a_file_without_a_last_line_end() -> None:
    """The last line gets one."""
    new = NewDuck("duck06", MAC, "domain2", IPv4Address("10.21.2.13"))
    assert with_duck(text().rstrip("\n"), new) == with_duck(text(), new)


@pytest.mark.parametrize("end", ["}", " }", ", }"])
def test_hosts_in_flow_form(end: str) -> None:
    """A mapping in braces grows inside of them."""
    hosts = "hosts: {d1: {duck_address: 10.0.0.2}"
    head = "all: {children: {ducks: {children: {domain1: {vars: {domain_subnet: 10.0.0.0/24, "
    before = f"{head}domain_host_address: 10.0.0.1}}, {hosts}{end}" + "}" * 5 + "\n"
    new = NewDuck("d2", MAC, "domain1", IPv4Address("10.0.0.3"), slot=1)
    after = with_duck(before, new)
    assert f'd2: {{duck_slot: 1, duck_mac: "{MAC}", duck_address: 10.0.0.3}}' in after
    assert after.startswith(before[: before.index(end, before.index(hosts) + len(hosts))].rstrip())


def test_a_prepared_duck_gets_its_mac(tmp_path: Path) -> None:
    """An inventory may name ducks before anybody knows their cards: flow and block form."""
    path = write_inventory(tmp_path)
    path.write_text(
        path.read_text()
        .replace('duck_mac: "a8:b8:e0:21:01:0c", ', "")
        .replace('duck_mac: "a8:b8:e0:21:02:0b"\n              ', "")
    )
    adopt(path, NewDuck("duck02", MAC, "domain1", IPv4Address("10.21.1.12")))
    other = MAC.replace("77", "78")
    fleet = adopt(path, NewDuck("duck04", other, "domain2", IPv4Address("10.21.2.11")))
    assert {duck.name: duck.mac for duck in fleet.ducks}["duck02"] == MAC
    assert {duck.name: duck.mac for duck in fleet.ducks}["duck04"] == other
    assert "# loud fan" in path.read_text()


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (NewDuck("duck01", MAC, "domain1", IPv4Address("10.21.1.13")), "has the MAC"),
        (NewDuck("duck05", MAC, "domain1", IPv4Address("10.21.1.13")), "already a duck of domain"),
        (NewDuck("duck09", MAC, "domain1", IPv4Address("10.21.1.11")), "already duck01's"),
        (NewDuck("duck09", "a8:b8:e0:21:01:0b", "domain1", IPv4Address("10.21.1.13")), "duck01's"),
        (NewDuck("duck09", MAC, "domain1", IPv4Address("10.21.2.99")), "outside"),
        (NewDuck("Duck 9", MAC, "domain1", IPv4Address("10.21.1.13")), "not a name"),
        (NewDuck("duck09", MAC, "domain9", IPv4Address("10.21.1.13")), "no 'hosts'"),
    ],
)
def test_t33_duplicates_leave_the_file_as_it_was(
    tmp_path: Path, new: NewDuck, expected: str
) -> None:
    """A name, MAC or address that is taken is refused with its place; not a byte changes."""
    path = write_inventory(tmp_path)
    before = path.read_bytes()
    with pytest.raises((UsageError, InventoryError), match=expected):
        adopt(path, new)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["shelf.yml"], "no file is left over"


def test_mode_and_link_of_the_file_stay(tmp_path: Path) -> None:
    """The inventory may be a link into a repository; its mode is kept."""
    real = tmp_path / "repository"
    real.mkdir()
    path = write_inventory(real)
    path.chmod(0o640)
    link = tmp_path / "shelf.yml"
    link.symlink_to(path)
    adopt(link, NEW)
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert LINE in path.read_text()


def test_t54_a_killed_edit_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new text is written beside the file, synced and renamed: whole or not at all."""
    path = write_inventory(tmp_path)
    before = path.read_bytes()

    def die(_descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", die)
    with pytest.raises(KeyboardInterrupt):
        adopt(path, NEW)
    assert path.read_bytes() == before


def test_addresses_and_domains_are_chosen(tmp_path: Path) -> None:
    """The next free address of the domain in which the card was seen; no guess among several."""
    fleet = shelf(tmp_path)
    assert choose_domain(fleet, None, "domain2").name == "domain2"
    assert choose_domain(fleet, "domain1", "domain2").name == "domain1"
    with pytest.raises(UsageError, match="seen in no known domain"):
        choose_domain(fleet, None, "")
    assert free_address(fleet, fleet.domains[0]) == IPv4Address("10.21.1.13")


def test_t35_cards_that_others_may_share_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Software-made and multicast addresses do not tell one box from another."""
    assert unusable_card("a8:b8:e0:21:01:77") == ""
    assert "software" in unusable_card("02:00:00:00:00:01")
    assert "multicast" in unusable_card("01:00:5e:00:00:01")
    path = write_inventory(tmp_path)
    code = duckctl(["adopt", "02:00:00:00:00:01", "--name", "duck09", "--inventory", str(path)])
    assert (code, "software" in capsys.readouterr().err) == (2, True)


def test_the_command_takes_a_box_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """adopt enters it, names its address, and a second adoption of the same card is refused."""
    path = write_inventory(tmp_path)
    words = ["adopt", MAC.upper(), "--name", "duck03", "--domain", "domain1"]
    assert duckctl([*words, "--inventory", str(path)]) == 0
    duck = next(duck for duck in load_inventory(path).ducks if duck.name == "duck03")
    assert (duck.mac, str(duck.address)) == (MAC, "10.21.1.13")
    assert "has not asked this host" in capsys.readouterr().err
    assert duckctl([*words, "--inventory", str(path)]) == 2
    assert "duck03's already" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["abc", "10.21.1", "10.21.1.300", ""])
def test_an_address_that_is_none_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """Named as such, and the file stays as it was."""
    path = write_inventory(tmp_path)
    before = path.read_bytes()
    words = ["adopt", MAC, "--name", "duck03", "--domain", "domain1", "--address", text]
    assert duckctl([*words, "--inventory", str(path)]) == 2
    assert "is not an IPv4 address" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_the_address_of_a_prepared_duck_is_not_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It stands in the file already: another one is refused, the same one is fine."""
    path = write_inventory(tmp_path)
    path.write_text(path.read_text().replace('duck_mac: "a8:b8:e0:21:01:0c", ', ""))
    before = path.read_bytes()
    words = ["adopt", MAC, "--name", "duck02", "--inventory", str(path), "--address"]
    assert duckctl([*words, "10.21.1.99"]) == 2
    assert "with the address 10.21.1.12, not 10.21.1.99" in capsys.readouterr().err
    assert path.read_bytes() == before
    assert duckctl([*words, "10.21.1.12"]) == 0


def test_a_comment_about_slots_gives_no_slot(tmp_path: Path) -> None:
    """Only a duck's own key says that the file gives slots."""
    path = write_inventory(tmp_path)
    path.write_text("# duck_slot is left to the order of the file\n" + path.read_text())
    words = ["adopt", MAC, "--name", "duck03", "--domain", "domain1", "--inventory", str(path)]
    assert duckctl(words) == 0
    assert LINE in path.read_text()


def test_a_file_that_gives_slots_gets_the_next_one(tmp_path: Path) -> None:
    """Every duck has one there, in flow and in block form."""
    path = write_inventory(tmp_path)
    text = path.read_text()
    for slot, address in enumerate(("1.11", "1.12", "2.11", "2.12")):
        last = f"duck_address: 10.21.{address}"
        separator = "\n              " if address == "2.11" else ", "
        text = text.replace(last, f"{last}{separator}duck_slot: {slot}")
    path.write_text(text)
    words = ["adopt", MAC, "--name", "duck03", "--domain", "domain1", "--inventory", str(path)]
    assert duckctl(words) == 0
    assert {d.name: d.slot for d in load_inventory(path).ducks}["duck03"] == 4


def test_line_ends_stay(tmp_path: Path) -> None:
    """A file with CR LF keeps them in every line, new and old; also where a MAC is added."""
    path = write_inventory(tmp_path)
    bare = path.read_text().replace('duck_mac: "a8:b8:e0:21:02:0b"\n              ', "")
    before = bare.replace("\n", "\r\n").encode()
    path.write_bytes(before)
    adopt(path, NEW)
    assert path.read_bytes().replace(LINE.replace("\n", "\r\n").encode(), b"") == before
    other = MAC.replace("77", "78")
    adopt(path, NewDuck("duck04", other, "domain2", IPv4Address("10.21.2.11")))
    after = path.read_bytes()
    assert after.count(b"\n") == after.count(b"\r\n") == bare.count("\n") + 2


def test_owner_and_group_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit by root does not make the file root's; nobody else can give a file away."""
    path = write_inventory(tmp_path)
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 12345, 23456)
    old, chown = path.stat(), os.fchown
    asked: list[tuple[int, int]] = []

    def note(descriptor: int, owner: int, group: int) -> None:
        asked.append((owner, group))
        chown(descriptor, owner, group)

    monkeypatch.setattr(os, "fchown", note)
    adopt(path, NEW)
    new = path.stat()
    assert asked == [(-1, old.st_gid), (old.st_uid, -1)]
    assert (new.st_uid, new.st_gid, new.st_mode) == (old.st_uid, old.st_gid, old.st_mode)
