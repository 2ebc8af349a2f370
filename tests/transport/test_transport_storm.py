"""Thousands of calls of random sizes under random faults give the bits of a fault-free run."""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from transport_kit import (
    Floats,
    running_shelf,
    scale_call,
    scaled_sum,
    serving,
    submit,
    wait_sum,
)

from host_runtime.transport import Faults, Transport

DUCKS = 3
SEED = 20261130


def storm(transport: Transport, calls: int, chooser: random.Random) -> None:
    """Up to six calls unreleased, waited for in random order, each compared bit for bit."""
    flying: deque[tuple[int, Floats]] = deque()
    generator = np.random.default_rng(chooser.randrange(1 << 30))
    for number in range(calls):
        count = chooser.choice((1, 300, 352, 353, 2000, 9000))
        values = generator.standard_normal(count).astype(np.float32)
        flying.append((submit(transport, scale_call(values)), values))
        if len(flying) == 6 or number == calls - 1:
            chooser.shuffle(flying)
            for _ in range(len(flying) if number == calls - 1 else chooser.randint(1, 6)):
                ticket, sent = flying.popleft()
                total = wait_sum(transport, ticket, len(sent))
                expected = scaled_sum(sent, range(DUCKS))
                assert total.tobytes() == expected.tobytes(), f"call {number}, seed {SEED}"


@pytest.mark.slow
@pytest.mark.parametrize("calls", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_storm(tmp_path: Path, echo_kernel: bytes, calls: int) -> None:
    """10 % loss, duplicates and reordering, 1 % corruption: no call differs, repairs stay few."""
    faults = Faults(seed=SEED, drop=0.1, duplicate=0.1, reorder=0.1, corrupt=0.01)
    with running_shelf(tmp_path, echo_kernel, [0, 0, 1]) as shelf, serving(shelf) as transport:
        before = [transport.duck_status(duck).packets_sent for duck in range(DUCKS)]
        transport.set_faults(faults)
        storm(transport, calls, random.Random(SEED))
        for duck in range(DUCKS):
            status = transport.duck_status(duck)
            sent = status.packets_sent - before[duck]
            assert status.calls == calls
            # One in ten fragments is lost; a repair may be lost again, or asked for twice.
            assert status.fragments_resent < 0.4 * sent
            assert status.queries_sent + status.nacks_sent < 4 * calls
            assert status.dropped_mac > 0, "corruption reached the host and was noticed"
            assert status.dropped_replay > 0, "duplicates reached the host and were noticed"
        injected = transport.domain_stats(0).faults
        for kind in ("dropped", "duplicated", "reordered", "corrupted"):
            assert getattr(injected, kind) > 0, kind
