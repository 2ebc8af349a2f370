"""From tokens to what the client sees: reasoning and content apart, stop strings, tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from host_runtime.server.dsml import CallReader, MalformedCalls, Parsed, ParsedCall, overlap
from host_runtime.server.tokens import ChatTokenizer, TextStream


@dataclass(frozen=True)
class Delta:
    """What one step of the answer adds."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ParsedCall, ...] = ()
    malformed_call: bool = False
    token_ids: tuple[int, ...] = ()
    token_times_s: tuple[float, ...] = ()  # of the engine's clock
    token_accepted: tuple[bool, ...] = ()  # came from an accepted draft

    def token_fields(self) -> dict[str, list[int] | list[float] | list[bool]]:
        """What ``return_token_ids`` adds to a choice of a stream."""
        return {
            "token_ids": list(self.token_ids),
            "token_times_s": [round(time_s, 6) for time_s in self.token_times_s],
            "token_accepted": list(self.token_accepted),
        }


class StopFilter:
    """Ends a text at the stop string that is complete first, holding back what may become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """Text that is certainly before any stop string."""
        if self.found is not None:
            return ""
        self._held += text
        ends = [
            (start + len(stop), start, stop)
            for stop in self._stops
            if (start := self._held.find(stop)) >= 0
        ]
        if ends:
            # First to be complete wins, so the result doesn't depend on how text is cut in tokens.
            _, start, self.found = min(ends)
            before, self._held = self._held[:start], ""
            return before
        keep = max((overlap(self._held, stop) for stop in self._stops), default=0)
        safe = self._held[: len(self._held) - keep]
        self._held = self._held[len(safe) :]
        return safe

    def finish(self) -> str:
        """Text that was held back in vain."""
        held, self._held = self._held, ""
        return held


class AnswerReader:
    """Reads one answer token by token.

    In a chat the reader starts in the state that the prompt ended in (thinking or not); the tokens
    ``<think>`` and ``</think>`` switch it. In a plain completion they are text like any other.
    Stop strings concern the content, not the reasoning.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        *,
        chat: bool,
        thinking: bool = False,
        tools: bool = False,
        stops: Sequence[str] = (),
        keep_control: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._stream = TextStream(tokenizer)
        self._chat = chat
        self._thinking = thinking
        self._keep_control = keep_control
        self._stop = StopFilter(stops)
        self._calls = CallReader() if tools else None
        self.reasoning_tokens = 0
        self.call_count = 0
        self.malformed_call = False

    @property
    def stopped(self) -> bool:
        """A stop string has come: nothing after it is part of the answer."""
        return self._stop.found is not None

    def feed(self, token_id: int) -> Delta:
        """What this token adds; often nothing, when text is held back."""
        if self._chat and token_id in (self._tokenizer.think_id, self._tokenizer.end_think_id):
            self._stream.cut()
            self._thinking = token_id == self._tokenizer.think_id
            self.reasoning_tokens += 1
            return Delta()
        if token_id in self._tokenizer.control_ids and not self._keep_control:
            self._stream.cut()
            return Delta()
        text = self._stream.feed(token_id)
        if self._thinking:
            self.reasoning_tokens += 1
            return Delta(reasoning=text)
        return self._content(self._stop.feed(text), last=False)

    def finish(self) -> Delta:
        """What was held back, once no more tokens come."""
        return self._content(self._stop.finish(), last=True)

    def _content(self, text: str, *, last: bool) -> Delta:
        if self._calls is None:
            return Delta(content=text)
        parsed: list[Parsed] = self._calls.feed(text) if text else []
        if last:
            parsed += self._calls.finish()
        calls = tuple(item for item in parsed if isinstance(item, ParsedCall))
        malformed = any(isinstance(item, MalformedCalls) for item in parsed)
        self.call_count += len(calls)
        self.malformed_call |= malformed
        text = "".join(
            item.text if isinstance(item, MalformedCalls) else item
            for item in parsed
            if not isinstance(item, ParsedCall)
        )
        return Delta(text, "", calls, malformed)
