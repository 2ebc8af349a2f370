"""A thousand boxes, packet by packet: DHCP, TFTP and HTTP by the real boot service, hello by the
real core, brought up by the real `duckctl provision`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from flock_kit import Finished, Flock, running_flock

SECONDS_MAX = 90.0  # on 2 cores, from power-on of all boxes to the end of the run
PEAK_BYTES_MAX = 500 << 20


def bring_up(flock: Flock, timeout_s: float) -> tuple[Finished, float]:
    """Starts a run, switches all boxes on once it asks for that; gives it and the seconds since."""
    process = flock.start_run("provision", "--skip-self-test", "--json")
    flock.await_words(process, "switch on by hand", timeout_s)
    begin = time.monotonic()
    for domain in range(flock.domains):
        flock.ask(domain, "on", "all")
    finished = flock.finish_run(process, timeout_s)
    return finished, time.monotonic() - begin


def check_all_up(flock: Flock, finished: Finished) -> None:
    assert finished.code == 0, finished.err[-2000:]
    ducks = finished.document["ducks"]
    assert {duck["state"] for duck in ducks} == {"ready"}
    assert len(ducks) == flock.ducks
    assert {count.boots for count in flock.counts().values()} == {1}, "a box started over"


@pytest.mark.slow
def test_fifty_boxes_become_ready(tmp_path: Path, flock_program: Path) -> None:
    """50 boxes of all kinds of firmware in 4 domains: each boots once and is verified; the history
    shows every step, and a second run finds nothing to do."""
    flock = Flock(tmp_path, flock_program, ducks=50, domains=4, switched=False)
    with running_flock(flock, on=False):
        finished, _ = bring_up(flock, 120)
        check_all_up(flock, finished)
        events = flock.run("events", "duck0001", "--json").document["events"]
        assert [event["after"] for event in events] == [
            *("registered", "booting(power)", "booting(dhcp)", "booting(boot_file)"),
            *("booting(hello)", "booting(verify)", "ready"),
        ]
        again = flock.run("provision", "--skip-self-test", "--json")
        assert {duck["action"] for duck in again.document["ducks"]} == {"keep"}


@pytest.mark.slow
def test_a_thousand_boxes_become_ready(tmp_path: Path, flock_program: Path) -> None:
    """1,000 boxes switched on at once: all are ready in time, none is lost, in bounded memory."""
    flock = Flock(tmp_path, flock_program, ducks=1000, domains=4, switched=False)
    with running_flock(flock, on=False):
        finished, seconds = bring_up(flock, 300)
        check_all_up(flock, finished)
    ducks = finished.document["ducks"]
    longest = {
        step: max(duck["step_seconds"].get(step, 0.0) for duck in ducks)
        for step in ("dhcp", "boot_file", "hello", "verify")
    }
    message = f"1,000 boxes: {seconds:.1f} s from power-on to the end of the run, at most "
    message += f"{finished.peak_bytes >> 20} MiB; longest wait per step, s: {longest}"
    sys.stdout.write(message + "\n")
    assert seconds <= SECONDS_MAX, message
    assert finished.peak_bytes <= PEAK_BYTES_MAX, message
