"""What ducks boot next: the file of intents, its rules, and commands that change it."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from boot_kit import make_fleet

from duckctl import cli
from duckctl.boot.intents import INVENTORY_INTENT, Intent, IntentError, Intents


@pytest.fixture
def intents(tmp_path: Path) -> Intents:
    return Intents(tmp_path / "boot/intents.json", lambda: 7.0)


def test_a_boot_ends_only_what_was_set_before_it_began(tmp_path: Path) -> None:
    """What is set while a duck runs is for its next boot, whenever this one is seen first."""
    now = [100.0]
    intents = Intents(tmp_path / "intents.json", lambda: now[0])
    intents.set_local("duck01")
    now[0] = 200.0
    intents.set_image("duck01", "duckos", one_shot=True)
    assert not intents.hello("duck01", began_s=199.0)
    assert intents.of("duck01").image == "duckos"
    assert intents.hello("duck01", began_s=201.0)
    assert intents.of("duck01").action == "local"
    now[0] = 300.0
    intents.hold("duck01", "loops")
    assert not intents.hello("duck01", began_s=299.0)
    assert intents.hello("duck01", began_s=301.0)
    assert intents.of("duck01").action == "local"
    assert intents.take_hellos() == ["duck01"] * 4


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


def test_hellos_that_could_not_be_read_come_later(
    intents: Intents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptor is free when they are taken: none is lost, and later ones come after them."""
    intents.hello("duck01")

    def refuse(path: Path, *words: object, **options: object) -> str:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", refuse)
        with pytest.raises(OSError, match="Too many open files"):
            intents.take_hellos()
    intents.hello("duck02")
    assert intents.take_hellos() == ["duck01"]
    assert intents.take_hellos() == ["duck02"]


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


@pytest.mark.slow
def test_the_commands_change_and_show_them(tmp_path: Path) -> None:
    """boot set, status, clear; an image that does not exist is refused."""
    make_fleet(tmp_path)
    assert duckctl(tmp_path, "boot", "set", "duck[01-02]", "local", "--once").returncode == 0
    shown = duckctl(tmp_path, "boot", "status", "--json").stdout
    assert shown.count('"action": "local"') == 2
    told = duckctl(tmp_path, "boot", "set", "duck03", "local", "--json").stdout
    assert json.loads(told) == {
        **{"schema_version": 1, "target": "local", "once": False, "ducks": ["duck03"]},
    }
    told = duckctl(tmp_path, "boot", "clear", "duck03", "--json").stdout
    assert json.loads(told)["cleared"] == ["duck03"]
    refused = duckctl(tmp_path, "boot", "set", "duck03", "nothing")
    assert refused.returncode == 2
    assert "there is no image 'nothing'" in refused.stderr
    cleared = duckctl(tmp_path, "boot", "clear", "all")
    assert "cleared: duck01, duck02" in cleared.stderr


def test_the_next_step_makes_the_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An image of another name than its kind is built with --name; what cannot be a name of an
    image is told so, and the name that means the own disk is none."""
    inventory = ("--inventory", str(make_fleet(tmp_path).path))
    for target, hint in (
        ("duckos", "build it: duckctl image build duckos\n"),
        ("lab-2", "build it: duckctl image build duckos|linux --name lab-2\n"),
        ("Lab_2", "'Lab_2' is no image name"),
    ):
        assert cli.run(["boot", "set", "duck03", target, *inventory]) == 2
        assert hint in capsys.readouterr().err
    (tmp_path / "fleet.pub").write_text(f"duck-p256-public:04{'ab' * 64}\n")
    assert cli.run(["image", "build", "duckos", "--name", "local", *inventory]) == 2
    assert "means the duck's own disk" in capsys.readouterr().err


def test_config_is_printed_and_nothing_written(tmp_path: Path) -> None:
    """`boot config` needs no rights and leaves no file."""
    make_fleet(tmp_path)
    done = duckctl(tmp_path, "boot", "config", "--mode", "proxy")
    assert done.returncode == 0
    assert "dhcp-range=set:dom-dom0,tag:of-dom0,198.18.0.0,proxy" in done.stdout
    assert not (tmp_path / "boot").exists()
    assert duckctl(tmp_path, "boot", "config", "--mode", "some").returncode == 2


def test_the_log_is_shown_and_followed(tmp_path: Path) -> None:
    """`boot log`: one line an event, by duck; --follow tells what is appended, until Ctrl-C."""
    make_fleet(tmp_path)
    log = tmp_path / "boot/http.jsonl"
    log.parent.mkdir()

    def request(path: str, address: str) -> str:
        entry = {"time": 1.5, "domain": "dom0", "address": address, "method": "GET", "path": path,
                 "status": 200, "bytes": 1, "problem": ""}  # fmt: skip
        return json.dumps(entry) + "\n"

    log.write_text(request("/boot.ipxe", "198.18.0.12") + request("/x", "198.18.0.13"))
    shown = duckctl(tmp_path, "boot", "log", "duck02").stdout
    assert shown.endswith("duck02: http /boot.ipxe\n")
    assert "/x" not in shown
    command = [sys.executable, "-m", "duckctl", "boot", "log", "-f", "--json",
               "--inventory", str(tmp_path / "shelf.yml")]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [json.loads(process.stdout.readline())["duck"] for _ in range(2)] == [
            "duck02", "duck03"
        ]  # fmt: skip
        with log.open("a") as file:
            file.write(request("/new", "198.18.0.11"))
        assert json.loads(process.stdout.readline())["file"] == "/new"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130


def test_a_lab_of_processes_has_nothing_to_boot(tmp_path: Path) -> None:
    """Domains on loopback are never served."""
    text = (
        "all: {children: {ducks: {children: {d: {vars: {domain_subnet: 127.21.1.0/24, "
        "domain_host_address: 127.21.1.1}, hosts: {d01: {duck_address: 127.21.1.11}}}}}}}"
    )
    (tmp_path / "shelf.yml").write_text(text)
    done = duckctl(tmp_path, "boot", "serve")
    assert done.returncode == 2
    assert "no domain of shelf is served" in done.stderr
