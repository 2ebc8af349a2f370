"""Proves that bytes reach a region whole whatever the network does to them, and that only what the
duck has hashed itself counts as committed."""

from __future__ import annotations

import hashlib
import random
import secrets
import struct
from pathlib import Path

import duckd_client as wire
import pytest
from duckd_client import WEIGHTS_REGION, Client, Done
from duckd_process import DuckProcess


def transfer(client: Client, data: bytes, chunk: int, stride: int, noise: random.Random) -> None:
    """Up to eight chunks at once over a wire that loses, repeats and reorders."""
    first = client.write_sequence + 1
    chunks: dict[int, list[bytes]] = {}
    for i, offset in enumerate(range(0, len(data), chunk)):
        part = data[offset : offset + chunk]
        chunks[first + i] = client.write_fragments(WEIGHTS_REGION, offset, part, first + i, stride)
    client.write_sequence += len(chunks)
    waiting = sorted(chunks)
    missing = {sequence: set(range(len(chunks[sequence]))) for sequence in waiting}
    while waiting:
        batch = [(s, i) for s in waiting[:8] if s < waiting[0] + 8 for i in missing[s]]
        noise.shuffle(batch)
        batch = [pair for pair in batch for _ in range(noise.choice([0, 1, 1, 1, 2]))]
        batch += [(s, len(chunks[s]) - 1) for s in waiting[:8] if s < waiting[0] + 8]  # probes
        for sequence, index in batch:
            client.send_raw(client.seal(chunks[sequence][index]))
        while (ack := client.receive(0.05)) is not None:
            assert ack.type == wire.WRITE_ACK
            missing[ack.sequence] = {
                i for begin, end in wire.ranges_of(ack.payload) for i in range(begin, end)
            }
            if not missing[ack.sequence] and ack.sequence in waiting:
                waiting.remove(ack.sequence)


@pytest.mark.parametrize(("chunk", "stride"), [(65536, 1344), (10000, 64), (1 << 20, 8896)])
def test_lost_repeated_and_reordered_fragments(duck: DuckProcess, chunk: int, stride: int) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")  # noqa: T201
    noise = random.Random(seed)
    data = noise.randbytes(300_007 if stride > 64 else 60_007)
    with duck.client() as client:
        assert client.reserve(WEIGHTS_REGION, len(data)).status == wire.OK
        transfer(client, data, chunk, stride, noise)
        assert client.commit(WEIGHTS_REGION, data) == Done(wire.OK, 0, 0, "")
        for _ in range(20):
            at = noise.randrange(len(data) - 1000)
            assert client.read(WEIGHTS_REGION, at, 1000) == data[at : at + 1000]


def test_wrong_digest_is_refused_and_named(duck: DuckProcess) -> None:
    data = b"right" * 1000
    with duck.client() as client:
        client.reserve(WEIGHTS_REGION, len(data))
        client.write(WEIGHTS_REGION, data)
        reply = client.commit(WEIGHTS_REGION, data, digest=bytes(32))
        assert reply.status == wire.DIGEST
        assert hashlib.sha256(data).hexdigest() in reply.text
        assert client.ping() == 1  # LOADING
        assert client.commit(WEIGHTS_REGION, data).status == wire.OK
        assert client.ping() == 2  # READY


def test_weights_id_is_the_last_whole_set(duck: DuckProcess) -> None:
    set_id = secrets.token_bytes(32)
    data = secrets.token_bytes(10_000)
    with duck.client() as client:
        client.reserve(WEIGHTS_REGION, len(data))
        client.write(WEIGHTS_REGION, data)
        assert client.commit(WEIGHTS_REGION, data[:6000], last=False).status == wire.OK
        with duck.client() as other:
            assert other.info[204:236] == bytes(32)
        tail = client.commit(WEIGHTS_REGION, data[6000:], 6000, set_id=set_id)
        assert tail.status == wire.OK
        with duck.client() as other:
            assert other.info[204:236] == set_id
            assert other.reserve(WEIGHTS_REGION, len(data)).status == wire.OK  # kept
        with duck.client() as other:
            assert other.info[204:236] == set_id
            assert other.reserve(WEIGHTS_REGION, len(data), wire.FRESH).status == wire.OK
        with duck.client() as other:
            assert other.info[204:236] == bytes(32)


def test_last_piece_with_a_gap_is_refused(duck: DuckProcess) -> None:
    with duck.client() as client:
        client.reserve(WEIGHTS_REGION, 9000)
        reply = client.commit(WEIGHTS_REGION, bytes(4000), last=True)
        assert (reply.status, reply.value) == (wire.NOT_COMMITTED, 4000)


def refused_write(client: Client, region: int, offset: int, data: bytes, stride: int) -> Done:
    client.write_sequence += 1
    for packet in client.write_fragments(region, offset, data, client.write_sequence, stride):
        client.send_raw(client.seal(packet))
    answer = client.expect(wire.DONE)
    assert answer.sequence == 0x80000000 | client.write_sequence
    return wire.parse_done(answer.payload)


