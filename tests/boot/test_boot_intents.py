"""What ducks boot next: the file of intents, its rules, and commands that change it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from boot_kit import make_fleet

from duckctl.boot.intents import INVENTORY_INTENT, Intent, IntentError, Intents


@pytest.fixture
def intents(tmp_path: Path) -> Intents:
    return Intents(tmp_path / "boot/intents.json", lambda: 7.0)


def test_nobody_has_an_intent_at_first(intents: Intents) -> None:
    """No file: every duck follows the inventory."""
    assert intents.read() == {}
    assert intents.of("duck01") == INVENTORY_INTENT


def test_t26_a_one_shot_ends_with_hello_and_what_stood_before_is_back(intents: Intents) -> None:
    """Standing local, once an image, hello: local again; a second hello changes nothing (T26)."""
    intents.set_local("duck01", reason="has a disk")
    intents.set_image("duck01", "linux", one_shot=True)
    intents.set_image("duck01", "duckos", one_shot=True)
    assert intents.of("duck01").image == "duckos"
    assert intents.hello("duck01")
    assert intents.of("duck01") == Intent("local", None, False, "has a disk", 7.0)
    assert not intents.hello("duck01")
    assert intents.of("duck01").action == "local"


def test_a_hold_ends_with_hello_or_clear(intents: Intents) -> None:
    """A held duck keeps what it was to boot; holding twice is holding once."""
    intents.set_image("duck01", "linux", one_shot=True)
    intents.hold("duck01", "loops")
    intents.hold("duck01", "loops more")
    assert intents.of("duck01").reason == "loops"
    assert intents.hello("duck01")
    assert intents.read() == {}
    intents.hold("duck02", "loops")
    assert intents.clear("duck02")
    assert not intents.clear("duck02")


def test_a_new_order_replaces_a_hold(intents: Intents) -> None:
    """An operator who sets an image has seen the loop."""
    intents.hold("duck01", "loops")
    intents.set_image("duck01", "linux")
    assert intents.of("duck01") == Intent("image", "linux", False, "", 7.0)


def test_hellos_are_told_once(intents: Intents) -> None:
    """The boot service takes the names of ducks that came up."""
    assert intents.take_hellos() == []
    intents.hello("duck01")
    intents.hello("duck02")
    assert intents.take_hellos() == ["duck01", "duck02"]
    assert intents.take_hellos() == []


def test_a_damaged_file_is_named(intents: Intents) -> None:
    """Neither overwritten nor taken for empty."""
    intents.path.parent.mkdir()
    for text in ("{", '{"schema_version": 9, "ducks": {}}',
                 '{"schema_version": 1, "ducks": {"a": {"action": "x"}}}'):  # fmt: skip
        intents.path.write_text(text)
        with pytest.raises(IntentError, match=r"intents\.json"):
            intents.read()
        with pytest.raises(IntentError):
            intents.set_local("duck01")
        assert intents.path.read_text() == text


def test_changes_at_once_are_all_kept(intents: Intents) -> None:
    """Eight threads, each for its own ducks: no change is lost."""

    def work(number: int) -> None:
        for step in range(10):
            intents.set_image(f"duck{number}-{step}", "linux")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(intents.read()) == 80


def duckctl(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "duckctl", *words, "--inventory", str(folder / "shelf.yml")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_commands_change_and_show_them(tmp_path: Path) -> None:
    """boot set, status, clear; an image that does not exist is refused."""
    make_fleet(tmp_path)
    assert duckctl(tmp_path, "boot", "set", "duck[01-02]", "local", "--once").returncode == 0
    shown = duckctl(tmp_path, "boot", "status", "--json").stdout
    assert shown.count('"action": "local"') == 2
    refused = duckctl(tmp_path, "boot", "set", "duck03", "nothing")
    assert refused.returncode == 2
    assert "there is no image 'nothing'" in refused.stderr
    cleared = duckctl(tmp_path, "boot", "clear", "all")
    assert "cleared: duck01, duck02" in cleared.stderr


def test_config_is_printed_and_nothing_written(tmp_path: Path) -> None:
    """`boot config` needs no rights and leaves no file."""
    make_fleet(tmp_path)
    done = duckctl(tmp_path, "boot", "config", "--mode", "proxy")
    assert done.returncode == 0
    assert "dhcp-range=set:dom0,tag:!noboot,198.18.0.0,proxy" in done.stdout
    assert not (tmp_path / "boot").exists()
    assert duckctl(tmp_path, "boot", "config", "--mode", "some").returncode == 2
