"""A duck that dies is named within the deadline, and serves again by itself after its return."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from duck_process import running_ducks, wait_until
from random_experts import RandomExperts, random_call
from serving_experts import limit_calls, serving

from duckctl.native import native_path
from host_runtime.experts.base import ExpertsUnavailableError
from host_runtime.experts.remote import RemoteExperts, RemoteOptions
from host_runtime.fleet.cache import load_cache
from host_runtime.fleet.config import load_fleet
from host_runtime.fleet.connect import connect
from host_runtime.fleet.kernel_file import load_kernel_file
from host_runtime.fleet.loader import DuckLoader, PieceBudget
from host_runtime.fleet.manager import FleetStartError
from host_runtime.fleet.status import EVENTS_KEPT
from host_runtime.fleet.versions import facts_of
from host_runtime.transport import TransportOptions

SEED = 31
EXPERTS = RandomExperts(SEED, hidden=128, intermediate=128, experts=2)
CALL = random_call(EXPERTS, SEED, 2, top_k=2)
ERROR_S_MAX = 5.0


def all_ready(remote: RemoteExperts) -> bool:
    return all(status.ready for status in remote.status())


def handles() -> int:
    """Threads and open files of this process."""
    return sum(len(list(Path(f"/proc/self/{kind}").iterdir())) for kind in ("task", "fd"))


def loads(remote: RemoteExperts) -> list[int]:
    """How often each duck was loaded."""
    return [int(status.counters["loads"]) for status in remote.status()]


def probe_command(folder: Path, *more: str) -> list[str]:
    command = [sys.executable, "-m", "host_runtime.fleet.probe", *more]
    command += ["--fleet", str(folder / "fleet.json")]
    return [*command, "--library", str(native_path("libduckhost.so"))]


def call_until_error(remote: RemoteExperts) -> tuple[ExpertsUnavailableError, float]:
    """Call again and again; the first error and the seconds that it took."""
    started = time.monotonic()
    while time.monotonic() < started + 2 * ERROR_S_MAX:
        try:
            remote.submit(1, *CALL).wait()
        except ExpertsUnavailableError as error:
            return error, time.monotonic() - started
    raise AssertionError("no call failed")


def works_again(remote: RemoteExperts, expected: torch.Tensor) -> None:
    wait_until(lambda: all_ready(remote), 60, "all ducks serving")
    assert torch.equal(remote.submit(1, *CALL).wait(), expected)


@pytest.mark.slow
def test_a_trace_tells_the_calls_of_two_sessions_apart(tmp_path: Path) -> None:
    """A revived duck's session numbers its calls from 1 again: each keeps its layer and times."""
    with serving(EXPERTS, tmp_path, 2) as (ducks, remote):
        remote.set_trace(16)
        for layer in (1, 2, 2):
            remote.submit(layer, *CALL).wait()
        ducks[1].kill()
        call_until_error(remote)
        ducks[1].start()
        wait_until(lambda: all_ready(remote), 60, "all ducks serving")
        remote.submit(1, *CALL).wait()
        calls = remote.trace()
    kept = [call["layer"] for call in calls]
    assert kept[:3] == [1, 2, 2] and kept[-1] == 1
    for call in calls:
        assert [duck["name"] for duck in call["ducks"]] == ["d01", "d02"]
        assert call["submit_s"] <= call["wait_begin_s"] <= call["wait_end_s"]
        assert all(duck["done_s"] <= call["wait_end_s"] for duck in call["ducks"])


