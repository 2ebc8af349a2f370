"""The fleet at work: joins the ducks, loads them, opens the compute session, and keeps it so.

``start()`` does it once and raises what went wrong. Then a monitor thread looks at the heartbeats
a few times per second. A duck that fell silent, restarted or faulted makes the whole fleet refuse
calls at once (``problem()``), is joined and loaded again with a growing pause between attempts,
and when all ducks are ready the session is opened anew.

Threads: the monitor only looks and decides; everything that may wait for a duck (join, load, open)
runs as a job of a pool with one thread per duck, so one slow duck delays nobody's heartbeat.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

from host_runtime import wire
from host_runtime.errors import HostError
from host_runtime.fleet.cache import CacheConfig, check_piece_size, slice_for
from host_runtime.fleet.config import FleetConfig
from host_runtime.fleet.keeper import Keeper, failure_state, watch
from host_runtime.fleet.kernel_file import KernelFile
from host_runtime.fleet.loader import LoadCancelledError, PieceBudget
from host_runtime.fleet.pins import IdentityError
from host_runtime.fleet.scrub import Scrubber, ScrubCounters, ScrubTarget
from host_runtime.fleet.status import (
    LOG_LEVELS,
    DuckReport,
    DuckState,
    EventLog,
    FleetEvent,
    Stragglers,
    log,
)
from host_runtime.fleet.versions import MisfitError, Needs, facts_of, find_misfit
from host_runtime.transport import Transport, TransportCode, TransportError

WATCH_PERIOD_S = 0.1
HELLO_TIMEOUT_MS = 1500
OPEN_TIMEOUT_MS = 10_000
LEAVE_TIMEOUT_MS = 300
READ_AHEAD_BYTES = 2 << 30
PROGRESS_PERIOD_S = 2.0
OPEN_RETRY_S = 1.0
CLOSE_WAIT_S = 10.0
# A duck that served this long is well again: its next failure is met without a pause.
STABLE_S = 10.0


class FleetStartError(HostError):
    """At least one duck did not come up; ``duck_names`` are those."""

    def __init__(self, message: str, duck_names: Sequence[str], hint: str) -> None:
        super().__init__(message, hint)
        self.duck_names = list(duck_names)


@dataclass(frozen=True)
class FleetProblem:
    """Why no call is possible now."""

    message: str
    duck_names: tuple[str, ...] = field(default=())


ProgressCallback = Callable[[int, int], None]  # bytes done, bytes in all
OpenRequest = Callable[[int], wire.Open]  # from the largest core count of the ducks


class FleetManager:
    """Owns the keepers of all ducks and the monitor; the transport belongs to the caller."""

    def __init__(
        self,
        fleet: FleetConfig,
        cache: CacheConfig,
        kernel: KernelFile,
        transport: Transport,
        open_request: OpenRequest,
        silence_ms: int,
        clock: Callable[[], float] = time.monotonic,
        scrub_pause_s: float = 0.0,
    ) -> None:
        self._transport = transport
        self._kernel_id = kernel.sha256
        self._open_request = open_request
        self._silence_s = silence_ms / 1000
        self._clock = clock
        self._events = EventLog()
        self._stragglers = Stragglers()
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._opening: Future[None] | None = None
        self._open_retry_at = 0.0
        self._problem: FleetProblem | None = FleetProblem("the fleet was not started")
        budget = PieceBudget(READ_AHEAD_BYTES)
        self._keepers = [
            Keeper(transport, duck, slice_for(cache, duck.slot, len(fleet.ducks)), kernel, budget)
            for duck in fleet.ducks
        ]
        self._needs = [
            Needs(
                transport.build, kernel.abi_version, kernel.cpu_features, keeper.part.region_bytes
            )
            for keeper in self._keepers
        ]
        self._scrubber = Scrubber(
            transport,
            [ScrubTarget(k.duck.slot, k.duck.name, k.part.pieces) for k in self._keepers],
            scrub_pause_s,
            lambda index: self._keepers[index].state is DuckState.SERVING,
            lambda: sum(transport.duck_status(k.duck.slot).calls for k in self._keepers),
            self._damaged,
        )
        self._pool = ThreadPoolExecutor(len(self._keepers) + 1, thread_name_prefix="fleet")
        self._monitor = threading.Thread(target=self._run, name="fleet-monitor", daemon=True)

    # ---- start and stop ------------------------------------------------------------------------
    def start(self, progress: ProgressCallback | None = None) -> None:
        """Join, check, load and open; raises HostError naming every duck that is in the way."""
        for keeper in self._keepers:
            for piece in keeper.part.pieces:
                check_piece_size(piece)
        self._start_join()
        self._start_load(progress or self._log_progress)
        self._open()
        self._monitor.start()
        self._scrubber.start()

    def close(self) -> None:
        """Ends jobs and the monitor, then the compute session. The transport stays open."""
        self._stopping.set()
        self._wake.set()
        self._set_problem(FleetProblem("the fleet was closed"))
        self._cancel_loads()
        self._scrubber.close()
        if self._monitor.is_alive():
            self._monitor.join(CLOSE_WAIT_S)
        self._pool.shutdown(wait=True, cancel_futures=True)
        try:
            self._transport.session_close()
        except TransportError as error:
            self._events.add("fleet", f"closing the session: {error.message}", logging.DEBUG)

    # ---- what others ask -----------------------------------------------------------------------
    def problem(self) -> FleetProblem | None:
        """None while calls are possible. Cheap: one attribute."""
        return self._problem

    def reports(self) -> list[DuckReport]:
        reports = [keeper.report() for keeper in self._keepers]
        return self._stragglers.named(
            [
                replace(report, counters={**report.counters, **_scrub_counters(scrubbed)})
                for report, scrubbed in zip(reports, self._scrubber.counters, strict=True)
            ]
        )

    def events(self) -> list[FleetEvent]:
        return self._events.recent()

    def names(self, indices: Sequence[int]) -> list[str]:
        return [self._keepers[index].duck.name for index in indices]

    def call_failed(self, error: TransportError) -> None:
        """A call ended with this error: mark the ducks it names and let the monitor act."""
        state = failure_state(error)
        if state is None:
            return
        with self._lock:
            for index in error.ducks:
                keeper = self._keepers[index]
                if keeper.state is DuckState.SERVING:
                    self._mark(keeper, state, error.message)
            self._update_problem()
        self._wake.set()

    def _damaged(self, index: int, text: str) -> None:
        """A duck's memory differs: it leaves the session, and the monitor loads what lacks."""
        with self._lock:
            keeper = self._keepers[index]
            if keeper.state is DuckState.SERVING:
                self._mark(keeper, DuckState.FAULTED, text)
            self._update_problem()
        self._wake.set()

    # ---- start, step by step -------------------------------------------------------------------
    def _start_join(self) -> None:
        jobs = [self._pool.submit(self._join, index) for index in range(len(self._keepers))]
        failures = _failures(jobs)
        if not failures:
            return
        names = [self._keepers[index].duck.name for index, _ in failures]
        message = "; ".join(str(error) for _, error in failures)
        hints = dict.fromkeys(error.hint for _, error in failures if error.hint)
        raise FleetStartError(message, names, "; ".join(hints))

    def _start_load(self, progress: ProgressCallback) -> None:
        """All ducks at once; the first failure ends the other loads too."""
        jobs = [self._pool.submit(self._load, index) for index in range(len(self._keepers))]
        total = sum(keeper.part.region_bytes for keeper in self._keepers)
        try:
            pending = set(jobs)
            while pending:
                progress(sum(keeper.bytes_done for keeper in self._keepers), total)
                done, pending = wait(pending, PROGRESS_PERIOD_S, FIRST_EXCEPTION)
                if any(job.exception() is not None for job in done):
                    break
        finally:  # after Ctrl-C or a failure no load goes on behind the caller's back
            if not all(job.done() and job.exception() is None for job in jobs):
                self._cancel_loads()
        failures = [
            (index, error)
            for index, error in _failures(jobs)
            if not isinstance(error, LoadCancelledError)
        ]
        if failures:
            names = [self._keepers[index].duck.name for index, _ in failures]
            message = "; ".join(dict.fromkeys(str(error) for _, error in failures))
            raise FleetStartError(message, names, failures[0][1].hint)
        progress(total, total)

    def _cancel_loads(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()

    def _log_progress(self, done: int, total: int) -> None:
        self._events.add("fleet", f"weights in place: {done / total:.0%} of {total} bytes")

    # ---- jobs: they may wait for a duck --------------------------------------------------------
    def _join(self, index: int) -> None:
        """HELLO and version check; raises HostError with the duck's name in it."""
        keeper = self._keepers[index]
        try:
            info = self._transport.hello(index, HELLO_TIMEOUT_MS).info
        except IdentityError as error:
            self._mark(keeper, DuckState.WRONG_IDENTITY, error.message)
            raise
        except TransportError as error:
            stale = error.code is TransportCode.VERSION
            state = DuckState.WRONG_VERSION if stale else DuckState.UNREACHABLE
            self._mark(keeper, state, error.message)
            raise
        except HostError as error:  # without its pins the host knows no duck
            self._mark(keeper, DuckState.UNREACHABLE, error.message)
            raise
        facts = facts_of(info)
        misfit = find_misfit(keeper.duck, facts, self._needs[index])
        if misfit is not None:
            self._mark(keeper, DuckState.WRONG_VERSION, misfit.text)
            self._transport.detach(index)
            raise MisfitError(keeper.duck.name, misfit)
        keeper.facts = facts
        self._mark(keeper, DuckState.IDLE, "")

    def _load(self, index: int) -> None:
        keeper = self._keepers[index]
        self._mark(keeper, DuckState.LOADING, "")
        try:
            report = keeper.load()
        except HostError as error:
            if not isinstance(error, LoadCancelledError):  # told by who wanted the load
                self._set_state(keeper, DuckState.IDLE, str(error))
            raise
        self._events.add(keeper.duck.name, str(report))
        slow = report.slow_link(keeper.facts.link_mbps) if keeper.facts else None
        if slow:
            self._events.add(keeper.duck.name, slow, logging.WARNING)
        self._mark(keeper, DuckState.READY, "")

    def _revive(self, index: int) -> None:
        """Join and load a duck that went away; failures set the time of the next attempt."""
        keeper = self._keepers[index]
        try:
            if keeper.state is DuckState.FAULTED:
                self._leave_session(index)
            self._join(index)
            self._load(index)
        except HostError as error:
            if keeper.state is DuckState.IDLE:  # joined; what happened before was told by _mark
                self._events.add(keeper.duck.name, str(error), logging.WARNING)
        except Exception as error:
            # A bug or a full memory: told like any failure, and tried again with a pause.
            text = f"{type(error).__name__}: {error}"
            self._set_state(keeper, DuckState.IDLE, text)
            if self._events.add(keeper.duck.name, text, logging.WARNING):
                log.exception("%s: loading failed", keeper.duck.name)
            raise
        finally:
            keeper.put_off(self._clock())
            self._wake.set()

    def _leave_session(self, index: int) -> None:
        """Close what is left of a session that failed; a duck that can't answer needs none."""
        close = bytes(ctypes.sizeof(wire.Done))
        with contextlib.suppress(TransportError):
            self._transport.request(index, wire.MessageType.CLOSE, close, LEAVE_TIMEOUT_MS)

    def _open(self) -> None:
        """Open the compute session on all ducks; on an error marks the ducks it names.

        A ready duck is nobody's yet: one that another host has loaded since refuses the ids, is
        FAULTED by that, and loaded again by what it tells then.
        """
        everyone = range(len(self._keepers))
        weights_ids = {keeper.duck.slot: keeper.part.set_id for keeper in self._keepers}
        cores = [keeper.facts.core_count for keeper in self._keepers if keeper.facts]
        try:
            request = self._open_request(max(cores))
            request.kernel_id[:] = list(self._kernel_id)
            self._transport.session_open(everyone, request, OPEN_TIMEOUT_MS, weights_ids)
        except TransportError as error:
            with self._lock:
                state = failure_state(error) or DuckState.FAULTED
                for index in error.ducks:
                    self._mark(self._keepers[index], state, error.message)
                    self._keepers[index].put_off(self._clock())
            raise
        with self._lock:
            for keeper in self._keepers:
                keeper.serving_since = self._clock()
                self._mark(keeper, DuckState.SERVING, "")
                self._events.settle(keeper.duck.name)
            self._update_problem()
        self._events.settle("fleet")
        self._events.add("fleet", f"serving with {len(self._keepers)} ducks")

    def _reopen(self) -> None:
        self._open_retry_at = self._clock() + OPEN_RETRY_S
        try:
            self._open()
        except HostError as error:
            self._events.add("fleet", f"opening the session: {error}", logging.WARNING)
        except Exception:
            log.exception("opening the session failed")
            raise
        finally:
            self._wake.set()

    # ---- the monitor ---------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._wake.wait(WATCH_PERIOD_S)
                self._wake.clear()
                if not self._stopping.is_set():
                    self._turn()
        except BaseException as error:  # nobody would notice dead ducks any more: refuse calls
            self._stopping.set()
            self._set_problem(FleetProblem(f"the fleet's monitor ended: {error!r}"))
            raise

    def _turn(self) -> None:
        """One look at every duck, and the jobs that follow from it."""
        now = self._clock()
        with self._lock:
            is_opening = self._opening is not None and not self._opening.done()
            for index, keeper in enumerate(self._keepers):
                link = self._transport.duck_status(index)
                serving_s = 0.0 if is_opening else now - keeper.serving_since
                verdict = watch(keeper.state, link, serving_s, self._silence_s)
                if verdict is not None:
                    self._mark(keeper, *verdict)
                if keeper.state is DuckState.SERVING and serving_s > STABLE_S:
                    keeper.attempts = 0
                # Joining begins a new session with the duck, which would spoil an OPEN under way.
                if not is_opening and keeper.wants_revival(now):
                    keeper.job = self._pool.submit(self._revive, index)
            self._update_problem()
            if not is_opening and self._wants_opening(now):
                self._opening = self._pool.submit(self._reopen)
        if self._stragglers.is_due(now):
            self._stragglers.look([keeper.report() for keeper in self._keepers], now)

    def _wants_opening(self, now: float) -> bool:
        states = {keeper.state for keeper in self._keepers}
        settled = states <= {DuckState.READY, DuckState.SERVING}
        return settled and DuckState.READY in states and now >= self._open_retry_at

    def _mark(self, keeper: Keeper, state: DuckState, detail: str) -> None:
        if self._set_state(keeper, state, detail):
            text = f"{state}: {detail}" if detail else str(state)
            self._events.add(keeper.duck.name, text, LOG_LEVELS[state])

    def _set_state(self, keeper: Keeper, state: DuckState, detail: str) -> bool:
        """True when that is something new."""
        with self._lock:
            changed = (keeper.state, keeper.detail) != (state, detail)
            keeper.state, keeper.detail = state, detail
            return changed

    def _update_problem(self) -> None:
        if self._stopping.is_set():
            return
        away = [keeper for keeper in self._keepers if keeper.state is not DuckState.SERVING]
        if not away:
            self._set_problem(None)
            return
        message = "; ".join(keeper.describe() for keeper in away)
        self._set_problem(FleetProblem(message, tuple(keeper.duck.name for keeper in away)))

    def _set_problem(self, problem: FleetProblem | None) -> None:
        self._problem = problem


def _scrub_counters(scrubbed: ScrubCounters) -> dict[str, float]:
    return {
        "scrubbed_pieces": float(scrubbed.pieces),
        "scrubbed_bytes": float(scrubbed.bytes),
        "scrub_damaged": float(scrubbed.damaged),
        "scrub_passes": float(scrubbed.passes),
    }


def _failures(jobs: Sequence[Future[None]]) -> list[tuple[int, HostError]]:
    """Waits for all jobs; (index, error) of those that failed. Other exceptions pass through."""
    failures: list[tuple[int, HostError]] = []
    for index, job in enumerate(jobs):
        error = job.exception()
        if isinstance(error, HostError):
            failures.append((index, error))
        elif error is not None:
            raise error
    return failures
