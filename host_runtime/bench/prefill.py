"""Prompt chunks in turns and overlapping, against experts that take a stated time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from host_runtime.experts.base import DuckStatus, PendingExperts

REPEATS = 2  # the faster one counts: the first run of all compiles


class TimedExperts:
    """Emulated ducks: one resource that calls queue for, `duck_s` each; answers are zeros."""

    def __init__(self, hidden_size: int, rows_max: int, *, pinned: bool) -> None:
        self._zeros = torch.zeros(rows_max, hidden_size, pin_memory=pinned)
        self._free_s = 0.0
        self.duck_s = 0.0
        self.calls = 0

    def submit(
        self,
        layer: int,
        hidden: torch.Tensor,
        expert_ids: torch.Tensor,
        expert_weights: torch.Tensor,
    ) -> PendingExperts:
        self._free_s = max(time.monotonic(), self._free_s) + self.duck_s
        self.calls += 1
        return _Timed(self._zeros[: hidden.shape[0]], self._free_s)

    def status(self) -> list[DuckStatus]:
        """No ducks."""
        return []

    def close(self) -> None:
        """Nothing to release."""


@dataclass(frozen=True)
class _Timed:
    result: torch.Tensor
    ready_s: float

    def wait(self) -> torch.Tensor:
        left = self.ready_s - time.monotonic()
        if left > 0:
            time.sleep(left)
        return self.result


@dataclass(frozen=True)
class PrefillTimes:
    """Seconds of a prompt; `host_s` with experts that answer at once, `ducks_s` theirs alone."""

    factor: float
    duck_ms: float
    host_s: float
    ducks_s: float
    in_turns_s: float
    overlapped_s: float

    @property
    def ratio(self) -> float:
        """Time saved over time that could be saved."""
        return (self.in_turns_s - self.overlapped_s) / min(self.host_s, self.ducks_s)

    def row(self) -> dict[str, float]:
        """For the benchmark's document."""
        return {**vars(self), "overlap_ratio": self.ratio}


def measure_prefill(
    model: Any, tokens: int, chunk: int, factors: Sequence[float]
) -> list[PrefillTimes]:
    """A prompt of `tokens` in chunks; a call takes the ducks `factor` times the host's share."""
    experts = TimedExperts(model.config.hidden_size, chunk, pinned=torch.cuda.is_available())
    prompt = torch.randint(2, model.config.vocab_size, (tokens,))
    chunks = list(torch.split(prompt, chunk))

    def run(at_once: int) -> float:
        return min(_seconds(model, chunks, at_once, experts) for _ in range(REPEATS))

    host_s = run(1)
    experts.calls = 0
    _seconds(model, chunks, 1, experts)
    calls = experts.calls
    found = []
    for factor in factors:
        experts.duck_s = factor * host_s / calls
        in_turns_s, overlapped_s = run(1), run(2)
        found.append(
            PrefillTimes(
                factor, experts.duck_s * 1e3, host_s, factor * host_s, in_turns_s, overlapped_s
            )
        )
    return found


def _seconds(
    model: Any, chunks: Sequence[torch.Tensor], at_once: int, experts: TimedExperts
) -> float:
    cache = model.new_cache(sum(len(part) for part in chunks))
    begin = time.perf_counter()
    for place in range(0, len(chunks), at_once):
        hidden = model.forward_chunks(chunks[place : place + at_once], cache, experts)
    model.logits(hidden[-1:])[0, 0].item()
    return time.perf_counter() - begin