def test_used_up_call_numbers_cost_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session is opened again by itself: no duck is loaded again, the next call is right."""
    limit_calls(monkeypatch, 4)
    with serving(EXPERTS, tmp_path, 2) as (_, remote):
        expected = remote.submit(1, *CALL).wait()
        error, seconds = call_until_error(remote)
        assert "all 4 call numbers of the compute session are used up" in str(error)
        assert error.duck_names == ["d01", "d02"]
        assert seconds < 1, "it does not wait for credit"
        works_again(remote, expected)
        assert loads(remote) == [1, 1]


@pytest.mark.slow
def test_a_killed_duck_is_named_and_serves_again_after_its_return(tmp_path: Path) -> None:
    with serving(EXPERTS, tmp_path, 3) as (ducks, remote):
        expected = remote.submit(1, *CALL).wait()
        ducks[1].kill()
        error, seconds = call_until_error(remote)
        assert seconds <= ERROR_S_MAX
        assert error.duck_names == ["d02"]
        assert "d02" in str(error)
        # From now on calls fail at once, not after another deadline.
        started = time.monotonic()
        with pytest.raises(ExpertsUnavailableError) as caught:
            remote.submit(1, *CALL).wait()
        assert time.monotonic() - started < 2
        assert caught.value.duck_names == ["d02"]
        states = {status.name: status.ready for status in remote.status()}
        assert states == {"d01": True, "d02": False, "d03": True}
        ducks[1].start()
        works_again(remote, expected)
        assert loads(remote) == [1, 2, 1]


@pytest.mark.slow
def test_calls_in_flight_end_when_a_duck_dies(tmp_path: Path) -> None:
    with serving(EXPERTS, tmp_path, 2) as (ducks, remote):
        expected = remote.submit(1, *CALL).wait()
        ducks[0].signal(signal.SIGSTOP)  # a duck that hangs, with calls on their way to it
        pending = [remote.submit(1, *CALL) for _ in range(3)]
        started = time.monotonic()
        for one in pending:
            with pytest.raises(ExpertsUnavailableError) as caught:
                one.wait()
            assert caught.value.duck_names == ["d01"]
        assert time.monotonic() - started <= ERROR_S_MAX
        ducks[0].signal(signal.SIGCONT)
        works_again(remote, expected)


def test_a_killed_session_is_opened_again(tmp_path: Path) -> None:
    """The duck lives, the process that runs its kernel does not: named, loaded, opened again."""
    with serving(EXPERTS, tmp_path, 2) as (ducks, remote):
        expected = remote.submit(1, *CALL).wait()
        (child,) = Path(f"/proc/{ducks[1].pid}/task/{ducks[1].pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)
        error, seconds = call_until_error(remote)
        assert seconds <= ERROR_S_MAX
        assert error.duck_names == ["d02"]
        works_again(remote, expected)
        assert "d02" in str([event.duck for event in remote.events()])


def test_probing_does_not_disturb_calls(tmp_path: Path) -> None:
    with serving(EXPERTS, tmp_path, 2) as (_, remote):
        expected = remote.submit(1, *CALL).wait()
        command = probe_command(tmp_path, "--stats", "--log", "d01")
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as probe:
            while probe.poll() is None:
                assert torch.equal(remote.submit(1, *CALL).wait(), expected)
            assert probe.stdout is not None
            told = json.loads(probe.stdout.read())["ducks"]
        assert [(duck["state"], duck["error"]) for duck in told] == [("serving", None)] * 2
        assert told[0]["stats"]["calls_finished"] > 0
        assert all_ready(remote) and loads(remote) == [1, 1]


@pytest.mark.slow
def test_a_duck_that_dies_while_it_is_loaded(tmp_path: Path) -> None:
    """At start-up this ends the start with its name; nothing hangs."""
    experts = RandomExperts(SEED, hidden=512, intermediate=512, experts=8)
    cache_file = experts.write_cache(tmp_path / "cache", 2)
    with running_ducks(tmp_path, 2) as (ducks, fleet):
        kernel, library = native_path("experts-avx2.elf"), native_path("libduckhost.so")
        remote = RemoteExperts(fleet, cache_file, kernel, library)
        started = time.monotonic()
        with pytest.raises(FleetStartError) as caught:
            remote.start(lambda done, total: ducks[1].kill())
        assert time.monotonic() - started < 10
        assert caught.value.duck_names == ["d02"]


@pytest.mark.slow
def test_two_ducks_die_and_come_back_one_after_the_other(tmp_path: Path) -> None:
    with serving(EXPERTS, tmp_path, 3) as (ducks, remote):
        expected = remote.submit(1, *CALL).wait()
        ducks[0].kill()
        ducks[2].kill()
        call_until_error(remote)
        wait_until(
            lambda: [s.ready for s in remote.status()] == [False, True, False], 30, "both named"
        )
        with pytest.raises(ExpertsUnavailableError) as caught:
            remote.submit(1, *CALL)
        assert caught.value.duck_names == ["d01", "d03"]
        ducks[2].start()
        wait_until(lambda: remote.status()[2].state == "ready", 30, "d03 loaded")
        with pytest.raises(ExpertsUnavailableError) as caught:
            remote.submit(1, *CALL)
        assert "d01" in caught.value.duck_names
        ducks[0].start()
        works_again(remote, expected)


@pytest.mark.slow
def test_a_quick_restart_is_noticed(tmp_path: Path) -> None:
    """A duck that is back before its silence was long enough still has lost all it had."""
    with serving(EXPERTS, tmp_path, 2) as (ducks, remote):
        expected = remote.submit(1, *CALL).wait()
        ducks[1].kill()
        ducks[1].start()
        wait_until(lambda: loads(remote) == [1, 2], 30, "restart noticed")
        works_again(remote, expected)


@pytest.mark.slow
def test_many_restarts_leave_nothing_behind(tmp_path: Path) -> None:
    options = RemoteOptions(call_deadline_ms=600)
    with serving(EXPERTS, tmp_path, 2, options) as (ducks, remote):
        expected = remote.submit(1, *CALL).wait()
        first = 0
        for number in range(6):
            ducks[0].kill()
            call_until_error(remote)
            ducks[0].start()
            works_again(remote, expected)
            if number == 1:
                first = handles()
        wait_until(lambda: handles() <= first, 10, "threads and files as after the second restart")
        assert threading.active_count() < 12


@pytest.mark.slow
def test_a_duck_that_stays_away_costs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No spinning and no growing log while a duck is gone."""
    options = RemoteOptions(call_deadline_ms=500)
    with serving(EXPERTS, tmp_path, 2, options) as (ducks, remote):
        ducks[1].kill()
        call_until_error(remote)
        with caplog.at_level(logging.DEBUG, logger="host_runtime.fleet"):
            cpu, started = time.process_time(), time.monotonic()
            for _ in range(300):
                with pytest.raises(ExpertsUnavailableError):
                    remote.submit(1, *CALL)
            wait_until(lambda: time.monotonic() > started + 6, 8, "six seconds")
            used = time.process_time() - cpu
        assert len(caplog.records) < 10
        assert len(remote.events()) < EVENTS_KEPT
        # 6 s of watching, pinging and asking again; a spinning thread would use all of them
        assert used < 2.5


