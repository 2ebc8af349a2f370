"""Runs on a flock: killed and gone on with, rolling restarts, boxes that do not come back, and
boxes that nobody knows."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from flock_kit import Count, Flock, running_flock, stranger_mac

from duckctl.boot.intents import Intents
from duckctl.boot.plan import boot_paths
from duckctl.inventory import load_inventory

DUCKS = 6
KILL_POINTS = 10
PROVISION = ("provision", "--skip-self-test", "--timeout", "30", "--yes", "--json")


@pytest.fixture(scope="module")
def flock(tmp_path_factory: pytest.TempPathFactory, flock_program: Path) -> Iterator[Flock]:
    """Six boxes with power switches in two domains, and a stranger; all are off."""
    folder = tmp_path_factory.mktemp("flock")
    made = Flock(folder, flock_program, DUCKS, domains=2, switched=True, strangers=1)
    with running_flock(made, on=False) as running:
        yield running


def reset(flock: Flock) -> None:
    """Dark boxes that are well, no history, no intents."""
    for domain in range(flock.domains):
        flock.ask(domain, "off", "all")
    for index in range(flock.ducks):
        flock.tell(flock.name(index), "heal")
    for file in flock.folder.glob("flock.state.db*"):
        file.unlink()
    for index in range(flock.ducks):
        intents_of(flock).clear(flock.name(index))


@pytest.fixture(autouse=True)
def _begin_anew(flock: Flock) -> None:
    reset(flock)


def intents_of(flock: Flock) -> Intents:
    return Intents(boot_paths(load_inventory(flock.inventory)).intents)


def store_of(flock: Flock) -> Path:
    return flock.folder / "flock.state.db"


def event_count(flock: Flock) -> int:
    """Events so far, read beside the writer."""
    if not store_of(flock).exists():
        return 0
    with sqlite3.connect(f"file:{store_of(flock)}?mode=ro", uri=True) as db:
        try:
            return int(db.execute("SELECT count(*) FROM events").fetchone()[0])
        except sqlite3.OperationalError:  # not written yet
            return 0


def changes(before: dict[str, Count], after: dict[str, Count]) -> dict[str, int]:
    """How often each duck was started meanwhile."""
    return {name: after[name].boots - before[name].boots for name in list(after)[:DUCKS]}


def all_of(flock: Flock, times: int) -> dict[str, int]:
    return {flock.name(index): times for index in range(flock.ducks)}


@pytest.mark.slow
def test_kill_at_ten_points_and_go_on(flock: Flock) -> None:
    """kill -9 of `duckctl provision` at ten points of its history, then the same command again: all
    ducks are ready, and each was started exactly once."""
    before = flock.counts()
    whole = flock.run(*PROVISION)
    assert whole.code == 0, whole.err
    assert changes(before, flock.counts()) == all_of(flock, 1)
    total = event_count(flock)
    killed_at = []
    for point in range(KILL_POINTS):
        reset(flock)
        before = flock.counts()
        running = flock.start_run(*PROVISION)
        while event_count(flock) < point * total // KILL_POINTS:
            assert running.process.poll() is None, running.err.read_text()
            time.sleep(0.002)
        running.kill()
        killed_at.append(event_count(flock))
        again = flock.run(*PROVISION)
        assert again.code == 0, again.err
        assert {duck["state"] for duck in again.document["ducks"]} == {"ready"}
        assert changes(before, flock.counts()) == all_of(flock, 1), f"killed at event {killed_at}"
    assert len(set(killed_at)) >= KILL_POINTS // 2, f"the kills fell together: {killed_at}"


def bring_up(flock: Flock) -> dict[str, Count]:
    """All are ready; gives the counts."""
    finished = flock.run(*PROVISION)
    assert finished.code == 0, finished.err
    return flock.counts()


@pytest.mark.slow
def test_rolling_reboot_of_all(flock: Flock) -> None:
    """--serial 25% of six is one at a time: each obeys one REBOOT, and the next begins when the one
    before is ready again."""
    before = bring_up(flock)
    newest = event_count(flock)
    finished = flock.run("reboot", "--all", "--serial", "25%", "--yes", "--json")
    assert finished.code == 0, finished.err
    after = flock.counts()
    assert changes(before, after) == all_of(flock, 1)
    assert all(after[name].obeyed == before[name].obeyed + 1 for name in all_of(flock, 1))
    events = flock.run("events", "--last", "10000", "--json").document["events"][newest:]
    order = [(e["duck"], e["after"]) for e in events if e["after"] in ("rebooting(power)", "ready")]
    assert len(order) == 2 * DUCKS
    for down, up in zip(order[::2], order[1::2], strict=True):
        assert (down[0], down[1], up[1]) == (up[0], "rebooting(power)", "ready")


@pytest.mark.slow
def test_a_hung_box_is_switched_and_one_that_never_returns_is_named(flock: Flock) -> None:
    """One box hangs and comes back by its power switch; another never fetches its boot file: the
    run ends, and says how far that one came."""
    before = bring_up(flock)
    flock.tell("duck0001", "hang")
    flock.tell("duck0002", "stop", "fetch")
    finished = flock.run(
        *("reboot", "duck[0001-0003]", "--yes", "--timeout", "8", "--json"), timeout_s=120
    )
    assert finished.code == 3
    assert finished.document["failed"] == ["duck0002"]
    ducks = {duck["name"]: duck for duck in finished.document["ducks"]}
    assert ducks["duck0001"]["state"] == "ready"
    assert ducks["duck0003"]["state"] == "ready"
    assert (ducks["duck0002"]["state"], ducks["duck0002"]["step"]) == ("failed", "boot_file")
    assert "duck0002 is failed(boot_file): it asked for an address" in finished.err
    after = flock.counts()
    assert after["duck0001"].switched == before["duck0001"].switched + 1
    assert after["duck0003"].switched == before["duck0003"].switched
    assert after["duck0003"].obeyed == before["duck0003"].obeyed + 1
    flock.tell("duck0002", "heal")
    cured = flock.run("provision", "@failed", "--skip-self-test", "--json")
    assert cured.code == 0, cured.err
    assert [duck["name"] for duck in cured.document["ducks"]] == ["duck0002"]


@pytest.mark.slow
def test_t27_only_ducks_of_the_plan_are_touched(flock: Flock) -> None:
    """Provisioning some ducks leaves all others as they are, dark ones dark and running ones up."""
    before = flock.counts()
    finished = flock.run("provision", "duck0001,duck0002", "--skip-self-test", "--json")
    assert finished.code == 0, finished.err
    middle = flock.counts()
    wanted = all_of(flock, 0) | {"duck0001": 1, "duck0002": 1}
    assert changes(before, middle) == wanted
    preview = flock.run("provision", "--dry-run", "--json").document
    actions = {duck["name"]: duck["action"] for duck in preview["ducks"]}
    assert [name for name, action in actions.items() if action == "keep"] == [
        "duck0001",
        "duck0002",
    ]
    rest = flock.run("provision", "--skip-self-test", "--json")
    assert rest.code == 0, rest.err
    assert changes(before, flock.counts()) == all_of(flock, 1)


@pytest.mark.slow
def test_t26_t55_boot_intent_is_one_shot(flock: Flock) -> None:
    """T26, T55: a duck that is set to boot its own disk is armed for one network boot, says so, and
    falls back to its disk afterwards; the intent ends with its hello."""
    intents = intents_of(flock)
    intents.set_local("duck0003", reason="has a disk")
    preview = flock.run("provision", "duck0003", "--dry-run", "--json").document
    assert preview["ducks"][0]["note"] == "its boot intent is 'local' (has a disk)"
    assert intents.of("duck0003").one_shot is False, "a dry run changed something"
    finished = flock.run("provision", "duck0003", "--skip-self-test", "--json")
    assert finished.code == 0, finished.err
    assert "boots its image once" in finished.err
    assert (intents.of("duck0003").action, intents.of("duck0003").reason) == ("local", "has a disk")


@pytest.mark.slow
def test_a_dry_run_writes_nothing(flock: Flock) -> None:
    """No file of the fleet is made, changed or touched by --dry-run, and no box is switched."""

    def files() -> dict[str, tuple[int, int]]:
        own = ("out", "err", "log", "boot/")
        return {
            str(path.relative_to(flock.folder)): (path.stat().st_size, path.stat().st_mtime_ns)
            for path in flock.folder.rglob("*")
            if path.is_file() and not str(path.relative_to(flock.folder)).startswith(own)
        }

    before, counted = files(), flock.counts()
    for words in (("provision", "--dry-run"), ("reboot", "--all", "--dry-run")):
        assert flock.run(*words).code == 0
    assert (files(), flock.counts()) == (before, counted)


@pytest.mark.slow
def test_an_unknown_box_is_discovered_and_adopted(flock: Flock) -> None:
    """A box that nobody knows asks for an address, is shown by discover, is taken in by one command
    and brought up by the next; an inventory's comment survives."""
    text = flock.inventory.read_text()
    flock.inventory.write_text("# the cellar\n" + text)
    try:
        name = flock.stranger(0)
        flock.ask(0, "on", name)
        give_up = time.monotonic() + 30
        while not (cards := flock.run("discover", "--json").document["cards"]):
            assert time.monotonic() < give_up, "the stranger was not seen"
        assert [(card["mac"], card["domain"]) for card in cards] == [(stranger_mac(0), "domain0")]
        assert flock.run("adopt", stranger_mac(0), "--name", name).code == 0
        assert flock.inventory.read_text().startswith("# the cellar\n")
        story = flock.run("events", name, "--json").document["events"]
        assert [event["after"] for event in story] == ["discovered", "registered"]
        assert flock.run("discover", "--json").document["cards"] == []
        finished = flock.run("provision", name, "--skip-self-test", "--json")
        assert finished.code == 0, finished.err
        (duck,) = finished.document["ducks"]
        assert (duck["name"], duck["state"], duck["mac"]) == (name, "ready", stranger_mac(0))
    finally:
        flock.inventory.write_text(text)


@pytest.mark.slow
def test_two_runs_do_not_work_on_one_fleet(flock: Flock) -> None:
    """The second names the first, and changes nothing."""
    first = flock.start_run(*PROVISION)
    try:
        flock.await_words(first, "looking at", 30)
        second = flock.run("reboot", "duck0001", "--yes")
        assert second.code == 1
        assert "another duckctl works on the fleet 'flock': provision, pid" in second.err
    finally:
        assert flock.finish_run(first, 120).code == 0


@pytest.mark.slow
def test_ctrl_c_ends_at_once_and_says_how_to_go_on(flock: Flock) -> None:
    """SIGINT in the middle: exit code 130 within two seconds, and the same command goes on."""
    running = flock.start_run(*PROVISION)
    flock.await_words(running, "booting(dhcp)", 60)
    begin = time.monotonic()
    running.interrupt()
    finished = flock.finish_run(running, 30)
    assert (finished.code, time.monotonic() - begin < 5) == (130, True)
    assert "the same command goes on with it" in finished.err
    before = flock.counts()
    assert flock.run(*PROVISION).code == 0
    assert max(changes(before, flock.counts()).values()) <= 1
