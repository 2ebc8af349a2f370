"""A folder that this user may not write: named with user and remedy; what only shows goes on."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from lifecycle_kit import shelf, write_inventory

from duckctl.boot.intents import Intents
from duckctl.cli import run as duckctl
from duckctl.errors import DuckError
from duckctl.lifecycle.machine import Event, Kind
from duckctl.lifecycle.store import (
    StoreError,
    StoreRightsError,
    open_store,
    open_to_read,
    store_path,
)
from duckctl.provision.adoption import NewDuck, adopt
from duckctl.provision.lock import fleet_lock
from duckctl.provision.run import read_states
from duckctl.rights import RightsError

NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that others can look into; pytest's own are closed to them."""
    made = Path(tempfile.mkdtemp(prefix="duck-rights-"))
    made.chmod(0o755)
    yield made
    made.chmod(0o755)
    shutil.rmtree(made)


@contextmanager
def without_rights(folder: Path) -> Iterator[None]:
    """The folder may be read and not written: root, whom no mode stops, is somebody else there."""
    folder.chmod(0o555)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o755)


def check_words(error: DuckError, folder: Path) -> None:
    """Who, where, and what to do; nothing of damage."""
    assert f"may not write in the folder {folder}" in error.message
    assert "write there (chown, chmod)" in error.hint
    assert "damaged" not in error.message + error.hint


def test_the_lock_names_folder_and_user(folder: Path) -> None:
    """provision and reboot take it first."""
    with (
        without_rights(folder),
        pytest.raises(RightsError) as caught,
        fleet_lock(folder, "shelf", "provision"),
    ):
        pass
    check_words(caught.value, folder)
    if os.geteuid() == 0:
        assert "nobody may not write" in caught.value.message
        assert "it belongs to root" in caught.value.message


@pytest.mark.parametrize("exists", [True, False])
def test_the_state_file_is_not_called_damaged(folder: Path, exists: bool) -> None:
    """With and without a file of before."""
    fleet = shelf(folder)
    if exists:
        open_store(fleet).close()
    with without_rights(folder), pytest.raises(StoreRightsError) as caught:
        open_store(fleet)
    check_words(caught.value, folder)


def test_a_state_file_that_is_none_is_told_otherwise(folder: Path) -> None:
    """A folder under its name has nothing to do with rights, nor is it damaged."""
    fleet = shelf(folder)
    store_path(fleet).mkdir()
    with pytest.raises(StoreError) as caught:
        open_store(fleet)
    assert not isinstance(caught.value, StoreRightsError)
    assert "is it a file" in caught.value.hint


def test_a_damaged_state_file_is_still_called_damaged(folder: Path) -> None:
    """It can be moved away, and that is said."""
    fleet = shelf(folder)
    store_path(fleet).write_bytes(b"not a database at all" * 100)
    with pytest.raises(StoreError) as caught:
        open_store(fleet)
    assert "damaged, move it away" in caught.value.hint


def test_boot_intents_name_folder_and_user(folder: Path) -> None:
    """`boot set`, and the hello of a run."""
    intents = Intents(folder / "boot" / "intents.json")
    with without_rights(folder):
        for change in (intents.set_local, intents.hello):
            with pytest.raises(RightsError) as caught:
                change("duck01")
            check_words(caught.value, folder)


def test_adopt_names_folder_and_user(folder: Path) -> None:
    """The inventory is replaced by a file beside it."""
    path = write_inventory(folder)
    new = NewDuck("duck03", "a8:b8:e0:21:01:77", "domain1", IPv4Address("10.21.1.13"))
    with without_rights(folder), pytest.raises(RightsError) as caught:
        adopt(path, new)
    check_words(caught.value, folder)


@pytest.mark.parametrize("is_open", [False, True])
def test_what_only_shows_goes_on(
    folder: Path, capsys: pytest.CaptureFixture[str], is_open: bool
) -> None:
    """status --offline, events and discover show what is there, also while another one writes."""
    path = write_inventory(folder)
    fleet = shelf(folder)
    store = open_store(fleet)
    store.record("duck02", Event(Kind.FAIL, 1.0, "no power"))
    if not is_open:
        store.close()
    commands = (["status", "--offline", "--json"], ["events"], ["discover"])
    codes = [duckctl([*words, "--inventory", str(path)]) for words in commands]
    capsys.readouterr()
    names = sorted(entry.name for entry in folder.iterdir())
    for file in folder.iterdir():
        file.chmod(0o644)
    with without_rights(folder):
        assert [duckctl([*words, "--inventory", str(path)]) for words in commands] == codes
        states = read_states(fleet, ["duck02"])
    after = capsys.readouterr()
    assert '"reason": "no power"' in after.out
    assert "duck02 fail -> failed(power)  (no power)" in after.out
    assert states["duck02"].reason == "no power"
    assert after.err.count("shown and not kept") == len(commands)
    assert sorted(entry.name for entry in folder.iterdir()) == names
    store.close()


def test_a_reader_without_any_state_file_goes_on(folder: Path) -> None:
    """All ducks are registered, for this command alone."""
    fleet = shelf(folder)
    with without_rights(folder), open_to_read(fleet) as store:
        assert len(store.events()) == 4
    assert not store_path(fleet).exists()


def test_who_follows_insists(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A copy would never change: events -f says so instead of waiting for ever."""
    path = write_inventory(folder)
    duckctl(["events", "--inventory", str(path)])
    with without_rights(folder):
        assert duckctl(["events", "-f", "--inventory", str(path)]) == 1
    assert f"may not write in the folder {folder}" in capsys.readouterr().err