@pytest.mark.slow
def test_closing_while_a_duck_is_away_is_quick(tmp_path: Path) -> None:
    with serving(EXPERTS, tmp_path, 2) as (ducks, remote):
        ducks[1].kill()
        call_until_error(remote)
        started = time.monotonic()
        remote.close()
        assert time.monotonic() - started < 5
        with pytest.raises(ExpertsUnavailableError):
            remote.submit(1, *CALL)


@pytest.mark.slow
def test_a_rebooted_duck_is_loaded_again(tmp_path: Path) -> None:
    """REBOOT through the protocol, as `duckctl reboot` does it while the host is serving."""
    with serving(EXPERTS, tmp_path, 2) as (_, remote):
        expected = remote.submit(1, *CALL).wait()
        command = probe_command(tmp_path, "--reboot", "d02")
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert [duck.get("rebooted") for duck in json.loads(done.stdout)["ducks"]] == [None, True]
        wait_until(lambda: loads(remote) == [1, 2], 30, "reboot noticed")
        works_again(remote, expected)


@pytest.mark.slow
def test_a_duck_that_cannot_be_loaded_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It answers, and its weights are damaged on disk: one warning however often it is tried."""
    with serving(EXPERTS, tmp_path, 2) as (ducks, remote):
        expected = remote.submit(1, *CALL).wait()
        file = load_cache(tmp_path / "cache" / "cache.json").slices[1].pieces[1].file
        good = file.read_bytes()
        file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        calm = len(remote.events())
        with caplog.at_level(logging.WARNING, logger="host_runtime.fleet"):
            ducks[1].kill()
            ducks[1].start()
            wait_until(lambda: max(e.repeats for e in remote.events()) >= 4, 20, "five attempts")
        told = [record.message for record in caplog.records if file.name in record.message]
        assert len(told) == 1 and told[0].startswith("d02: ")
        texts = [event.text for event in remote.events()[calm:]]
        assert [text.split(":")[0] for text in texts] == ["lost", "idle", "loading", "weight cache"]
        file.write_bytes(good)
        works_again(remote, expected)


@pytest.mark.slow
def test_pins_that_cannot_be_read_are_told_of_the_duck_that_waits(tmp_path: Path) -> None:
    """A duck restarts while the file is damaged: why it stays away is told; then it serves."""
    with serving(EXPERTS, tmp_path, 2) as (ducks, remote):
        expected = remote.submit(1, *CALL).wait()
        pins = load_fleet(tmp_path / "fleet.json").pins_file
        good = pins.read_text()
        pins.write_text("{")
        ducks[1].kill()
        ducks[1].start()
        wait_until(lambda: "pins file" in remote.status()[1].detail, 10, "the reason")
        assert remote.status()[1].state == "unreachable"
        told = [(event.duck, event.text) for event in remote.events() if "pins" in event.text]
        assert [duck for duck, _ in told] == ["d02"]
        with pytest.raises(ExpertsUnavailableError, match="pins file"):
            remote.submit(1, *CALL)
        pins.write_text(good)
        works_again(remote, expected)


def load_as_another_host(folder: Path, cache_file: Path, kernel: str) -> None:
    """The first duck gets the first slice of this cache; no session is opened."""
    fleet, part = load_fleet(folder / "fleet.json"), load_cache(cache_file).slices[0]
    elf = load_kernel_file(native_path(kernel))
    with connect(fleet, native_path("libduckhost.so"), TransportOptions()) as transport:
        facts = facts_of(transport.hello(0, 3000).info)
        DuckLoader(transport, 0, fleet.ducks[0], part, elf, PieceBudget(1 << 30)).load(facts)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["other weights", "another kernel"])
def test_what_another_host_loaded_into_a_ready_duck_is_not_served(
    tmp_path: Path, what: str
) -> None:
    """d01 waits, loaded, for d02; until the session opens it is nobody's. No wrong sum comes."""
    other = RandomExperts(SEED + 1, hidden=128, intermediate=128, experts=2)
    options = RemoteOptions(call_deadline_ms=500)
    with serving(EXPERTS, tmp_path, 2, options) as (ducks, remote):
        expected = remote.submit(1, *CALL).wait()
        ducks[1].kill()
        ducks[0].kill()
        wait_until(lambda: not any(s.ready for s in remote.status()), 10, "both lost")
        ducks[0].start()
        wait_until(lambda: remote.status()[0].state == "ready", 10, "d01 loaded")
        if what == "other weights":
            cache_file, kernel = other.write_cache(tmp_path / "other", 2), "experts-avx2.elf"
        else:
            cache_file, kernel = tmp_path / "cache" / "cache.json", "experts-scalar.elf"
        load_as_another_host(tmp_path, cache_file, kernel)
        assert remote.status()[0].state == "ready"
        ducks[1].start()
        works_again(remote, expected)
        assert loads(remote) == [3, 2]
        told = [e.text for e in remote.events() if e.duck == "d01" and "faulted" in e.text]
        assert len(told) == 1 and f"OPEN: {what} than this host's" in told[0]
