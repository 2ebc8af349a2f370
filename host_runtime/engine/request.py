"""What a caller of the engine sees: parameters, events, the handle of a request, refusals."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Literal

from host_runtime.errors import HostError

SEED_MIN, SEED_MAX = -(2**63), 2**63 - 1


class InvalidRequestError(HostError):
    """A parameter of the request is out of range."""


class ContextTooLongError(InvalidRequestError):
    """Prompt and requested tokens together exceed the context limit."""

    def __init__(self, prompt_tokens: int, max_tokens: int, limit: int) -> None:
        super().__init__(
            f"the prompt has {prompt_tokens} tokens and {max_tokens} more are requested: "
            f"{prompt_tokens + max_tokens} exceed the context limit of {limit} tokens",
            "shorten the prompt or lower max_tokens",
        )
        self.prompt_tokens, self.max_tokens, self.limit = prompt_tokens, max_tokens, limit


class QueueFullError(HostError):
    """As many requests as the engine may hold are waiting already."""


@dataclass(frozen=True)
class SamplingParams:
    """How to pick tokens and when to stop.

    temperature 0 is greedy; top_k 0 and top_p 1 switch these filters off. Tokens of stop_token_ids
    end the request like the model's own end tokens: they are not emitted.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def check(self, vocab_size: int) -> None:
        """Raise InvalidRequestError for the first value out of range."""

        def require(holds: bool, name: str, value: object, expected: str) -> None:
            if not holds:
                raise InvalidRequestError(f"{name} is {value!r}, expected {expected}")

        require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "1 or more")
        finite = math.isfinite(self.temperature) and self.temperature >= 0
        require(finite, "temperature", self.temperature, "a finite number >= 0")
        require(0 < self.top_p <= 1, "top_p", self.top_p, "a number above 0 and up to 1")
        require(self.top_k >= 0, "top_k", self.top_k, "0 (off) or more")
        seed_fits = self.seed is None or SEED_MIN <= self.seed <= SEED_MAX
        require(seed_fits, "seed", self.seed, "a 64-bit integer")
        for token in self.stop_token_ids:
            in_range = 0 <= token < vocab_size
            require(in_range, "stop_token_ids", token, f"token ids in 0..{vocab_size - 1}")


def check_prompt(prompt_ids: Sequence[int], vocab_size: int) -> None:
    """Raise InvalidRequestError for an empty prompt or an id outside the vocabulary."""
    if not prompt_ids:
        raise InvalidRequestError("the prompt has no tokens")
    for place, token in enumerate(prompt_ids):
        if not 0 <= token < vocab_size:
            raise InvalidRequestError(
                f"prompt token {place} is {token}, expected an id in 0..{vocab_size - 1}"
            )


@dataclass(frozen=True)
class RequestStats:
    """Counts and times of one request.

    queue_s: submission to first work; ttft_s: submission to first token; decode_s: first to last
    token. Unreached moments leave 0.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    drafts_proposed: int = 0
    drafts_accepted: int = 0
    queue_s: float = 0.0
    ttft_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True)
class TokenEvent:
    """One token; time_s is the engine's monotonic clock, logprob natural and before filters."""

    token_id: int
    time_s: float
    accepted_draft: bool
    logprob: float | None = None


@dataclass(frozen=True)
class FinishedEvent:
    """The last event of every request."""

    reason: Literal["stop", "length", "cancelled", "error"]
    error: str | None = None
    stats: RequestStats = field(default_factory=RequestStats)


Event = TokenEvent | FinishedEvent


class RequestHandle:
    """One submitted request, for the thread that submitted it."""

    def __init__(self, on_cancel: Callable[[], None]) -> None:
        self._queue: SimpleQueue[Event] = SimpleQueue()
        self._on_cancel = on_cancel
        self._cancelled = threading.Event()
        self._ended = False

    def events(self) -> Iterator[Event]:
        """Events in order, blocking; ends after FinishedEvent. Every request gets one."""
        while not self._ended:
            event = self._queue.get()
            self._ended = isinstance(event, FinishedEvent)
            yield event

    def cancel(self) -> None:
        """Ask the engine to end the request before its next step; safe from any thread."""
        self._cancelled.set()
        self._on_cancel()

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def put(self, event: Event) -> None:
        """For the engine."""
        self._queue.put(event)
