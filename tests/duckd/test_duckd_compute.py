"""Proves that a call is computed exactly once and its result arrives whole, and that the compute
session belongs to one host at a time."""

from __future__ import annotations

import random
import secrets
import struct
import time
from collections.abc import Callable
from pathlib import Path

import duckd_client as wire
import pytest
from duckd_client import Client, Fault, fragments
from duckd_process import DuckProcess

Kernel = Callable[..., bytes]


def collect_all(client: Client, wanted: set[int]) -> dict[int, bytes]:
    """Results of several calls, in whatever order their fragments come."""
    parts: dict[int, dict[int, bytes]] = {sequence: {} for sequence in wanted}
    done: dict[int, bytes] = {}
    while len(done) < len(wanted):
        packet = client.expect(wire.RESULT)
        of_call = parts[packet.sequence]
        of_call[packet.fragment_index] = packet.payload[8:]
        if len(of_call) == max(1, -(-packet.message_bytes // packet.fragment_bytes)):
            done[packet.sequence] = b"".join(of_call[i] for i in range(len(of_call)))
    return done


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1408, 1409, 14336, 100_000])
@pytest.mark.parametrize("stride", [64, 1408, 8896])
def test_sizes_and_strides(duck: DuckProcess, kernel: Kernel, size: int, stride: int) -> None:
    data = secrets.token_bytes(size)
    with duck.serving(kernel("echo")) as client:
        assert client.call(data, stride) == data


@pytest.mark.parametrize("policy", ["block", "sleep", "spin"])
def test_poll_policies(tmp_path: Path, kernel: Kernel, policy: str) -> None:
    with (
        DuckProcess(tmp_path, "--poll", policy) as duck,
        duck.serving(kernel("echo")) as client,
    ):
        assert client.info[199] == ["spin", "sleep", "block"].index(policy)
        for i in range(50):
            assert client.call(b"%d" % i * 500) == b"%d" % i * 500


def test_kernel_finds_what_the_abi_promises(tmp_path: Path, kernel: Kernel) -> None:
    weights = bytes(range(1, 201))
    with DuckProcess(tmp_path, "--pin", cores=2) as duck, duck.client() as client:
        client.load(wire.WEIGHTS_REGION, weights)
        client.load(wire.KERNEL_REGION, kernel("echo"))
        assert client.open(cores=0, scratch=1 << 20).status == wire.OK
        answer = client.call(b"CORE" + bytes(4))
        assert isinstance(answer, bytes)
        assert struct.unpack("<III", answer) == (2, 0, 0x1F80)
        assert client.call(b"SCRA" + bytes(4)) == struct.pack("<I", 1)
        assert client.call(b"WGHT" + bytes(4)) == weights[:64] + bytes(64)  # the read-ahead


def test_four_calls_in_flight(duck: DuckProcess, kernel: Kernel) -> None:
    noise = random.Random(3)
    with duck.serving(kernel("echo")) as client:
        for _ in range(25):
            calls = {}
            for _ in range(4):
                data = noise.randbytes(noise.randrange(1, 5000))
                calls[client.send_call(data)] = data
            assert collect_all(client, set(calls)) == calls


