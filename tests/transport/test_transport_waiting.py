"""Whoever looks after a domain while calls are waited for, its own thread or the waiting ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from transport_kit import (
    call,
    running_shelf,
    scale_call,
    scaled_sum,
    serving,
    submit,
    wait_until,
)

from host_runtime import wire
from host_runtime.transport import Faults, TransportOptions

POLICIES = [wire.PollPolicy.BLOCK, wire.PollPolicy.SLEEP, wire.PollPolicy.SPIN]
CALLS = 150
VALUES = np.arange(3000, dtype=np.float32) / np.float32(7)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name.lower())
@pytest.mark.parametrize("domains", [[0], [0, 1]], ids=["one-domain", "two-domains"])
def test_waiting_threads_share_the_turns(
    tmp_path: Path, echo_kernel: bytes, domains: list[int], policy: wire.PollPolicy
) -> None:
    """Two threads call one after the other, with loss: every sum is right, keys are replaced and
    heartbeats go on meanwhile."""
    options = TransportOptions(poll_policy=policy, ping_ms=20, rekey_ms=100)
    ducks = list(range(len(domains)))
    expected = scaled_sum(VALUES, ducks)

    def caller(_: int) -> None:
        for _ in range(CALLS):
            found = call(transport, scale_call(VALUES), len(VALUES))
            np.testing.assert_array_equal(found, expected)

    with running_shelf(tmp_path, echo_kernel, domains) as shelf, serving(shelf, options) as held:
        transport = held
        before = [transport.duck_status(duck) for duck in ducks]
        transport.set_faults(Faults(seed=61, drop=0.02))
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(caller, range(2)))
        transport.set_faults(Faults())
        after = [transport.duck_status(duck) for duck in ducks]
        for early, late in zip(before, after, strict=True):
            assert late.calls - early.calls == 2 * CALLS
        wait_until(
            lambda: all(transport.duck_status(duck).rekeys > 0 for duck in ducks), 10, "a new key"
        )


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name.lower())
def test_a_call_that_nobody_waits_for(
    tmp_path: Path, echo_kernel: bytes, policy: wire.PollPolicy
) -> None:
    """After many calls whose waiter took the turns, the domain's own thread finishes this one."""
    options = TransportOptions(poll_policy=policy)
    with running_shelf(tmp_path, echo_kernel, [0]) as shelf, serving(shelf, options) as transport:
        for _ in range(CALLS):
            call(transport, scale_call(VALUES), len(VALUES))
        ticket = submit(transport, scale_call(VALUES))
        wait_until(lambda: transport.duck_status(0).calls == CALLS + 1, 10, "the last call")
        transport.release(ticket)
