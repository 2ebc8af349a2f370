"""Counters of the server in Prometheus' text format. Used from the event loop only."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from host_runtime.engine import EngineStatus, RequestStats
from host_runtime.server.answer import tpot_s

TTFT_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
TPOT_BOUNDS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0)
GAUGES = frozenset({"round_trip_ns", "weight_bytes", "weight_bytes_done"})
"""Numbers of a duck that go down as well."""


class Histogram:
    """Cumulative buckets, as Prometheus wants them."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * len(self.bounds)
        self.total = 0.0
        self.count = 0

    def observe(self, value: float) -> None:
        """Count one value."""
        for index, bound in enumerate(self.bounds):
            self.counts[index] += value <= bound
        self.total += value
        self.count += 1

    def lines(self, name: str) -> list[str]:
        """The samples of this histogram."""
        buckets = [
            f'{name}_bucket{{le="{bound:g}"}} {count}'
            for bound, count in zip(self.bounds, self.counts, strict=True)
        ]
        return [
            *buckets,
            f'{name}_bucket{{le="+Inf"}} {self.count}',
            f"{name}_sum {self.total:.9g}",
            f"{name}_count {self.count}",
        ]


class Metrics:
    """Everything counted since the start of the server."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str], int] = defaultdict(int)
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.drafts_proposed = 0
        self.drafts_accepted = 0
        self.ttft = Histogram(TTFT_BOUNDS_S)
        self.tpot = Histogram(TPOT_BOUNDS_S)

    def request_ended(self, endpoint: str, outcome: str) -> None:
        """Count a request by its outcome: a finish reason, an error code or "disconnected"."""
        self.requests[endpoint, outcome] += 1

    def tokens(
        self, prompt_tokens: int, completion_tokens: int, stats: RequestStats | None
    ) -> None:
        """Count the work of one request; a client that left leaves no statistics."""
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens
        if stats is None:
            return
        self.drafts_proposed += stats.drafts_proposed
        self.drafts_accepted += stats.drafts_accepted
        if completion_tokens:
            self.ttft.observe(stats.ttft_s)
        tpot = tpot_s(stats)
        if tpot is not None:
            self.tpot.observe(tpot)

    def render(self, status: EngineStatus) -> str:
        """The page that Prometheus reads."""
        out: list[str] = []
        labelled = {
            f'{{endpoint="{_escape(endpoint)}",outcome="{_escape(outcome)}"}}': count
            for (endpoint, outcome), count in sorted(self.requests.items())
        }
        _family(out, "duckctl_requests_total", "counter", "Requests by outcome", labelled)
        for name, kind, text, value in (
            ("prompt_tokens_total", "counter", "Tokens of prompts", self.prompt_tokens),
            ("completion_tokens_total", "counter", "Tokens of answers", self.completion_tokens),
            ("mtp_drafts_total", "counter", "MTP drafts verified", self.drafts_proposed),
            ("mtp_accepted_total", "counter", "MTP drafts accepted", self.drafts_accepted),
            ("shared_steps_total", "counter", "Decode steps of two requests", status.steps_shared),
            ("requests_active", "gauge", "Requests being decoded", status.active),
            ("requests_queued", "gauge", "Requests waiting", status.queued),
            ("ready", "gauge", "1 when every duck serves", int(status.ready)),
        ):
            _family(out, f"duckctl_{name}", kind, text, {"": value})
        for name, text, histogram in (
            ("duckctl_ttft_seconds", "Request to first token", self.ttft),
            ("duckctl_tpot_seconds", "Time per token after the first", self.tpot),
        ):
            out += [f"# HELP {name} {text}", f"# TYPE {name} histogram", *histogram.lines(name)]
        self._render_ducks(out, status)
        return "\n".join(out) + "\n"

    def _render_ducks(self, out: list[str], status: EngineStatus) -> None:
        ready = {f'{{duck="{_escape(d.name)}"}}': int(d.ready) for d in status.ducks}
        _family(out, "duckctl_duck_ready", "gauge", "1 when the duck serves", ready)
        names = sorted({name for duck in status.ducks for name in duck.counters})
        for name in names:
            samples = {
                f'{{duck="{_escape(duck.name)}"}}': duck.counters[name]
                for duck in status.ducks
                if name in duck.counters
            }
            metric = f"duckctl_duck_{re.sub(r'[^a-zA-Z0-9_]', '_', name)}"
            if name in GAUGES:
                _family(out, metric, "gauge", f"{name} of each duck now", samples)
            else:
                _family(out, f"{metric}_total", "counter", f"{name} of each duck", samples)


def _family(out: list[str], name: str, kind: str, text: str, samples: Mapping[str, float]) -> None:
    if samples:
        out += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        out += [f"{name}{labels} {value:.17g}" for labels, value in samples.items()]


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
