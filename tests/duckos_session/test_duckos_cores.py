"""Proves how duckos uses its cores: who faults is named, what a call costs is counted, and nothing
leaks over many sessions."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import packing
import pytest
import running
from duckd_client import (
    KERNEL_REGION,
    MEMORY_LIMIT,
    NO_MEMORY,
    NOT_COMMITTED,
    OK,
    ONE_SHOT,
    REBOOT,
    TIME_LIMIT,
    WEIGHTS_REGION,
    Client,
    Fault,
)
from duckos_guest import DuckosGuest, need_qemu
from test_duckd_hostile import ATTACKS, KILLED, MEMORY, attack, start

from duckctl.bench.harness import scratch_bytes
from duckctl.native import native_path

Kernel = Callable[..., bytes]
SEED = 20261130


@pytest.fixture(autouse=True)
def _needs() -> None:
    need_qemu()


def test_other_core_is_named(tmp_path: Path, kernel: Kernel) -> None:
    """A fault on core 1 is core 1's, and stops core 0 too."""
    with DuckosGuest(tmp_path, cores=2) as guest, guest.client() as client:
        start(client, kernel("other_core"), cores=2)
        fault = client.call(b"x" * 8)
        assert isinstance(fault, Fault)
        assert (fault.kind, fault.core) == (MEMORY, 1)
        client.load(KERNEL_REGION, kernel("other_core", "ENDLESS"))
        assert client.open(cores=2, limit_ms=300).status == OK
        fault = client.fault_of()
        assert (fault.status, fault.kind) == (TIME_LIMIT, KILLED)
        start(client, kernel("echo"), cores=2)
        assert client.call(b"fine") == b"fine"


def counted(client: Client, calls: int) -> dict[str, float]:
    """What STATS says per call, over this many echo calls."""
    before = client.stats()
    for number in range(calls):
        assert client.call(b"%d" % number * 100) == b"%d" % number * 100
    after = client.stats()
    return {name: (after[name] - before[name]) / calls for name in after}


def test_data_path_of_one_core(tmp_path: Path, kernel: Kernel) -> None:
    """Spinning: one ring switch per call, no interrupt but the watchdog's, nothing allocated."""
    with DuckosGuest(tmp_path, cores=1, poll="spin") as guest, guest.client() as client:
        start(client, kernel("echo"))
        per_call = counted(client, 100)
        usage = client.usage()
        assert 1 <= per_call["ring_switches"] < 1.5
        assert per_call["interrupts"] < 0.5
        assert per_call["allocations"] == 0
        assert per_call["start_cycles_total"] > 0
        assert per_call["reply_cycles_total"] > 0
        assert usage["start_cycles_max"] * 100 >= per_call["start_cycles_total"]
        assert usage["tsc_hz"] > 100_000_000
        assert usage["ring_switches_others"] == 0


def test_cores_behind_the_first_stay_in_ring_3(tmp_path: Path, kernel: Kernel) -> None:
    """Spinning on a core of its own: entered once, no switch and no interrupt for any call."""
    with DuckosGuest(tmp_path, cores=2, poll="spin") as guest, guest.client() as client:
        start(client, kernel("echo"), cores=1)  # CPU 0 only polls the network
        per_call = counted(client, 20)
        usage = client.usage()
        assert per_call["ring_switches"] == 0
        assert per_call["allocations"] == 0
        assert (usage["ring_switches_first"], usage["ring_switches_others"]) == (0, 1)
        assert usage["interrupts"] == 0


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_experts_give_the_harness_bits(tmp_path: Path, cores: int) -> None:
    """The shipped experts kernel on duckos: the same bits as in a process, lossless formats."""
    rng = np.random.default_rng(SEED)
    with DuckosGuest(tmp_path, cores=cores, memory="256M") as guest, guest.client() as client:
        for fmt in packing.LOSSLESS:
            layer = running.make_layer(
                rng, fmt, hidden=256, moe=96, first_row=32, rows=64, experts=4
            )
            x, ids, weights = running.random_call(rng, 256, 3, 2, 4)
            with running.Kernel(layer.region, body="scalar", fmt=fmt) as harness:
                wanted = harness.experts(layer.layer, x, ids, weights)
            client.load(WEIGHTS_REGION, layer.region)
            client.load(KERNEL_REGION, native_path("experts-avx2.elf").read_bytes())
            scratch = scratch_bytes(256, 64, 3, 2, cores)
            assert client.open(cores=cores, scratch=scratch, limit_ms=60_000).status == OK
            message = running.make_call(layer.layer, x, ids, weights)
            for _ in range(3):
                result = client.call(message)
                assert isinstance(result, bytes)
                assert np.array_equal(np.frombuffer(result, np.float32).reshape(3, 256), wanted)
            assert client.close_session().status == OK


