"""Proves one-shot runs over the protocol: one call, one result, one report, one verdict."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from duckd_client import (
    BAD_REQUEST,
    KERNEL_FAULT,
    KERNEL_REFUSED,
    KERNEL_REGION,
    MEMORY_LIMIT,
    OK,
    ONE_SHOT,
    TIME_LIMIT,
    WEIGHTS_REGION,
    Client,
    Fault,
)
from duckd_process import DuckProcess

Kernel = Callable[..., bytes]
NONE, RUNNING, ENDED, FAULTED = range(4)  # enum duck_usage_state
MEMORY, KILLED = 1, 8


def prepare(client: Client, kernel: bytes, **fields: int) -> None:
    client.load(KERNEL_REGION, kernel)
    assert client.open(flags=ONE_SHOT, **fields).status == OK


def test_one_call_one_result_one_report(duck: DuckProcess, kernel: Kernel) -> None:
    """The result comes when the kernel has returned; the report then tells time and memory."""
    with duck.client() as client:
        assert client.usage()["state"] == NONE
        prepare(client, kernel("echo"))
        assert client.usage()["state"] == RUNNING
        assert client.usage()["wall_ns"] == 0, "the kernel is not entered before its input is there"
        assert client.call(b"question" * 1000) == b"question" * 1000
        usage = client.usage()
        assert (usage["state"], usage["run_mode"]) == (ENDED, 1)
        assert 0 < usage["wall_ns"] < 5_000_000_000
        assert usage["cycles"] > 0
        client.send_call(b"one more")
        assert client.silent(), "there is no second call"
        client.query(1)
        assert client.collect(1) == b"question" * 1000, "the result is kept until CLOSE"
        assert client.close_session().status == OK
        assert client.usage()["wall_ns"] == usage["wall_ns"]


def test_run_mode_and_memory(duck: DuckProcess, kernel: Kernel) -> None:
    """The kernel sees ONE_SHOT; ten pages of scratch written are ten pages more in the report."""
    peaks = []
    for attack in (57, 56):
        with duck.client() as client:
            prepare(client, kernel("hostile"), scratch=1 << 20)
            client.call(struct.pack("<II", attack, 0) * 4)
            peaks.append(client.usage()["memory_peak_bytes"])
            client.close_session()
    assert peaks[1] - peaks[0] == 10 * 4096
    with duck.client() as client:
        prepare(client, kernel("echo"))
        answer = client.call(b"CORE" + bytes(4))
        assert isinstance(answer, bytes)
        assert struct.unpack_from("<2I", answer) == (1, 1)


@pytest.mark.parametrize(
    ("attack", "status", "kind"),
    [(1, KERNEL_FAULT, MEMORY), (3, TIME_LIMIT, KILLED), (55, MEMORY_LIMIT, MEMORY)],
)
def test_verdicts(duck: DuckProcess, kernel: Kernel, attack: int, status: int, kind: int) -> None:
    """Fault, time limit and memory limit are told apart, and the duck takes the next run."""
    with duck.client() as client:
        prepare(client, kernel("hostile"), limit_ms=300)
        fault = client.fault_of(struct.pack("<II", attack, 0) * 4)
        assert (fault.status, fault.kind, fault.call) == (status, kind, 1)
        assert client.usage()["state"] == FAULTED
        prepare(client, kernel("echo"))
        assert client.call(b"fine") == b"fine"


def test_refusals(duck: DuckProcess, kernel: Kernel) -> None:
    """A kernel that refuses the call, or its start, is heard with its own words."""
    with duck.client() as client:
        prepare(client, kernel("echo"))
        fault = client.fault_of(b"BAD!" + bytes(4))
        assert (fault.status, fault.text) == (BAD_REQUEST, "bad call")
        assert client.close_session().status == OK
        prepare(client, kernel("echo", "REFUSE_START"))
        fault = client.fault_of()
        assert (fault.status, fault.text) == (KERNEL_REFUSED, "weights have the wrong colour")


def test_no_result(duck: DuckProcess, kernel: Kernel) -> None:
    """A kernel that ends itself without completing its call has no result."""
    with duck.client() as client:
        client.load(WEIGHTS_REGION, bytes(4096))
        prepare(client, kernel("hostile"))
        fault = client.call(struct.pack("<II", 32, 0) * 4)
        assert isinstance(fault, Fault)
        assert fault.status == KERNEL_FAULT
