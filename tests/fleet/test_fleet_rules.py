"""The pure rules of the fleet: version checks, what heartbeats mean, pauses, bounded events."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import pytest

from host_runtime import wire
from host_runtime.errors import HostError
from host_runtime.fleet.config import DuckConfig
from host_runtime.fleet.keeper import failure_state, watch
from host_runtime.fleet.loader import DuckBusyError, LoadReport, PieceBudget
from host_runtime.fleet.run_once import describe
from host_runtime.fleet.status import (
    EVENTS_KEPT,
    STRAGGLER_LOOK_S,
    DuckReport,
    DuckState,
    EventLog,
    Stragglers,
)
from host_runtime.fleet.told import told_lines
from host_runtime.fleet.versions import DuckFacts, Needs, facts_of, feature_names, find_misfit
from host_runtime.transport import DuckFaultError, DuckLinkStatus, TransportCode, TransportError

DUCK = DuckConfig("d02", "domain1", "10.0.0.2", 7211, 1)
NEEDS = Needs("ab" * 20, wire.KERNEL_ABI_VERSION, wire.CPU_AVX2 | wire.CPU_F16C, 1000)


def good_facts() -> DuckFacts:
    info = wire.Info(
        protocol_version=wire.WIRE_VERSION,
        name=b"d02",
        cpu_model=b"Intel(R) N100",
        cpu_features=wire.CPU_AVX2 | wire.CPU_F16C | wire.CPU_FMA,
        weight_bytes_max=1000,
        abi_version=wire.KERNEL_ABI_VERSION,
        platform=wire.Platform.DUCKOS,
        temperature_mc=41500,
    )
    info.build[:] = list(bytes.fromhex(NEEDS.build))
    return facts_of(info)


def test_a_fitting_duck_has_no_problem() -> None:
    facts = good_facts()
    assert (facts.platform, facts.temperature_c) == ("duckos", 41.5)
    assert find_misfit(DUCK, facts, NEEDS) is None


def test_no_text_of_a_duck_steers_a_terminal() -> None:
    """Escape sequences, C1 bytes, line breaks and broken UTF-8 are shown as question marks."""
    bad = b"\x1b]0;x\x07\x9b2J\n\xc3\xa4"
    info = wire.Info(name=bad, cpu_model=b" " + bad, nic_driver=bad[:12], kernel=bad)
    facts = facts_of(info)
    clean = "?]0;x??2J???"
    assert (facts.name, facts.cpu_model, facts.kernel) == (clean, clean, clean)
    assert facts.nic_driver == clean[:12]
    assert told_lines(b"one\x1bc\ntwo\r\n") == "one?c\ntwo?\n"
    usage = wire.Usage(state=wire.UsageState.FAULTED)
    usage.fault.status, usage.fault.fault_kind = wire.Status.ERR_KERNEL_FAULT, 1
    usage.fault.text = bad
    error = DuckFaultError("d02: fault", code=TransportCode.FAULT, status=usage.fault.status)
    assert describe(usage, error)["text"] == clean


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"protocol_version": 9}, "speaks protocol version 9, this host speaks 2"),
        ({"name": "d01"}, "10.0.0.2:7211 calls itself 'd01': two ducks are swapped"),
        ({"build": "cd" * 20}, "is of build cdcdcdcdcdcd, this host is of build abababababab"),
        ({"abi_version": 7}, "runs kernels of ABI version 7, the kernel file has 1"),
        ({"cpu_features": wire.CPU_AVX2}, r"its CPU (Intel(R) N100) lacks f16c"),
        ({"weight_bytes_max": 999}, "has room for 999 bytes of weights, its slice has 1000"),
    ],
)
def test_each_misfit_is_named(change: dict[str, object], problem: str) -> None:
    facts = replace(good_facts(), **change)  # type: ignore[arg-type] # one field of any type
    found = find_misfit(DUCK, facts, NEEDS)
    assert found is not None and problem in found.text and found.hint


def test_facts_without_sensor_or_name_for_a_number() -> None:
    facts = facts_of(wire.Info(temperature_mc=-(1 << 31), platform=99, name=b"\xff"))
    assert (facts.temperature_c, facts.platform, facts.name) == (
        None,
        "99",
        "?",
    )
    assert feature_names(wire.CPU_AVX2 | 1 << 30) == ["avx2", "bit 30"]


def link(**values: int) -> DuckLinkStatus:
    return DuckLinkStatus(**{"attached": 1, "state": wire.State.SERVING, **values})


@pytest.mark.parametrize(
    ("state", "values", "expected"),
    [
        (DuckState.SERVING, {}, None),
        (DuckState.SERVING, {"heard_age_ns": 2_900_000_000}, None),
        (DuckState.SERVING, {"heard_age_ns": 3_100_000_000}, DuckState.LOST),
        (DuckState.READY, {"heard_age_ns": 3_100_000_000}, DuckState.LOST),
        (DuckState.LOADING, {"heard_age_ns": 9_000_000_000}, None),
        (DuckState.SERVING, {"boot_changed": 1}, DuckState.LOST),
        (DuckState.SERVING, {"attached": 0}, DuckState.LOST),
        (DuckState.SERVING, {"state": wire.State.FAULTED}, DuckState.FAULTED),
        (DuckState.SERVING, {"state": wire.State.READY}, DuckState.LOST),
        (DuckState.SERVING, {"state": wire.State.READY, "heard_age_ns": 1_500_000_000}, None),
        (DuckState.READY, {"state": wire.State.READY}, None),
        (DuckState.LOST, {"heard_age_ns": 1 << 63}, None),
    ],
)
def test_heartbeats(state: DuckState, values: dict[str, int], expected: DuckState | None) -> None:
    verdict = watch(state, link(**values), 5.0, 3.0)
    assert (verdict[0] if verdict else None) == expected


def test_a_fresh_session_is_not_judged_by_an_older_heartbeat() -> None:
    assert watch(DuckState.SERVING, link(state=wire.State.READY), 0.5, 3.0) is None


def transport_error(code: TransportCode, status: int = 0) -> TransportError:
    return TransportError("d02: something", code=code, ducks=(1,), status=status)


def test_what_a_failed_call_says_of_the_duck() -> None:
    assert failure_state(transport_error(TransportCode.UNREACHABLE)) is DuckState.LOST
    assert failure_state(transport_error(TransportCode.DEADLINE)) is DuckState.FAULTED
    fault = transport_error(TransportCode.FAULT, wire.Status.ERR_KERNEL_FAULT)
    assert failure_state(fault) is DuckState.FAULTED
    refused = transport_error(TransportCode.FAULT, wire.Status.ERR_BAD_REQUEST)
    assert failure_state(refused) is None
    assert failure_state(transport_error(TransportCode.USED_UP)) is DuckState.READY
    assert failure_state(transport_error(TransportCode.STATE)) is None


def test_events_are_bounded_and_repeats_are_counted() -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 1
        return now[0]

    events = EventLog(clock)
    for _ in range(10_000):
        events.add("d01", "does not answer")
    assert [(e.text, e.repeats) for e in events.recent()] == [("does not answer", 9_999)]
    for number in range(10_000):
        events.add("d02", f"event {number}")
    assert len(events.recent()) == EVENTS_KEPT
    assert events.recent()[-1].text == "event 9999"


def test_trouble_that_comes_back_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever steps lie between; after the duck was well it is told anew."""
    events = EventLog(lambda: 7.0)
    with caplog.at_level(logging.DEBUG, logger="host_runtime.fleet"):
        for _ in range(100):
            events.add("d01", "idle", logging.DEBUG)
            events.add("d01", "loading", logging.DEBUG)
            events.add("d01", "no such file", logging.WARNING)
        assert [(e.text, e.repeats) for e in events.recent()] == [
            ("idle", 99),
            ("loading", 99),
            ("no such file", 99),
        ]
        events.settle("d01")
        events.add("d01", "no such file", logging.WARNING)
    assert [(e.text, e.repeats) for e in events.recent()][2:] == [
        ("no such file", 99),
        ("no such file", 0),
    ]
    assert [record.levelname for record in caplog.records] == ["DEBUG"] * 2 + ["WARNING"] * 2


