"""One request at the engine, seen from the event loop.

The engine's iterator blocks, so each request has one thread that hands its events to the loop. The
number of such threads is bounded by the engine's admission (active sequences plus its queue).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

from host_runtime.engine import (
    ContextTooLongError,
    FinishedEvent,
    InvalidRequestError,
    QueueFullError,
    SamplingParams,
)
from host_runtime.errors import HostError
from host_runtime.experts.base import DuckStatus, ExpertsUnavailableError
from host_runtime.server.engine_port import EnginePort, Event, HandlePort
from host_runtime.server.errors import ApiError, bad_request, ducks_unavailable
from host_runtime.server.limits import FINISH_WAIT_S, RETRY_AFTER_S

INTERNAL_ERROR = "internal error"
"""How the engine's message of a defect begins; what follows is for the log, not for clients."""


class Generation:
    """A submitted request. Use as an async context manager: leaving it cancels what still runs."""

    def __init__(self, handle: HandlePort, engine: EnginePort, deadline_s: float) -> None:
        self._handle = handle
        self._engine = engine
        self.deadline_s = deadline_s
        self._ends_at = time.monotonic() + deadline_s
        self._expired = False
        # As long as the answer at most (max_context tokens), when the client reads slowly.
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self.finished: FinishedEvent | None = None
        # A client that doesn't read keeps next_event from being called; the engine stops anyway.
        self._timer = self._loop.call_later(deadline_s, self._expire)
        threading.Thread(target=self._pump, name="request-events", daemon=True).start()

    def cancel(self) -> None:
        """Ask the engine to stop; it still sends its final event."""
        self._handle.cancel()

    def close(self) -> None:
        """Cancel what still runs; nothing is wanted of this request any more."""
        self._timer.cancel()
        if self.finished is None:
            self.cancel()

    def _expire(self) -> None:
        self._expired = True
        self.cancel()

    async def next_event(self, wait_s: float) -> Event | None:
        """The next event, or None after ``wait_s`` of silence.

        Raises ApiError when the request failed or its deadline has passed.
        """
        left_s = self._ends_at - time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, min(wait_s, left_s))):
                event = await self._queue.get()
        except TimeoutError:
            if left_s > wait_s:
                self._check_engine()
                return None
            self.cancel()
            raise self._too_late() from None
        if event is None:
            raise _internal("the engine ended the request without a result")
        if isinstance(event, FinishedEvent):
            self.finished = event
            if event.reason == "error":
                raise failure(event.error or "unknown failure", self._engine)
            if event.reason == "cancelled" and self._expired:
                raise self._too_late()
        return event

    def _too_late(self) -> ApiError:
        return ApiError(
            504,
            f"the answer took longer than the server's limit of {self.deadline_s:g} s",
            kind="timeout_error",
            code="request_deadline_exceeded",
        )

    def _check_engine(self) -> None:
        """After a silence: an engine that has ended will never send the rest."""
        status = self._engine.status()
        if not status.ready and all(duck.ready for duck in status.ducks):
            raise _internal(status.reason)

    async def wait_finished(self) -> None:
        """Wait, with a limit, for the final counts of a request that was cancelled because its
        answer is complete."""
        ends_at = time.monotonic() + FINISH_WAIT_S
        while self.finished is None and (left_s := ends_at - time.monotonic()) > 0:
            try:
                await self.next_event(left_s)
            except ApiError:
                break

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _pump(self) -> None:
        try:
            for event in self._handle.events():
                self._put(event)
            self._put(None)
        except RuntimeError:  # the loop has closed: the server is going down
            self._handle.cancel()

    def _put(self, event: Event | None) -> None:
        self._loop.call_soon_threadsafe(self._queue.put_nowait, event)


def submit(
    engine: EnginePort,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    *,
    deadline_s: float,
    prompt_field: str,
) -> Generation:
    """Hand a request to the engine; every refusal becomes the right ApiError."""
    refuse_unless_ready(engine)
    try:
        handle = engine.submit(prompt_ids, params)
    except ContextTooLongError as error:
        raise bad_request(str(error), prompt_field, "context_length_exceeded") from None
    except QueueFullError as error:
        raise ApiError(
            429,
            f"{error}; try again in {RETRY_AFTER_S} s",
            kind="rate_limit_error",
            code="queue_full",
            headers={"Retry-After": str(RETRY_AFTER_S)},
        ) from None
    except InvalidRequestError as error:
        raise bad_request(str(error)) from None
    except ExpertsUnavailableError as error:
        raise ducks_unavailable(str(error)) from None
    except HostError as error:  # the engine is stopping
        raise ApiError(
            503, error.message, kind="service_unavailable_error", code="server_stopping"
        ) from None
    return Generation(handle, engine, deadline_s)


def refuse_unless_ready(engine: EnginePort) -> None:
    """503 that names the ducks, when one of them isn't serving."""
    status = engine.status()
    if not status.ready:
        away = "; ".join(_why(duck) for duck in status.ducks if not duck.ready)
        raise ducks_unavailable(f"not ready: {away or status.reason}")


def failure(message: str, engine: EnginePort) -> ApiError:
    """The client's error for a request that failed at the engine."""
    if message.startswith(INTERNAL_ERROR):
        return _internal("internal error of the engine; the server's log has the details")
    status = engine.status()
    if status.ready:
        return _internal(message)
    unnamed = [_why(duck) for duck in status.ducks if not duck.ready and duck.name not in message]
    return ducks_unavailable(f"{message} ({'; '.join(unnamed)})" if unnamed else message)


def _why(duck: DuckStatus) -> str:
    if duck.name in duck.detail:
        return duck.detail
    return f"{duck.name} is {duck.state}: {duck.detail}".removesuffix(": ")


def _internal(message: str) -> ApiError:
    return ApiError(500, message, kind="server_error", code="generation_failed")
