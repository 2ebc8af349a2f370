"""A server's trace of its expert calls as bars: host, transport, and each duck's own clock.

The document of ``GET /trace`` (docs/reference/api.md) has seconds of the host's monotonic clock.
Times of a duck were moved to that clock by the server: a heartbeat tells the duck's time between
its sending and its answer, so the error is at most half a round trip, which each bar names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from duckctl.tracing import Bar

# Between two calls that are further apart the host did nothing for this request.
HOST_GAP_S_MAX = 1.0


def call_bars(document: Mapping[str, Any]) -> list[Bar]:
    """Bars of all calls of a trace document, absolute times."""
    calls: Sequence[Mapping[str, Any]] = sorted(document["calls"], key=lambda c: c["submit_s"])
    bars = [*_host_bars(calls)]
    for call in calls:
        bars += _transport_bars(call)
        for part in call["ducks"]:
            bars += _duck_bars(call, part)
    return bars


def _label(call: Mapping[str, Any]) -> str:
    tokens = call["tokens"]
    return f"layer {call['layer']}" + (f", {tokens} tokens" if tokens > 1 else "")


def _host_bars(calls: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """What the host computes between two calls, and its waiting for them."""
    bars = []
    for before, call in pairwise(calls):
        begin, end = before["wait_end_s"], call["submit_s"]
        if 0 < end - begin <= HOST_GAP_S_MAX:
            bars.append(Bar("host", "model", f"before {_label(call)}", begin, end - begin))
    for call in calls:
        waited = call["wait_end_s"] - call["wait_begin_s"]
        bars.append(Bar("host", "waiting for ducks", _label(call), call["wait_begin_s"], waited))
    return bars


def _transport_bars(call: Mapping[str, Any]) -> list[Bar]:
    """Per domain: sending, and gathering until its last duck's result is whole."""
    domains: dict[str, list[Mapping[str, Any]]] = {}
    for part in call["ducks"]:
        domains.setdefault(part["domain"], []).append(part)
    bars = []
    for domain, parts in domains.items():
        submit, sent = call["submit_s"], call["sent_s"]
        done = max(part["done_s"] for part in parts)
        bars.append(Bar("transport", domain, f"send {_label(call)}", submit, sent - submit))
        bars.append(Bar("transport", domain, f"gather {_label(call)}", sent, done - sent))
    return bars


def _duck_bars(call: Mapping[str, Any], part: Mapping[str, Any]) -> list[Bar]:
    """Queue, kernel and reply by the duck's own clock; none before its clock is known."""
    start, kernel = part["start_s"], part["kernel_s"]
    if start is None:
        return []
    facts = {"clock error µs": round(part["clock_error_s"] * 1e6, 1)}
    name, label = part["name"], _label(call)
    end = start + kernel
    bars = [
        Bar(name, "queue", label, start - part["queue_s"], part["queue_s"], facts),
        Bar(name, "kernel", label, start, kernel, facts),
    ]
    if part["done_s"] > end:
        bars.append(Bar(name, "reply", label, end, part["done_s"] - end, facts))
    return bars


def shifted(bars: Sequence[Bar], origin_s: float) -> list[Bar]:
    """The bars with times after `origin_s`."""
    return [
        Bar(b.process, b.track, b.label, b.start_s - origin_s, b.duration_s, b.facts) for b in bars
    ]
