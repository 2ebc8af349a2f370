"""State of one request inside the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from host_runtime.engine.request import (
    FinishedEvent,
    RequestHandle,
    RequestStats,
    SamplingParams,
    TokenEvent,
)
from host_runtime.engine.sampling import Choice, Sampler
from host_runtime.layers.leapfrog import ChunkByLayers
from host_runtime.models import SequenceCache


class Sequence:
    """A prompt, what has been generated, and the caches.

    Between steps the caches hold every known token but the last one; `draft` is the MTP module's
    guess of the token after that, None if there is none. `behind` are hidden states [n, D] of the
    newest positions that the MTP module has not followed yet. `chunk` is a prompt chunk that rests
    between two layers: until it has ended, the caches are in its hands.
    """

    def __init__(
        self,
        prompt: list[int],
        params: SamplingParams,
        handle: RequestHandle,
        stop_tokens: frozenset[int],
        clock: Callable[[], float],
    ) -> None:
        self.prompt, self.params, self.handle = prompt, params, handle
        self.stop_tokens = stop_tokens
        self.sampler = Sampler(params)
        self.cache: SequenceCache | None = None
        self.last_token: int | None = None
        self.draft: int | None = None
        self.tokens = list(prompt)  # all known ones
        self.behind: list[torch.Tensor] = []
        self.chunk: ChunkByLayers | None = None
        self.finished = False
        self.drafts_proposed = 0
        self.drafts_accepted = 0
        self.completion_tokens = 0
        self._clock = clock
        self._submitted_s = clock()
        self._started_s: float | None = None
        self._first_token_s: float | None = None
        self._last_token_s: float | None = None

    @property
    def capacity(self) -> int:
        """Positions that the caches may ever hold: a step at max_tokens - 1 may verify one more."""
        return len(self.prompt) + self.params.max_tokens

    @property
    def decodes(self) -> bool:
        """The prompt is done: the next step is about one new token."""
        return self.last_token is not None

    @property
    def behind_rows(self) -> int:
        """Positions that the MTP module has not followed yet."""
        return sum(len(rows) for rows in self.behind)

    def start(self) -> None:
        """Note the time of the first step."""
        if self._started_s is None:
            self._started_s = self._clock()

    def next_chunks(self, chunk: int, count: int, device: torch.device) -> list[torch.Tensor]:
        """Up to `count` chunks of the prompt's next tokens, int64 [n] each, n <= `chunk`."""
        assert self.cache is not None
        begin = self.cache.length
        rest = self.prompt[begin : begin + count * chunk]
        return list(torch.split(torch.tensor(rest, dtype=torch.int64, device=device), chunk))

    def next_inputs(self, device: torch.device) -> torch.Tensor:
        """Tokens of the next decode step, int64 [n]: the last token, and the draft if any."""
        assert self.last_token is not None
        tokens = [self.last_token] if self.draft is None else [self.last_token, self.draft]
        return torch.tensor(tokens, dtype=torch.int64, device=device)

    def emit(self, choice: Choice) -> None:
        """Take one chosen token: an event, or the end of the request."""
        if choice.token in self.stop_tokens:
            self.finish("stop")
            return
        now_s = self._clock()
        if self._first_token_s is None:
            self._first_token_s = now_s
        self._last_token_s = now_s
        self.last_token = choice.token
        self.tokens.append(choice.token)
        self.completion_tokens += 1
        self.handle.put(TokenEvent(choice.token, now_s, choice.accepted_draft, choice.logprob))
        if self.completion_tokens == self.params.max_tokens:
            self.finish("length")

    def finish(
        self, reason: Literal["stop", "length", "cancelled", "error"], error: str | None = None
    ) -> None:
        """Free the caches and send the last event. Between steps only: none may still use them."""
        self.finished = True
        if self.cache is not None:
            self.cache.release()  # at once: whoever else still knows them, as an error may
        self.cache = self.chunk = None
        self.behind.clear()
        self.handle.put(FinishedEvent(reason, error, self._stats()))

    def _stats(self) -> RequestStats:
        first, last = self._first_token_s, self._last_token_s
        started = self._started_s
        return RequestStats(
            prompt_tokens=len(self.prompt),
            completion_tokens=self.completion_tokens,
            drafts_proposed=self.drafts_proposed,
            drafts_accepted=self.drafts_accepted,
            queue_s=0.0 if started is None else started - self._submitted_s,
            ttft_s=0.0 if first is None else first - self._submitted_s,
            decode_s=0.0 if first is None or last is None else last - first,
        )
