"""Session and domain keys are replaced in the middle of calls, and no call is lost by that."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from transport_kit import (
    call,
    factor_of,
    load_all,
    open_request,
    running_shelf,
    scale_call,
    scaled_sum,
    serving,
    submit,
    wait_sum,
    wait_until,
)

from host_runtime import wire
from host_runtime.transport import Faults, Transport, TransportOptions

FAULTS = Faults(seed=5, drop=0.03, duplicate=0.03, reorder=0.05, corrupt=0.005)


@pytest.mark.parametrize("faults", [Faults(), FAULTS], ids=["clean", "faulty"])
def test_calls_go_on_while_keys_change(tmp_path: Path, echo_kernel: bytes, faults: Faults) -> None:
    """Keys that last 25 ms: hundreds of calls, four in flight, over dozens of changes."""
    options = TransportOptions(rekey_ms=25)
    values = np.random.default_rng(3).normal(size=4000).astype(np.float32)
    expected = scaled_sum(values, range(3))
    with (
        running_shelf(tmp_path, echo_kernel, [0, 0, 1]) as shelf,
        serving(shelf, options) as transport,
    ):
        transport.set_faults(faults)
        rounds = 0

        def enough() -> bool:
            sessions = [transport.duck_status(duck).rekeys for duck in range(3)]
            domains = [transport.domain_stats(domain).rekeys for domain in range(2)]
            return min(*sessions, *domains) >= 12

        while not enough() and rounds < 2000:
            tickets = [submit(transport, scale_call(values)) for _ in range(4)]
            for ticket in tickets:
                np.testing.assert_array_equal(wait_sum(transport, ticket, 4000), expected)
            rounds += 1
        assert enough(), f"only {rounds} rounds"
        transport.set_faults(Faults())
        if faults == Faults():
            for duck in range(3):
                status = transport.duck_status(duck)
                assert (status.dropped_mac, status.dropped_replay) == (0, 0)


def test_keys_change_after_so_many_packets(tmp_path: Path, echo_kernel: bytes) -> None:
    """By count, also while nothing but heartbeats travels."""
    options = TransportOptions(rekey_packets=40, ping_ms=5)
    with running_shelf(tmp_path, echo_kernel, [0]) as shelf, serving(shelf, options) as transport:
        wait_until(lambda: transport.duck_status(0).rekeys >= 3, 10, "three changes")
        values = np.ones(100_000, np.float32)
        for _ in range(5):
            np.testing.assert_array_equal(
                call(transport, scale_call(values), len(values)), scaled_sum(values, [0])
            )
        wait_until(lambda: transport.domain_stats(0).rekeys >= 1, 10, "a new domain key")


def has_changed(transport: Transport, seen: int) -> bool:
    """True when the keys changed since `seen` changes."""
    return transport.duck_status(0).rekeys > seen


def test_a_session_after_changes_and_another_host(tmp_path: Path, echo_kernel: bytes) -> None:
    """Opening again after changes, and a second host beside, which has keys of its own."""
    options = TransportOptions(rekey_ms=20)
    values = np.ones(10, np.float32)
    with running_shelf(tmp_path, echo_kernel, [0]) as shelf, serving(shelf, options) as transport:
        for _ in range(5):
            seen = transport.duck_status(0).rekeys
            wait_until(partial(has_changed, transport, seen), 5, "a change")
            transport.session_open([0], open_request(), 5000)
            result = call(transport, scale_call(values), 10)
            np.testing.assert_array_equal(result, values * np.float32(factor_of(0)))
        with shelf.transport(options) as other:
            other.hello(0, 3000)
            wait_until(lambda: other.duck_status(0).rekeys >= 3, 5, "changes of the other host")
            kind, _ = other.request(0, wire.MessageType.STATS, bytes(256), 3000)
            assert kind == wire.MessageType.STATS
        transport.session_close()
        load_all(transport, shelf)