def test_one_shot_runs(tmp_path: Path, kernel: Kernel) -> None:
    """Output, report and the three limits' verdicts, on two cores."""
    with DuckosGuest(tmp_path, cores=2) as guest, guest.client() as client:
        client.load(KERNEL_REGION, kernel("echo"))
        assert client.open(flags=ONE_SHOT, cores=2).status == OK
        assert client.call(b"question" * 100) == b"question" * 100
        usage = client.usage()
        assert usage["cycles"] > 0
        assert usage["memory_peak_bytes"] >= 4096
        assert client.close_session().status == OK
        client.load(KERNEL_REGION, kernel("hostile"))
        for number, status, kind in ((3, TIME_LIMIT, KILLED), (55, MEMORY_LIMIT, MEMORY)):
            assert client.open(flags=ONE_SHOT, cores=2, limit_ms=300).status == OK
            fault = client.fault_of(struct.pack("<II", number, 0) * 4)
            assert (fault.status, fault.kind) == (status, kind)


def test_log_and_reboot(tmp_path: Path, kernel: Kernel) -> None:
    """LOG has the console's lines and the core's; REBOOT brings a new boot with empty memory."""
    with DuckosGuest(tmp_path, may_reboot=True) as guest:
        with guest.client() as client:
            start(client, kernel("echo"))
            log = client.log()
            assert "net: address" in log
            assert "compute session open" in log
            boot_id = client.boot_id
            assert client.done(REBOOT, bytes(208)).status == OK
        guest.wait_for_boot(2)
        with guest.client() as client:
            assert client.boot_id != boot_id
            assert client.open().status == NOT_COMMITTED


def test_memory_limit_of_the_boot_options(tmp_path: Path) -> None:
    """memory_limit bounds weights, kernel and session together."""
    limit = 48 << 20
    with DuckosGuest(tmp_path, options="memory_limit=48M") as guest, guest.client() as client:
        assert client.reserve(WEIGHTS_REGION, limit).status == NO_MEMORY
        assert client.reserve(WEIGHTS_REGION, limit - 8192).status == OK
        assert client.reserve(KERNEL_REGION, 4096).status == NO_MEMORY


def free_bytes(client: Client) -> int:
    """What the duck says is left for call buffers and scratch."""
    reply = client.open(scratch=4 << 30)
    assert reply.status == NO_MEMORY
    return reply.value


@pytest.mark.slow
def test_a_thousand_sessions_leak_nothing(tmp_path: Path, kernel: Kernel) -> None:
    """Every second session faults: the free memory, the weights and the last call stay right."""
    weights = bytes(range(256)) * 4096
    attacks = [number for number, _, _ in ATTACKS.values() if number not in (12, 17, 18)]
    small = {"call_bytes": 4096, "result_bytes": 4096, "scratch": 4096}
    with DuckosGuest(tmp_path, cores=2) as guest, guest.client() as client:
        client.load(WEIGHTS_REGION, weights)
        client.load(KERNEL_REGION, kernel("hostile"))
        before = free_bytes(client)
        for number in range(1000):
            assert client.open(cores=1 + number % 2, **small).status == OK
            if number % 2:
                assert isinstance(attack(client, attacks[number // 2 % len(attacks)]), Fault)
            else:
                assert attack(client, 0) is not None
                assert client.close_session().status == OK
        assert free_bytes(client) == before
        assert client.commit(WEIGHTS_REGION, weights).status == OK
        stats = client.stats()
        assert (stats["sessions_opened"], stats["sessions_faulted"]) == (1000, 500)
