"""The times of every duck's part of a call, on the host's clock, while a trace is kept."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from transport_kit import (
    OPEN_MS,
    open_request,
    running_shelf,
    scale_call,
    serving,
    submit,
    wait_sum,
)

from host_runtime.transport import Transport, TransportError, TransportOptions

HEARTBEAT = TransportOptions(ping_ms=20)
CALLS = 12


def one_call(transport: Transport) -> None:
    values = np.ones(700, np.float32)
    wait_sum(transport, submit(transport, scale_call(values)), 700)


def test_each_ducks_times_lie_within_the_call(tmp_path: Path, echo_kernel: bytes) -> None:
    """Handed in, sent, kernel of each duck by its own clock, result: in this order, in bounds."""
    with (
        running_shelf(tmp_path, echo_kernel, [0, 0, 1]) as shelf,
        serving(shelf, HEARTBEAT) as transport,
    ):
        one_call(transport)
        assert transport.trace() == []  # off at first
        transport.set_trace(8)
        time.sleep(0.2)  # some heartbeats, for the clocks
        begin_ns = time.monotonic_ns()
        for _ in range(CALLS):
            one_call(transport)
        end_ns = time.monotonic_ns()
        entries = transport.trace()
        assert [entry.duck for entry in entries] == [0, 1, 2] * 8  # the last eight calls
        numbers = [entry.call for entry in entries[::3]]
        assert numbers == list(range(numbers[0], numbers[0] + 8))
        for first in range(0, len(entries), 3):  # sent: by both domains, one may answer before
            last_ns = max(entry.done_ns for entry in entries[first : first + 3])
            assert all(entry.sent_ns <= last_ns for entry in entries[first : first + 3])
        for entry in entries:
            assert begin_ns <= entry.submit_ns <= entry.sent_ns
            assert entry.submit_ns <= entry.done_ns <= end_ns
            slack_ns = entry.clock_error_ns + 1_000  # and what 64 ns units and reading take
            assert entry.start_ns >= entry.submit_ns - slack_ns
            assert entry.start_ns + entry.kernel_ns <= entry.done_ns + slack_ns
            assert entry.clock_error_ns < 50_000_000
        transport.set_trace(0)
        one_call(transport)
        assert transport.trace() == []


def test_sessions_are_told_apart(tmp_path: Path, echo_kernel: bytes) -> None:
    """Numbers begin anew with each session; an entry's session and number are its call's ticket."""
    values = np.ones(10, np.float32)
    with running_shelf(tmp_path, echo_kernel, [0]) as shelf, serving(shelf) as transport:
        transport.set_trace(8)
        tickets = []
        for _ in range(2):
            for _ in range(2):
                tickets.append(submit(transport, scale_call(values)))
                wait_sum(transport, tickets[-1], 10)
            transport.session_open([0], open_request(), OPEN_MS)
        entries = transport.trace()
    assert [entry.call for entry in entries] == [1, 2, 1, 2]
    assert [entry.session << 32 | entry.call for entry in entries] == tickets


def test_a_trace_has_a_limit(tmp_path: Path, echo_kernel: bytes) -> None:
    """More calls than the limit are refused, and the trace goes on as it was."""
    with running_shelf(tmp_path, echo_kernel, [0]) as shelf, serving(shelf) as transport:
        transport.set_trace(4)
        one_call(transport)
        with pytest.raises(TransportError, match="at most 65536 calls, not 65537"):
            transport.set_trace(65537)
        assert len(transport.trace()) == 1
