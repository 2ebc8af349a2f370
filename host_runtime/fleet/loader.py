"""Loading one duck: kernel and weights, piece by piece, each checked on disk and in the duck.

Order per piece: read it whole and compare its digest (cache.read_piece), send it, COMMIT. The last
COMMIT carries the set's id; until then the duck opens no session, so a load that ends early for
whatever reason leaves a duck that says LOADING, never one that serves half of a model.

Loading again after an interruption asks the duck to COMMIT each piece before sending it: what is
already in its memory needs no second transfer.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from host_runtime import wire
from host_runtime.errors import HostError
from host_runtime.fleet.cache import PieceConfig, SliceConfig, check_piece_size, read_piece
from host_runtime.fleet.config import DuckConfig
from host_runtime.fleet.kernel_file import KernelFile
from host_runtime.fleet.versions import DuckFacts, facts_of
from host_runtime.transport import Progress, Transport, TransportCode, TransportError

REQUEST_TIMEOUT_MS = 5000
# A duck hashes at least this much per second when it checks a piece.
HASH_BYTES_PER_S_MIN = 20 << 20
COMMITS_MAX = 3  # pieces of one duck that are being hashed at a time
# A host that died keeps its session for DUCK_OWNER_SILENT_MS; wait a little longer than that.
BUSY_WAIT_S = wire.OWNER_SILENT_MS / 1000 + 2.0
BUSY_RETRY_S = 0.25
# Share of the link's rate below which a load is called slow.
LINK_SHARE_MIN = 0.8
SLOW_BYTES_MIN = 64 << 20


class DuckBusyError(HostError):
    """Another host owns the duck's compute session."""

    def __init__(self, duck: str) -> None:
        super().__init__(
            f"{duck} is used by another host",
            "stop the other `duckctl serve` that uses this fleet",
        )


class LoadCancelledError(HostError):
    """The load was told to stop."""


class PieceBudget:
    """Bounds the bytes of pieces that all loads together hold in memory."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._used = 0
        self._free = threading.Condition()

    @contextmanager
    def reserve(self, size_bytes: int) -> Iterator[None]:
        """Waits for room; one piece that is larger than the whole budget goes alone."""
        with self._free:
            self._free.wait_for(
                lambda: not self._used or self._used + size_bytes <= self._bytes_max
            )
            self._used += size_bytes
        try:
            yield
        finally:
            with self._free:
                self._used -= size_bytes
                self._free.notify_all()


@dataclass(frozen=True)
class LoadReport:
    """What one load moved, and what it found in place."""

    bytes_sent: int
    bytes_skipped: int
    seconds: float

    @property
    def bytes_per_s(self) -> float:
        return self.bytes_sent / self.seconds if self.seconds > 0 else 0.0

    def __str__(self) -> str:
        if not self.bytes_sent:
            return "its weights were in place"
        return (
            f"{self.bytes_sent / 1e6:.1f} MB of weights sent in {self.seconds:.1f} s "
            f"({self.bytes_per_s / 1e6:.0f} MB/s), {self.bytes_skipped / 1e6:.1f} MB were in place"
        )

    def slow_link(self, link_mbps: int) -> str | None:
        """A sentence when the load was far below what the duck's link can do."""
        link = link_mbps * 1e6 / 8
        if (
            not link
            or self.bytes_sent < SLOW_BYTES_MIN
            or self.bytes_per_s >= link * LINK_SHARE_MIN
        ):
            return None
        return (
            f"loaded with {self.bytes_per_s / 1e6:.0f} MB/s, its link of {link_mbps} Mb/s allows "
            f"{link / 1e6:.0f} MB/s"
        )