def test_lost_repeated_and_reordered_fragments(duck: DuckProcess, kernel: Kernel) -> None:
    """Only what the duck asks for is sent again; lost results are fetched by NACK and QUERY."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")  # noqa: T201
    noise = random.Random(seed)
    with duck.serving(kernel("echo")) as client:
        for _ in range(30):
            data = noise.randbytes(noise.randrange(1, 60_000))
            client.call_sequence += 1
            sequence = client.call_sequence
            packets = client.call_fragments(data, sequence)
            order = [i for i in range(len(packets)) for _ in range(noise.choice([0, 1, 1, 2]))]
            noise.shuffle(order)
            for index in order:
                client.send_raw(client.seal(packets[index]))
            parts: dict[int, bytes] = {}
            count = len(packets)
            deadline = time.monotonic() + 10
            while len(parts) < count:
                assert time.monotonic() < deadline
                packet = client.receive(0.02)
                if packet is None:
                    client.query(sequence)
                elif packet.sequence != sequence:
                    continue  # a result of the call before, sent twice
                elif packet.type == wire.NACK:
                    for begin, end in wire.ranges_of(packet.payload):
                        for index in range(begin, min(end, count)):
                            if noise.random() < 0.8:
                                client.send_raw(client.seal(packets[index]))
                elif packet.type == wire.RESULT and noise.random() < 0.7:
                    parts[packet.fragment_index] = packet.payload[8:]
                    missing = [i for i in range(count) if i not in parts]
                    if packet.fragment_index == count - 1 and missing:
                        client.send_nack(sequence, [(i, i + 1) for i in missing[:64]])
            assert b"".join(parts[i] for i in range(count)) == data
            while client.receive(0.0) is not None:
                pass
        assert client.stats()["calls_finished"] == 30


def test_repeated_call_is_never_computed_again(duck: DuckProcess, kernel: Kernel) -> None:
    with duck.serving(kernel("echo")) as client:
        assert client.call(b"once") == b"once"
        for _ in range(3):
            client.call_sequence -= 1
            time.sleep(0.002)  # a result is repeated once per millisecond at most
            assert client.call(b"once") == b"once"
        stats = client.stats()
        assert (stats["calls_finished"], stats["calls_repeated"]) == (1, 3)


def test_busy_while_computing(duck: DuckProcess, kernel: Kernel) -> None:
    with duck.serving(kernel("echo")) as client:
        sequence = client.send_call(b"SLOW" + struct.pack("<I", 5))
        client.query(sequence)
        assert client.expect({wire.BUSY, wire.RESULT}).type == wire.BUSY
        assert isinstance(client.collect(sequence), bytes)


def test_broadcast_key(duck: DuckProcess, kernel: Kernel) -> None:
    """D packets are calls of the session that named their domain, and of no other."""
    domain = 0x1234567
    with duck.serving(kernel("echo"), domain_session=domain) as client:
        for i in range(1, 20):
            data = secrets.token_bytes(3000)
            client.call_sequence = i
            for index, part in enumerate(fragments(data, wire.STRIDE)):
                packet = wire.build(
                    wire.CALL,
                    part,
                    session=domain,
                    sequence=i,
                    key=wire.DOMAIN,
                    message_bytes=len(data),
                    index=index,
                )
                sealed = client.seal_domain(packet)
                client.send_raw(sealed)
                client.send_raw(sealed)  # a replay
            assert client.collect(i) == data
        assert client.stats()["dropped_replay"] == 19 * 3
        client.close_session()
        assert client.open().status == wire.OK  # without the domain
        packet = wire.build(wire.CALL, b"x", session=domain, sequence=1, key=wire.DOMAIN)
        client.send_raw(client.seal_domain(packet))
        assert client.silent()


def test_large_result(duck: DuckProcess, kernel: Kernel) -> None:
    size = 900_001
    with duck.serving(kernel("echo")) as client:
        answer = client.call(b"BIG!" + struct.pack("<I", size), stride=8896)
        assert answer == bytes(i * 7 % 256 for i in range(size))


def test_call_larger_than_agreed(duck: DuckProcess, kernel: Kernel) -> None:
    with duck.serving(kernel("echo"), call_bytes=1000) as client:
        fault = client.call(bytes(1001))
        assert isinstance(fault, Fault)
        assert (fault.status, fault.address) == (wire.CALL_TOO_LARGE, 1000)
        client.call_sequence -= 1
        assert client.call(bytes(1000)) == bytes(1000)


def test_open_is_refused_by_name(duck: DuckProcess, kernel: Kernel) -> None:
    with duck.client() as client:
        assert client.open().status == wire.NOT_COMMITTED
        client.load(wire.KERNEL_REGION, kernel("echo"))
        client.reserve(wire.WEIGHTS_REGION, 100)
        assert client.open().status == wire.NOT_COMMITTED
        client.reserve(wire.WEIGHTS_REGION, 0)
        bad_fields: list[tuple[str, dict[str, int]]] = [
            ("flags", {"flags": 4}),
            ("core_count", {"cores": 2}),
            ("call_bytes_max", {"call_bytes": 0}),
            ("call_bytes_max", {"call_bytes": (32 << 20) + 1}),
            ("result_bytes_max", {"result_bytes": 0}),
            ("scratch_bytes", {"scratch": 1 << 40}),
            ("call_time_limit_ms", {"limit_ms": 0}),
            ("domain_session", {"domain_session": 5}),
        ]
        for word, fields in bad_fields:
            reply = client.open(**fields)
            assert reply.status == wire.BAD_REQUEST, fields
            assert word in reply.text
        assert client.ping() == 0
        assert client.open().status == wire.OK
        again = client.open()
        assert again.status == wire.OWNER_BUSY
        assert client.open(flags=wire.TAKEOVER).status == wire.OK
        assert client.call(b"new session") == b"new session"


def test_kernel_that_refuses_to_start(duck: DuckProcess, kernel: Kernel) -> None:
    with duck.client() as client:
        client.load(wire.KERNEL_REGION, kernel("echo", "REFUSE_START"))
        reply = client.open()
        assert (reply.status, reply.detail) == (wire.KERNEL_REFUSED, 42)
        assert reply.text == "weights have the wrong colour"
        assert duck.children() == []


def test_kernel_of_another_abi_or_cpu(duck: DuckProcess, kernel: Kernel) -> None:
    with duck.client() as client:
        client.load(wire.KERNEL_REGION, kernel("echo", "TEST_ABI_VERSION=9"))
        reply = client.open()
        assert (reply.status, reply.value) == (wire.ABI, 1)
        client.load(wire.KERNEL_REGION, kernel("echo", "TEST_CPU_FEATURES=0x80000000"))
        assert client.open().status == wire.UNSUPPORTED


def test_one_host_owns_the_session(duck: DuckProcess, kernel: Kernel) -> None:
    with duck.serving(kernel("echo")) as owner, duck.client() as other:
        reply = other.open(flags=wire.TAKEOVER)
        assert reply.status == wire.OWNER_BUSY
        assert reply.value < 3_000_000_000
        assert other.close_session().status == wire.OWNER_BUSY
        fault = other.call(bytes(400))
        assert isinstance(fault, Fault)
        assert fault.status == wire.NO_SESSION
        assert other.reserve(wire.KERNEL_REGION, 5000).status == wire.OWNER_BUSY
        assert owner.call(b"undisturbed") == b"undisturbed"


@pytest.mark.slow
def test_silent_owner_may_be_replaced(duck: DuckProcess, kernel: Kernel) -> None:
    with duck.serving(kernel("echo")) as owner, duck.client() as other:
        deadline = time.monotonic() + 10
        while other.open(flags=wire.TAKEOVER).status != wire.OK:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        other.call_sequence = 0
        assert other.call(b"mine now") == b"mine now"
        assert owner.open(flags=wire.TAKEOVER).status == wire.OWNER_BUSY


def test_times_in_the_result(duck: DuckProcess, kernel: Kernel) -> None:
    with duck.serving(kernel("echo")) as client:
        client.send_call(b"SLOW" + struct.pack("<I", 1))
        packet = client.expect(wire.RESULT)
        kernel_ns, queue_ns = struct.unpack_from("<II", packet.payload)
        assert kernel_ns > 1_000_000  # a million pauses take longer than a millisecond
        stats = client.stats()
        assert stats["kernel_ns_total"] == stats["kernel_ns_max"] == kernel_ns
        assert stats["queue_ns_total"] == queue_ns
