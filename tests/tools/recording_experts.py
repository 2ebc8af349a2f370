"""Experts that note when calls leave and when they are waited for."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import torch

from host_runtime.experts.base import DuckStatus, Experts, PendingExperts


@dataclass
class RecordingExperts:
    """`log`: ("submit" or "wait", layer, rows), in order. Serves no mailboxes itself."""

    experts: Experts
    log: list[tuple[str, int, int]] = field(default_factory=list)

    def submit(
        self,
        layer: int,
        hidden: torch.Tensor,
        expert_ids: torch.Tensor,
        expert_weights: torch.Tensor,
    ) -> PendingExperts:
        self.log.append(("submit", layer, len(hidden)))
        pending = self.experts.submit(layer, hidden, expert_ids, expert_weights)
        return _Recorded(self, pending, layer, len(hidden))

    def status(self) -> list[DuckStatus]:
        return self.experts.status()

    def close(self) -> None:
        """The owner closes them."""


@dataclass
class _Recorded:
    owner: RecordingExperts
    pending: PendingExperts
    layer: int
    rows: int

    def wait(self) -> torch.Tensor:
        self.owner.log.append(("wait", self.layer, self.rows))
        return self.pending.wait()


def leapfrog_log(layers: list[int], first: int, second: int) -> list[tuple[str, int, int]]:
    """The log of two chunks of `first` and `second` rows: a call is waited for after the other
    chunk's has left, and the first chunk's next one leaves before the second's is waited for."""
    log = [("submit", layers[0], first), ("submit", layers[0], second)]
    for before, layer in pairwise(layers):
        log += [("wait", before, first), ("submit", layer, first)]
        log += [("wait", before, second), ("submit", layer, second)]
    return [*log, ("wait", layers[-1], first), ("wait", layers[-1], second)]
