"""What the model asks of its routed experts, wherever they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

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


@dataclass(frozen=True)
class MailboxMemory:
    """Addresses of one lane's mailbox (ops/gpu/mailbox.py); top_k ids and weights."""

    top_k: int
    flags: int
    ids: int
    weights: int
    hidden: int
    result: int


class LaneCalls(Protocol):
    """Native threads that answer the expert calls of captured steps. Used by one thread."""

    def begin(self) -> None:
        """A step begins. Raises ExpertsUnavailableError when no call is possible now."""
        ...

    def end(self) -> list[HostError | None]:
        """The step is over; of each lane what went wrong first."""
        ...

    def close(self) -> None:
        """End the threads."""
        ...


@runtime_checkable
class LaneExperts(Protocol):
    """Experts that serve mailboxes themselves, without Python on the way."""

    def open_lanes(self, mailboxes: Sequence[MailboxMemory]) -> LaneCalls:
        """Threads for these mailboxes, whose memory outlives them."""
        ...