class DuckLoader:
    """Loads one duck; ``progress`` is readable meanwhile, ``cancel`` ends the load early."""

    def __init__(
        self,
        transport: Transport,
        index: int,
        duck: DuckConfig,
        part: SliceConfig,
        kernel: KernelFile,
        budget: PieceBudget,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._index = index
        self._duck = duck
        self._part = part
        self._kernel = kernel
        self._budget = budget
        self._clock = clock
        self._cancelled = threading.Event()
        self._count_lock = threading.Lock()
        self._write: Progress | None = None
        self._bytes_done = 0

    @property
    def bytes_total(self) -> int:
        return self._part.region_bytes

    @property
    def bytes_done(self) -> int:
        """Bytes of the weights region that are in the duck by now."""
        with self._count_lock:
            write = self._write
            return self._bytes_done + (write.bytes_done if write is not None else 0)

    def cancel(self) -> None:
        self._cancelled.set()
        write = self._write
        if write is not None:
            write.cancel = 1

    def load(self, facts: DuckFacts) -> LoadReport:
        """Brings kernel and weights into the duck unless they are there. Raises HostError."""
        started = self._clock()
        self._bytes_done = 0
        for piece in self._part.pieces:
            check_piece_size(piece)
        if self._claim():
            # Another host had the duck meanwhile and may have loaded something else.
            facts = facts_of(self._transport.hello(self._index, REQUEST_TIMEOUT_MS).info)
        self._load_kernel()
        if facts.weights_id == self._part.set_id:
            self._bytes_done = self._part.region_bytes
            return LoadReport(0, self._part.region_bytes, self._clock() - started)
        sent = self._load_weights(resume=facts.state == wire.State.LOADING)
        return LoadReport(sent, self._part.region_bytes - sent, self._clock() - started)

    def _claim(self) -> bool:
        """Close the compute session that a dead host left, so that memory may be changed.

        The duck answers BUSY as long as the session's owner is alive. True = it was busy at first.
        """
        try:
            return self._request(
                wire.MessageType.CLOSE, bytes(ctypes.sizeof(wire.Done)), REQUEST_TIMEOUT_MS
            )
        except TransportError as error:
            if error.status != wire.Status.ERR_NO_SESSION:
                raise
            return False

    def _load_kernel(self) -> None:
        data, digest = self._kernel.data, self._kernel.sha256
        self._reserve(wire.Region.KERNEL, len(data), fresh=True)
        self._send(wire.Region.KERNEL, 0, data)
        self._commit(wire.Region.KERNEL, 0, len(data), digest, digest)
        self._bytes_done = 0

    def _load_weights(self, *, resume: bool) -> int:
        """Returns the number of bytes that had to be sent.

        While the duck hashes pieces for their COMMITs (a bare-metal duck several at once), the next
        ones are read, checked and sent. The last COMMIT goes alone: it says that the set is whole.
        """
        self._reserve(wire.Region.WEIGHTS, self._part.region_bytes, fresh=not resume)
        sent = 0
        committed: deque[Future[None]] = deque()
        with ThreadPoolExecutor(COMMITS_MAX, thread_name_prefix="fleet-commit") as committer:
            for piece in self._part.pieces:
                resume = resume and self._is_in_place(piece)
                if resume:
                    self._bytes_done += piece.size_bytes
                    continue
                with self._budget.reserve(piece.size_bytes):
                    self._stop_if_cancelled()
                    self._send(wire.Region.WEIGHTS, piece.offset, read_piece(piece))
                is_last = piece is self._part.pieces[-1]
                while committed and (is_last or len(committed) == COMMITS_MAX):
                    committed.popleft().result()
                committed.append(committer.submit(self._commit_piece, piece))
                sent += piece.size_bytes
            while committed:
                committed.popleft().result()
        return sent

    def _is_in_place(self, piece: PieceConfig) -> bool:
        try:
            self._commit_piece(piece)
        except TransportError as error:
            if error.status in (wire.Status.ERR_DIGEST, wire.Status.ERR_NOT_RESERVED):
                return False
            raise
        return True

    def _commit_piece(self, piece: PieceConfig) -> None:
        set_id = self._part.set_id if piece is self._part.pieces[-1] else None
        self._commit(wire.Region.WEIGHTS, piece.offset, piece.size_bytes, piece.sha256, set_id)

    def _reserve(self, region: wire.Region, size_bytes: int, *, fresh: bool) -> None:
        flags = wire.RESERVE_FRESH if fresh else 0
        self._request(
            wire.MessageType.RESERVE,
            bytes(wire.Reserve(region=region, flags=flags, bytes=size_bytes)),
            REQUEST_TIMEOUT_MS,
        )

    def _send(self, region: wire.Region, offset: int, data: bytes) -> None:
        self._stop_if_cancelled()
        write = Progress()
        self._write = write
        if self._cancelled.is_set():  # cancel() may have come before it could see `write`
            write.cancel = 1
        try:
            self._transport.write(self._index, region, offset, data, write)
        except TransportError as error:
            if error.code is TransportCode.CANCELLED:
                raise LoadCancelledError(f"{self._duck.name}: loading was cancelled") from error
            raise
        finally:
            with self._count_lock:
                self._write = None
                self._bytes_done += write.bytes_done

    def _commit(
        self, region: wire.Region, offset: int, size: int, sha256: bytes, set_id: bytes | None
    ) -> None:
        commit = wire.Commit(region=region, offset=offset, bytes=size)
        commit.sha256[:] = list(sha256)
        if set_id is not None:
            commit.flags = wire.COMMIT_LAST
            commit.set_id[:] = list(set_id)
        timeout_ms = REQUEST_TIMEOUT_MS + COMMITS_MAX * size * 1000 // HASH_BYTES_PER_S_MIN
        self._request(wire.MessageType.COMMIT, bytes(commit), timeout_ms)

    def _request(self, kind: wire.MessageType, payload: bytes, timeout_ms: int) -> bool:
        """One request; while another host owns the duck it is asked again for BUSY_WAIT_S.

        True = it was busy at first.
        """
        give_up = self._clock() + BUSY_WAIT_S
        was_busy = False
        while True:
            self._stop_if_cancelled()
            try:
                self._transport.request(self._index, kind, payload, timeout_ms)
                return was_busy
            except TransportError as error:
                if error.status != wire.Status.ERR_BUSY:
                    raise
                if self._clock() >= give_up:
                    raise DuckBusyError(self._duck.name) from error
            was_busy = True
            self._cancelled.wait(BUSY_RETRY_S)

    def _stop_if_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise LoadCancelledError(f"{self._duck.name}: loading was cancelled")
