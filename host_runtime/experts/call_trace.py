"""The host's side of a call trace: which layer a call was for, and when it was waited for.

The transport keeps what the ducks told (``Transport.trace``); both are joined by ticket:
numbers of calls begin anew with each compute session. All times are seconds of the host's
monotonic clock.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

TRACE_CALLS_MAX = 65536  # kTraceCallsMax of the transport
CALL_NUMBER_BITS = 32  # of a ticket; the session is above them


class DuckEntry(Protocol):
    """struct duckhost_trace_entry."""

    call: int
    duck: int
    session: int
    submit_ns: int
    sent_ns: int
    done_ns: int
    start_ns: int
    clock_error_ns: int
    kernel_ns: int
    queue_ns: int


@dataclass(frozen=True)
class DuckPlace:
    """Name and domain of a duck, by its index."""

    name: str
    domain: str


@dataclass
class HostCall:
    """One call as the host saw it; the wait is open until the result is there."""

    layer: int
    tokens: int
    wait_begin_s: float | None = None
    wait_end_s: float | None = None


def ticket_of(session: int, call: int) -> int:
    """The ticket of a call that is told by session and number."""
    return session << CALL_NUMBER_BITS | call


class CallRecorder:
    """The last ``calls`` calls, by their tickets."""

    def __init__(self, calls: int) -> None:
        self._calls_max = calls
        self._calls: OrderedDict[int, HostCall] = OrderedDict()
        self._lock = threading.Lock()

    def submitted(self, ticket: int, layer: int, tokens: int) -> None:
        with self._lock:
            self._calls[ticket] = HostCall(layer, tokens)
            while len(self._calls) > self._calls_max:
                self._calls.popitem(last=False)

    def waited(self, ticket: int, begin_s: float, end_s: float) -> None:
        with self._lock:
            call = self._calls.get(ticket)
            if call is not None:
                call.wait_begin_s, call.wait_end_s = begin_s, end_s

    def document(
        self, entries: Iterable[DuckEntry], ducks: Sequence[DuckPlace]
    ) -> list[dict[str, Any]]:
        """Finished calls with their ducks' times, oldest first (docs/reference/api.md)."""
        parts: dict[int, list[DuckEntry]] = {}
        for entry in entries:
            parts.setdefault(ticket_of(entry.session, entry.call), []).append(entry)
        with self._lock:
            finished = {t: call for t, call in self._calls.items() if call.wait_end_s is not None}
        return [
            _call_document(finished[ticket], own, ducks)
            for ticket, own in parts.items()
            if ticket in finished
        ]


def _call_document(
    call: HostCall, parts: Sequence[DuckEntry], ducks: Sequence[DuckPlace]
) -> dict[str, Any]:
    return {
        "layer": call.layer,
        "tokens": call.tokens,
        "submit_s": parts[0].submit_ns / 1e9,
        "sent_s": parts[0].sent_ns / 1e9,
        "wait_begin_s": call.wait_begin_s,
        "wait_end_s": call.wait_end_s,
        "ducks": [
            {
                "name": ducks[part.duck].name,
                "domain": ducks[part.duck].domain,
                "done_s": part.done_ns / 1e9,
                "start_s": part.start_ns / 1e9 if part.start_ns else None,
                "clock_error_s": part.clock_error_ns / 1e9 if part.start_ns else None,
                "queue_s": part.queue_ns / 1e9,
                "kernel_s": part.kernel_ns / 1e9,
            }
            for part in parts
        ],
    }
