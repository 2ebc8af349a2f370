"""One answer from its first token to its usage; the endpoints only differ in the wrapping."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from host_runtime.engine import FinishedEvent, RequestStats, TokenEvent
from host_runtime.server.errors import ApiError
from host_runtime.server.generation import Generation
from host_runtime.server.limits import KEEP_ALIVE_S
from host_runtime.server.output import AnswerReader, Delta

CANCELLED = "the server is stopping; send the request again later"


class Answer:
    """Reads a generation through an AnswerReader and keeps the books."""

    def __init__(
        self, generation: Generation, reader: AnswerReader, prompt_ids: Sequence[int]
    ) -> None:
        self.generation = generation
        self._reader = reader
        self.prompt_ids = list(prompt_ids)
        self.token_ids: list[int] = []
        self.finish_reason = ""

    @property
    def stats(self) -> RequestStats | None:
        """The engine's counts, once the request has ended."""
        finished = self.generation.finished
        return finished.stats if finished else None

    async def deltas(self) -> AsyncGenerator[Delta | None, None]:
        """What each token adds; None after a silence (send a sign of life).

        When it ends, ``finish_reason`` is set and ``stats`` are there. Raises ApiError on failure.
        """
        async with self.generation as generation:
            while True:
                event = await generation.next_event(KEEP_ALIVE_S)
                if event is None:
                    yield None
                    continue
                if isinstance(event, FinishedEvent):
                    self._finish(event.reason)
                    break
                self.token_ids.append(event.token_id)
                delta = self._reader.feed(event.token_id)
                yield _with_token(delta, event)
                if self._reader.stopped:
                    generation.cancel()
                    self.finish_reason = "stop"
                    break
            yield self._reader.finish()
            await generation.wait_finished()
        if self._reader.call_count:
            self.finish_reason = "tool_calls"

    def _finish(self, reason: str) -> None:
        if reason == "cancelled":
            raise ApiError(503, CANCELLED, kind="service_unavailable_error", code="server_stopping")
        self.finish_reason = reason

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage object."""
        accepted = self.stats.drafts_accepted if self.stats else 0
        proposed = self.stats.drafts_proposed if self.stats else 0
        return {
            "prompt_tokens": len(self.prompt_ids),
            "completion_tokens": len(self.token_ids),
            "total_tokens": len(self.prompt_ids) + len(self.token_ids),
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": self._reader.reasoning_tokens,
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": proposed - accepted,
            },
        }

    def measurements(self) -> dict[str, Any]:
        """The vendor field ``duckctl``: times in seconds, MTP counts."""
        stats = self.stats
        if stats is None:
            return {}
        return {
            "queue_s": round(stats.queue_s, 6),
            "ttft_s": round(stats.ttft_s, 6),
            "decode_s": round(stats.decode_s, 6),
            "tpot_s": None if (tpot := tpot_s(stats)) is None else round(tpot, 6),
            "drafts_proposed": stats.drafts_proposed,
            "drafts_accepted": stats.drafts_accepted,
            **({"malformed_tool_call": True} if self._reader.malformed_call else {}),
        }


def tpot_s(stats: RequestStats) -> float | None:
    """(last token time - first token time) / (tokens - 1); None for a single token."""
    return stats.decode_s / (stats.completion_tokens - 1) if stats.completion_tokens > 1 else None


def _with_token(delta: Delta, event: TokenEvent) -> Delta:
    return replace(
        delta,
        token_ids=(event.token_id,),
        token_times_s=(event.time_s,),
        token_accepted=(event.accepted_draft,),
    )


@dataclass
class Whole:
    """An answer put together, for clients that don't stream."""

    content: str = ""
    reasoning: str = ""
    calls: list[Any] = field(default_factory=list)

    def add(self, delta: Delta) -> None:
        """Append one step."""
        self.content += delta.content
        self.reasoning += delta.reasoning
        self.calls += delta.calls


async def collect(answer: Answer) -> Whole:
    """Wait for the whole answer."""
    whole = Whole()
    async for delta in answer.deltas():
        if delta is not None:
            whole.add(delta)
    return whole
