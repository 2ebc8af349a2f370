"""One request, measured: tokens with their times, and where the time went.

Definitions (also in docs/reference/bench-serve.md):
    TTFT            request sent -> first token arrived at the client
    prefill tok/s   prompt tokens / TTFT
    TPOT            (last token - first token) / (tokens - 1), by the engine's clock
    decode tok/s    1 / TPOT
    acceptance      accepted drafts / proposed drafts
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from duckctl.bench_serve.cases import Case
from duckctl.chat_client import ChatClient, ServerError


@dataclass(frozen=True)
class Token:
    """A token; times in seconds. ``lane`` 0 carries the last known token, 1 its draft."""

    token_id: int
    engine_s: float  # after the first token, by the engine's clock
    arrival_s: float  # after the request was sent, by the client's clock
    accepted: bool

    @property
    def lane(self) -> int:
        return 1 if self.accepted else 0


@dataclass(frozen=True)
class Stages:
    """Seconds of one request by place. ``kernel`` and ``call`` are those of the slowest duck."""

    request_s: float  # engine: first work to last token
    call_s: float  # host waiting for ducks: wire, queue and kernel; overlapping calls add up
    kernel_s: float  # duck in the kernel
    calls: float  # per duck
    sent_bytes: float  # to all ducks
    received_bytes: float
    resent: float

    def document(self) -> dict[str, float]:
        return {
            "request_ms": 1000 * self.request_s,
            "host_ms": 1000 * max(0.0, self.request_s - self.call_s),
            "wire_and_wait_ms": 1000 * max(0.0, self.call_s - self.kernel_s),
            "kernel_ms": 1000 * self.kernel_s,
            "calls_per_duck": self.calls,
            "sent_bytes": self.sent_bytes,
            "received_bytes": self.received_bytes,
            "resent_packets": self.resent,
        }


@dataclass(frozen=True)
class Sample:
    """One repeat of a case."""

    text: str
    reasoning: str
    tokens: tuple[Token, ...]
    prompt_ids: tuple[int, ...]
    finish_reason: str
    ttft_s: float
    usage: Mapping[str, Any]
    measured: Mapping[str, Any]
    stages: Stages | None  # None without ducks
    first_token_at_s: float = 0.0  # by the engine's monotonic clock
    calls: Mapping[str, Any] | None = None  # the server's trace of this request

    @property
    def tpot_s(self) -> float | None:
        if len(self.tokens) < 2:
            return None
        return (self.tokens[-1].engine_s - self.tokens[0].engine_s) / (len(self.tokens) - 1)

    @property
    def metrics(self) -> dict[str, float]:
        """The numbers that are summed up over repeats."""
        found = {
            "ttft_ms": 1000 * self.ttft_s,
            "prefill_tokens_per_s": len(self.prompt_ids) / self.ttft_s,
        }
        if self.tpot_s:
            found |= {"tpot_ms": 1000 * self.tpot_s, "decode_tokens_per_s": 1 / self.tpot_s}
        return found

    @property
    def acceptance(self) -> float | None:
        proposed = self.measured.get("drafts_proposed")
        return self.measured["drafts_accepted"] / proposed if proposed else None


class _Collector:
    """Puts the documents of one stream together."""

    def __init__(self) -> None:
        self.sent_at = time.monotonic()
        self.text = self.reasoning = self.finish_reason = ""
        self.arrivals: list[tuple[int, float, float, bool]] = []
        self.prompt_ids: tuple[int, ...] = ()
        self.usage: Mapping[str, Any] = {}
        self.measured: Mapping[str, Any] = {}

    def add(self, document: Mapping[str, Any]) -> None:
        """One document of the stream."""
        arrival = time.monotonic() - self.sent_at
        self.usage = document.get("usage") or self.usage
        self.measured = document.get("duckctl") or self.measured
        for choice in document.get("choices", ()):
            delta = choice.get("delta", {})
            self.text += choice.get("text") or delta.get("content") or ""
            self.reasoning += delta.get("reasoning_content") or ""
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            self.prompt_ids = tuple(choice.get("prompt_token_ids") or self.prompt_ids)
            ids = choice.get("token_ids") or ()
            times = choice.get("token_times_s") or [arrival] * len(ids)
            accepted = choice.get("token_accepted") or [False] * len(ids)
            for token_id, time_s, is_draft in zip(ids, times, accepted, strict=True):
                self.arrivals.append((token_id, time_s, arrival, is_draft))


# A token takes one call per MoE layer and lane: some hundred tokens of the largest model.
TRACED_CALLS = 32768


def measure(client: ChatClient, case: Case, model: str, trace: bool = False) -> Sample:
    """Asks once; with ``trace`` the server keeps the times of the request's expert calls."""
    is_traced = trace and client.set_trace(TRACED_CALLS)
    before = duck_counters(client)
    path, body = case.request(model)
    collector = _Collector()
    for document in client.documents(path, body):
        collector.add(document)
    after = duck_counters(client)
    calls = client.trace() if is_traced else None
    if is_traced:
        client.set_trace(0)
    if not collector.arrivals:
        raise ServerError(
            f"case {case.name}: the server sent no token ids",
            "the answer is empty, or the server does not know return_token_ids",
        )
    if cached := (collector.usage.get("prompt_tokens_details") or {}).get("cached_tokens"):
        raise ServerError(f"case {case.name}: {cached} prompt tokens came from a cache, not work")
    first = collector.arrivals[0]
    tokens = tuple(
        Token(token_id, round(time_s - first[1], 6), round(arrival, 6), bool(accepted))
        for token_id, time_s, arrival, accepted in collector.arrivals
    )
    return Sample(
        text=collector.text,
        reasoning=collector.reasoning,
        tokens=tokens,
        prompt_ids=collector.prompt_ids,
        finish_reason=collector.finish_reason,
        ttft_s=first[2],
        usage=collector.usage,
        measured=collector.measured,
        stages=stages(before, after, collector.measured),
        first_token_at_s=first[1],
        calls=calls,
    )


Counters = Mapping[str, Mapping[str, float]]


def duck_counters(client: ChatClient) -> Counters:
    """Counters of each duck by name."""
    ducks = client.readiness().get("ducks") or []
    return {str(duck["name"]): duck.get("counters") or {} for duck in ducks}


def stages(before: Counters, after: Counters, measured: Mapping[str, Any]) -> Stages | None:
    """What the ducks' counters gained during a request that ran alone."""
    if not after:
        return None

    def gained(name: str) -> list[float]:
        return [
            counters.get(name, 0.0) - before.get(duck, {}).get(name, 0.0)
            for duck, counters in after.items()
        ]

    request_s = (
        measured.get("ttft_s", 0.0) - measured.get("queue_s", 0.0) + measured.get("decode_s", 0.0)
    )
    return Stages(
        request_s=request_s,
        call_s=max(gained("call_ns")) / 1e9,
        kernel_s=max(gained("kernel_ns")) / 1e9,
        calls=max(gained("calls")),
        sent_bytes=sum(gained("sent_bytes")),
        received_bytes=sum(gained("received_bytes")),
        resent=sum(gained("resent")),
    )
