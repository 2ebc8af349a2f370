"""What the model asks of its routed experts, wherever they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from host_runtime.errors import HostError


class ExpertsUnavailableError(HostError):
    """The routed experts cannot answer now; the message names the ducks and what happened."""

    def __init__(self, message: str, duck_names: Sequence[str] = (), hint: str = "") -> None:
        super().__init__(message, hint)
        self.duck_names = list(duck_names)


@dataclass(frozen=True)
class DuckStatus:
    """State of one duck as the host sees it; counters are totals, with units in their names."""

    name: str
    ready: bool
    state: str
    detail: str = ""
    counters: Mapping[str, float] = field(default_factory=dict)


class PendingExperts(Protocol):
    """A call on its way."""

    def wait(self) -> torch.Tensor:
        """[T, hidden] float32: sum over the call's experts, routing weights applied."""
        ...


class Experts(Protocol):
    """The routed experts of all MoE layers.

    A token's result never depends on the other tokens of the call.
    """

    def submit(
        self,
        layer: int,
        hidden: torch.Tensor,
        expert_ids: torch.Tensor,
        expert_weights: torch.Tensor,
    ) -> PendingExperts:
        """Start y[t] = sum over j of weight[t, j] * expert[id[t, j]](hidden[t]).

        hidden [T, hidden_size] float32, expert_ids [T, k] int64, expert_weights [T, k] float32.
        Raises ExpertsUnavailableError, here or in wait().
        """
        ...

    def status(self) -> list[DuckStatus]:
        """One entry per duck, [] for experts on the host itself."""
        ...

    def close(self) -> None:
        """Release what the experts hold; no call may follow."""
        ...
