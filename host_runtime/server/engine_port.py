"""What the server needs from the engine (tests put a scripted engine in its place)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from host_runtime.engine import EngineStatus, FinishedEvent, SamplingParams, TokenEvent

Event = TokenEvent | FinishedEvent


class HandlePort(Protocol):
    """A submitted request."""

    def events(self) -> Iterator[Event]:
        """Blocking; ends after the FinishedEvent."""
        ...

    def cancel(self) -> None:
        """Ask the engine to end the request; its FinishedEvent still comes."""
        ...


class TracerPort(Protocol):
    """Experts whose calls can be traced: those on ducks."""

    def set_trace(self, calls: int) -> None:
        """Keep times of the last ``calls`` calls; 0 = none."""
        ...

    def trace(self) -> list[dict[str, Any]]:
        """The kept calls, oldest first."""
        ...


class EnginePort(Protocol):
    """The part of ``host_runtime.engine.Engine`` that the server uses."""

    def submit(self, prompt_ids: Sequence[int], params: SamplingParams) -> HandlePort:
        """Queue a request; thread-safe."""
        ...

    def status(self) -> EngineStatus:
        """Readiness, ducks, and how many requests run and wait."""
        ...
