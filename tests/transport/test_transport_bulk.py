"""Bulk writes arrive whole under faults (the duck's digest tells), or end in a named error."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from transport_kit import (
    HELLO_MS,
    REQUEST_MS,
    Shelf,
    commit,
    reserve,
    running_shelf,
    wait_until,
)

from host_runtime import wire
from host_runtime.transport import (
    DuckRefusedError,
    DuckUnreachableError,
    Faults,
    Progress,
    Transport,
    TransportCode,
    TransportError,
    TransportOptions,
)

WEIGHTS = wire.Region.WEIGHTS
FAULTS = Faults(seed=21, drop=0.05, duplicate=0.05, reorder=0.05)


def random_bytes(size: int, seed: int) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8).tobytes()


def prepare(transport: Transport, duck: int, size: int) -> None:
    transport.hello(duck, HELLO_MS)
    reserve(transport, duck, WEIGHTS, size)


def write_and_check(transport: Transport, duck: int, size: int, seed: int) -> Progress:
    data = random_bytes(size, seed)
    progress = Progress()
    prepare(transport, duck, size)
    transport.write(duck, WEIGHTS, 0, data, progress)
    commit(transport, duck, WEIGHTS, data)
    assert progress.bytes_done == size
    return progress


def test_all_ducks_at_once_under_faults(tmp_path: Path, echo_kernel: bytes) -> None:
    sizes = [3_000_001, 2 << 20, 1_234_567]
    with running_shelf(tmp_path, echo_kernel, [0, 0, 1]) as shelf, shelf.transport() as transport:
        transport.set_faults(FAULTS)
        with ThreadPoolExecutor(3) as pool:
            jobs = [
                pool.submit(write_and_check, transport, duck, size, 30 + duck)
                for duck, size in enumerate(sizes)
            ]
            progress = [job.result() for job in jobs]
        for duck, size in enumerate(sizes):
            # Repairs stay in proportion: a tenth of the packets is lost or repeated.
            assert 0 < progress[duck].bytes_resent < size / 2
            status = transport.duck_status(duck)
            assert status.bulk_bytes == size
            assert status.nacks_received > 0


@pytest.mark.parametrize("size", [1, 63, 64, 1344, 1345, 65536, 65537])
def test_odd_sizes(tmp_path: Path, echo_kernel: bytes, size: int) -> None:
    with running_shelf(tmp_path, echo_kernel, [0]) as shelf, shelf.transport() as transport:
        write_and_check(transport, 0, size, size)


def test_nothing_is_written_at_once(tmp_path: Path, echo_kernel: bytes) -> None:
    with running_shelf(tmp_path, echo_kernel, [0]) as shelf, shelf.transport() as transport:
        prepare(transport, 0, 100)
        transport.write(0, WEIGHTS, 0, b"")
        with pytest.raises(TransportError, match="region 2, there are 2"):
            transport.write(0, wire.Region.COUNT, 0, b"x")


@pytest.mark.parametrize(("mtu", "chunk_bytes"), [(9000, 1 << 20), (1500, 1 << 20), (9000, 64)])
def test_chunk_and_packet_sizes(
    tmp_path: Path, echo_kernel: bytes, mtu: int, chunk_bytes: int
) -> None:
    options = TransportOptions(bulk_chunk_bytes=chunk_bytes)
    size = 5 << 20 if chunk_bytes > 64 else 100_000
    with (
        running_shelf(tmp_path, echo_kernel, [0], mtu) as shelf,
        shelf.transport(options) as transport,
    ):
        write_and_check(transport, 0, size, 40)
        transport.set_faults(FAULTS)
        write_and_check(transport, 0, size, 41)


def test_pieces_at_offsets(tmp_path: Path, echo_kernel: bytes) -> None:
    data = random_bytes(300_000, 42)
    with running_shelf(tmp_path, echo_kernel, [0]) as shelf, shelf.transport() as transport:
        prepare(transport, 0, len(data))
        for begin in (200_000, 0, 100_000):
            transport.write(0, WEIGHTS, begin, memoryview(data)[begin : begin + 100_000])
        commit(transport, 0, WEIGHTS, data)
        read = wire.Read(region=WEIGHTS, bytes=1000, offset=199_500)
        _, reply = transport.request(0, wire.MessageType.READ, bytes(read), REQUEST_MS)
        assert reply == data[199_500:200_500]


def test_refusals_are_told(tmp_path: Path, echo_kernel: bytes) -> None:
    with running_shelf(tmp_path, echo_kernel, [0]) as shelf, shelf.transport() as transport:
        with pytest.raises(TransportError, match=r"d01 .*is not attached: WRITE needs a HELLO"):
            transport.write(0, WEIGHTS, 0, b"x")
        transport.hello(0, HELLO_MS)
        with pytest.raises(DuckRefusedError, match=r"d01 .*refused WRITE to its weights") as caught:
            transport.write(0, WEIGHTS, 0, bytes(5000))
        assert caught.value.status == wire.Status.ERR_NOT_RESERVED
        reserve(transport, 0, WEIGHTS, 100_000)
        with pytest.raises(DuckRefusedError) as caught:
            transport.write(0, WEIGHTS, 0, bytes(200_000))
        assert caught.value.status == wire.Status.ERR_BAD_RANGE
        data = random_bytes(100_000, 43)
        transport.write(0, WEIGHTS, 0, data)  # the next write is not disturbed
        commit(transport, 0, WEIGHTS, data)
        with pytest.raises(DuckRefusedError, match="digest differs"):
            commit(transport, 0, WEIGHTS, data[:-1] + bytes([data[-1] ^ 1]))


def start_write(
    transport: Transport, duck: int, data: bytes, progress: Progress, found: list[TransportError]
) -> threading.Thread:
    def run() -> None:
        try:
            transport.write(duck, WEIGHTS, 0, data, progress)
        except TransportError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def slow_writer(shelf: Shelf) -> Transport:
    """Paced so that a test can act in the middle of a write."""
    return shelf.transport(TransportOptions(bulk_mbps=40, silence_ms=800, ping_ms=50))


def test_cancel_and_progress(tmp_path: Path, echo_kernel: bytes) -> None:
    data = random_bytes(20 << 20, 44)
    found: list[TransportError] = []
    with running_shelf(tmp_path, echo_kernel, [0]) as shelf, slow_writer(shelf) as transport:
        prepare(transport, 0, len(data))
        progress = Progress()
        thread = start_write(transport, 0, data, progress, found)
        wait_until(lambda: progress.bytes_done > 500_000, 10, "half a megabyte")
        assert transport.duck_status(0).heard_age_ns < 500_000_000  # heartbeats beside the bulk
        progress.cancel = 1
        thread.join(5)
        assert not thread.is_alive()
        assert found[0].code is TransportCode.CANCELLED
        assert "of d01 was cancelled at" in found[0].message
        assert 0 < progress.bytes_done < len(data)
        # The session goes on.
        transport.write(0, WEIGHTS, 0, data[:200_000])
        transport.request(0, wire.MessageType.STATS, bytes(256), REQUEST_MS)


@pytest.mark.slow
def test_a_duck_killed_during_a_write_is_named_and_the_other_goes_on(
    tmp_path: Path, echo_kernel: bytes
) -> None:
    data = random_bytes(6 << 20, 45)
    found: list[TransportError] = []
    with running_shelf(tmp_path, echo_kernel, [0, 0]) as shelf, slow_writer(shelf) as transport:
        progress = [Progress(), Progress()]
        threads = []
        for duck in range(2):
            prepare(transport, duck, len(data))
            threads.append(start_write(transport, duck, data, progress[duck], found))
        wait_until(lambda: progress[0].bytes_done > 300_000, 10, "some progress")
        shelf.ducks[0].kill()
        begin = time.monotonic()
        threads[0].join(10)
        assert time.monotonic() - begin < 3
        threads[1].join(20)
        assert [error.code for error in found] == [TransportCode.UNREACHABLE]
        assert isinstance(found[0], DuckUnreachableError)
        assert found[0].message.startswith("d01 (")
        assert "during the write of its weights (" in found[0].message
        commit(transport, 1, WEIGHTS, data)


def test_pacing_keeps_to_its_rate(tmp_path: Path, echo_kernel: bytes) -> None:
    options = TransportOptions(bulk_mbps=80)
    with running_shelf(tmp_path, echo_kernel, [0]) as shelf, shelf.transport(options) as transport:
        data = random_bytes(3_000_000, 46)
        prepare(transport, 0, len(data))
        begin = time.monotonic()
        transport.write(0, WEIGHTS, 0, data)
        # 10 MB/s, less the burst that may go out at once
        assert time.monotonic() - begin > 0.28


def test_writes_to_one_duck_go_one_after_the_other(tmp_path: Path, echo_kernel: bytes) -> None:
    data = random_bytes(1_000_000, 47)
    with running_shelf(tmp_path, echo_kernel, [0]) as shelf, shelf.transport() as transport:
        prepare(transport, 0, len(data))

        def write_part(i: int) -> None:
            begin = i * 125_000
            transport.write(0, WEIGHTS, begin, data[begin : begin + 125_000])

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write_part, range(8)))
        commit(transport, 0, WEIGHTS, data)