def test_writes_that_do_not_fit_are_named(duck: DuckProcess) -> None:
    with duck.client() as client:
        nowhere = refused_write(client, WEIGHTS_REGION, 0, bytes(100), 1344)
        assert nowhere.status == wire.NOT_RESERVED
        client.reserve(WEIGHTS_REGION, 5000)
        for offset, size in [(4999, 2), (5001, 0), (1 << 63, 64), ((1 << 64) - 1, 64), (0, 5001)]:
            reply = refused_write(client, WEIGHTS_REGION, offset, bytes(size), 8896)
            assert (reply.status, reply.value) == (wire.BAD_RANGE, 5000), (offset, size)
        assert refused_write(client, 2, 0, bytes(64), 1344).status == wire.BAD_REQUEST
        large = refused_write(client, WEIGHTS_REGION, 0, bytes((1 << 20) + 1), 8896)
        assert large.status == wire.BAD_REQUEST


def test_reads_that_do_not_fit_are_named(duck: DuckProcess) -> None:
    def read(region: int, size: int, offset: int) -> Done:
        return client.done(wire.READ, struct.pack("<IIQ1008x", region, size, offset))

    with duck.client() as client:
        assert read(WEIGHTS_REGION, 1, 0).status == wire.NOT_RESERVED
        client.reserve(WEIGHTS_REGION, 5000)
        assert read(WEIGHTS_REGION, 1, 5000).status == wire.BAD_RANGE
        assert read(WEIGHTS_REGION, 1024, (1 << 64) - 1024).status == wire.BAD_RANGE
        assert read(WEIGHTS_REGION, 1025, 0).status == wire.BAD_REQUEST
        assert read(7, 1, 0).status == wire.BAD_REQUEST
        assert client.read(WEIGHTS_REGION, 4000, 1000) == bytes(1000)


def test_commits_that_do_not_fit_are_named(duck: DuckProcess) -> None:
    def commit(region: int, flags: int, offset: int, size: int) -> int:
        fields = struct.pack("<IIQQ184x", region, flags, offset, size)
        return client.done(wire.COMMIT, fields).status

    with duck.client() as client:
        assert commit(WEIGHTS_REGION, 0, 0, 1) == wire.NOT_RESERVED
        client.reserve(WEIGHTS_REGION, 5000)
        assert commit(WEIGHTS_REGION, 0, 0, 0) == wire.BAD_RANGE
        assert commit(WEIGHTS_REGION, 0, 4999, 2) == wire.BAD_RANGE
        assert commit(WEIGHTS_REGION, 0, 2, (1 << 64) - 1) == wire.BAD_RANGE
        assert commit(WEIGHTS_REGION, 2, 0, 1) == wire.BAD_REQUEST
        assert commit(2, 0, 0, 1) == wire.BAD_REQUEST


def test_memory_limit(tmp_path: Path) -> None:
    limits = ("--memory-limit", str(8 << 20), "--huge-pages", "never")
    with DuckProcess(tmp_path, *limits) as duck, duck.client() as client:
        most = struct.unpack_from("<Q", client.info, 168)[0]
        assert 7 << 20 < most < 8 << 20
        reply = client.reserve(WEIGHTS_REGION, most + 1)
        assert (reply.status, reply.value) == (wire.NO_MEMORY, most)
        assert client.reserve(WEIGHTS_REGION, 1 << 62).status == wire.NO_MEMORY
        assert client.reserve(WEIGHTS_REGION, (1 << 64) - 1).status == wire.NO_MEMORY
        assert client.reserve(WEIGHTS_REGION, most).status == wire.OK
        # The kernel region shares the limit.
        assert client.reserve(wire.KERNEL_REGION, 1 << 20).status == wire.NO_MEMORY
        assert client.reserve(WEIGHTS_REGION, 1 << 20).status == wire.OK
        assert client.reserve(wire.KERNEL_REGION, 1 << 20).status == wire.OK
        assert client.reserve(wire.KERNEL_REGION, (4 << 20) + 1).status == wire.BAD_REQUEST
        assert client.reserve(2, 1).status == wire.BAD_REQUEST
        assert client.reserve(WEIGHTS_REGION, 1 << 20, 2).status == wire.BAD_REQUEST


def test_ping_is_answered_while_hashing(duck: DuckProcess) -> None:
    """A large COMMIT is hashed in steps: the duck stays reachable, and repeating is harmless."""
    size = 64 << 20
    with duck.client() as client:
        assert client.reserve(WEIGHTS_REGION, size).status == wire.OK
        digest = hashlib.sha256(bytes(size)).digest()
        request = struct.pack("<IIQQ", WEIGHTS_REGION, 0, 0, size) + digest + bytes(152)
        client.sequence += 1
        client.send(wire.COMMIT, request, client.sequence)
        client.send(wire.COMMIT, request, client.sequence)
        client.send(wire.PING, struct.pack("<Q24x", 77), 1)
        assert client.expect({wire.PONG, wire.DONE}).type == wire.PONG
        done = wire.parse_done(client.expect(wire.DONE, 30.0).payload)
        assert done.status == wire.OK
        assert client.silent()