def test_a_busy_duck_is_told_in_the_same_words() -> None:
    """How long ago its owner was heard changes with each attempt."""
    assert str(DuckBusyError("d01")) == "d01 is used by another host"


def test_budget_bounds_what_is_in_memory() -> None:
    budget = PieceBudget(100)
    held, most = [0], [0]
    guard = threading.Lock()

    def use(size: int) -> None:
        for _ in range(50):
            with budget.reserve(size):
                with guard:
                    held[0] += size
                    most[0] = max(most[0], held[0])
                with guard:
                    held[0] -= size

    threads = [threading.Thread(target=use, args=(size,)) for size in (30, 40, 50, 60, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] <= 100
    with budget.reserve(500):  # larger than the budget: goes alone
        pass


def test_a_slow_load_is_told() -> None:
    fast = LoadReport(1 << 30, 0, 4.0)  # 268 MB/s on 2.5 Gb/s
    slow = LoadReport(1 << 30, 0, 8.0)
    assert fast.slow_link(2500) is None
    assert slow.slow_link(2500) == "loaded with 134 MB/s, its link of 2500 Mb/s allows 312 MB/s"
    assert slow.slow_link(0) is None  # link unknown


class Rack:
    """Ducks that serve calls; ``told`` names the slow ones."""

    def __init__(self, *names: str) -> None:
        self.stragglers = Stragglers()
        self.now = 1000.0
        self.counts = {name: [0, 0.0] for name in names}
        self.away: set[str] = set()
        self.stragglers.look(self.reports(), self.now)

    def reports(self) -> list[DuckReport]:
        return [
            DuckReport(
                name,
                "",
                DuckState.LOST if name in self.away else DuckState.SERVING,
                "",
                {"calls": float(calls), "kernel_ns": us * 1e3},
            )
            for name, (calls, us) in self.counts.items()
        ]

    def serve(self, calls: int, seconds: float, **kernel_us: float) -> None:
        for name, us in kernel_us.items():
            self.counts[name][0] += calls
            self.counts[name][1] += calls * us
        self.now += seconds
        self.stragglers.look(self.reports(), self.now)

    def told(self) -> dict[str, str]:
        named = self.stragglers.named(self.reports())
        return {report.name: report.detail for report in named if report.detail}


def test_a_slow_duck_is_told() -> None:
    """From the median on by half; a duck that is away has its own detail."""
    rack = Rack("d01", "d02", "d03", "d04", "d05")
    rack.serve(1000, 60.0, d01=100, d02=210, d03=110, d04=90, d05=149)
    assert rack.told() == {"d02": "its kernel takes 1.9 x the usual time"}
    rack.away.add("d02")
    assert rack.told() == {}


def test_a_duck_that_becomes_slow_is_told_within_two_windows() -> None:
    """However many calls were good before; and when it is well again it is named no longer."""
    rack = Rack("d01", "d02", "d03")
    for _ in range(10):
        rack.serve(100_000, 60.0, d01=100, d02=100, d03=100)
    assert rack.told() == {}
    rack.serve(1000, 60.0, d01=100, d02=100, d03=300)
    assert rack.told() == {"d03": "its kernel takes 3.0 x the usual time"}
    rack.serve(1000, 59.0, d01=100, d02=100, d03=100)
    assert set(rack.told()) == {"d03"}
    rack.serve(1000, 1.0, d01=100, d02=100, d03=100)
    assert rack.told() == {}


def test_a_window_has_enough_calls_and_the_same_ducks() -> None:
    """Few calls make it longer; one duck alone is never slow; a duck that left begins it anew."""
    rack = Rack("d01", "d02", "d03")
    rack.serve(199, 60.0, d01=100, d02=100, d03=900)
    assert rack.told() == {}
    rack.serve(1, 60.0, d01=100, d02=100, d03=900)
    assert set(rack.told()) == {"d03"}
    rack.away.add("d02")
    rack.serve(1000, 60.0, d01=100, d03=900)
    assert rack.told() == {}
    alone = Rack("d01")
    alone.serve(1000, 60.0, d01=900)
    assert alone.told() == {}


def test_looks_are_some_seconds_apart() -> None:
    stragglers = Stragglers()
    assert stragglers.is_due(0.0)
    stragglers.look([], 0.0)
    assert not stragglers.is_due(STRAGGLER_LOOK_S - 0.1)
    assert stragglers.is_due(STRAGGLER_LOOK_S)


def test_errors_carry_what_to_do() -> None:
    error = HostError("what happened", "do this")
    assert (str(error), error.message, error.hint) == ("what happened", "what happened", "do this")
