"""The scrub: ducks hash their weights again, piece by piece, for as long as they serve.

Small boxes have no ECC memory; a flipped bit would give wrong sums for days, and nobody would see
it. Each piece of each duck is compared with the digest of its cache again and again. A duck whose
memory differs leaves the compute session, loads the piece anew and comes back (``on_damage``).

One piece of one duck at a time, preferably while no call runs: hashing takes a core of the duck.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from host_runtime import wire
from host_runtime.fleet.cache import PieceConfig
from host_runtime.fleet.loader import HASH_BYTES_PER_S_MIN, REQUEST_TIMEOUT_MS
from host_runtime.transport import Transport, TransportError

QUIET_S = 1.0  # without calls: then a piece is hashed at once
LOOK_S = 0.25


@dataclass(frozen=True)
class ScrubTarget:
    """One duck: its index in the transport, its name, and the pieces in its memory."""

    index: int
    name: str
    pieces: tuple[PieceConfig, ...]


@dataclass
class ScrubCounters:
    """Totals since the start, for status and metrics."""

    pieces: int = 0
    bytes: int = 0
    damaged: int = 0
    passes: int = 0  # times that all pieces of the duck were compared


class Scrubber:
    """Owns one thread. Between two pieces of the fleet ``pause_s`` pass; 0 switches it off.

    ``is_serving(index)`` is asked before each piece: ducks that do not serve are left out.
    ``calls()`` counts calls; while it grows a piece waits up to ten pauses.
    """

    def __init__(
        self,
        transport: Transport,
        targets: Sequence[ScrubTarget],
        pause_s: float,
        is_serving: Callable[[int], bool],
        calls: Callable[[], float],
        on_damage: Callable[[int, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._targets = targets
        self._pause_s = pause_s
        self._is_serving = is_serving
        self._calls = calls
        self._on_damage = on_damage
        self._clock = clock
        self._next = [0] * len(targets)
        self._stop = threading.Event()
        self.counters = [ScrubCounters() for _ in targets]
        self._thread = threading.Thread(target=self._run, name="fleet-scrub", daemon=True)

    def start(self) -> None:
        if self._pause_s > 0:
            self._thread.start()

    def close(self) -> None:
        """Ends the thread; a piece that is being hashed is waited for."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        turn = 0
        while not self._stop.wait(self._pause_s):
            self._await_quiet()
            if self._stop.is_set():
                return
            place = turn % len(self._targets)
            turn += 1
            if self._is_serving(self._targets[place].index):
                self._scrub_next(place)

    def _await_quiet(self) -> None:
        """Until no call was made for QUIET_S; a busy fleet is scrubbed too, but ten times later."""
        give_up = self._clock() + 10 * self._pause_s
        seen, since = self._calls(), self._clock()
        while self._clock() < give_up and self._clock() - since < QUIET_S:
            if self._stop.wait(min(LOOK_S, self._pause_s)):
                return
            now = self._calls()
            if now != seen:
                seen, since = now, self._clock()

    def _scrub_next(self, place: int) -> None:
        target, counters = self._targets[place], self.counters[place]
        piece = target.pieces[self._next[place]]
        commit = wire.Commit(
            region=wire.Region.WEIGHTS, offset=piece.offset, bytes=piece.size_bytes
        )
        commit.sha256[:] = list(piece.sha256)
        timeout_ms = REQUEST_TIMEOUT_MS + piece.size_bytes * 1000 // HASH_BYTES_PER_S_MIN
        try:
            self._transport.request(
                target.index, wire.MessageType.COMMIT, bytes(commit), timeout_ms
            )
        except TransportError as error:
            if error.status == wire.Status.ERR_DIGEST:
                counters.damaged += 1
                where = "the directory" if piece.layer is None else f"layer {piece.layer}"
                self._on_damage(
                    target.index,
                    f"{target.name}: its memory of {where} no longer has the cache's digest",
                )
            return  # a duck that is gone is the monitor's business
        counters.pieces += 1
        counters.bytes += piece.size_bytes
        self._next[place] = (self._next[place] + 1) % len(target.pieces)
        counters.passes += self._next[place] == 0
