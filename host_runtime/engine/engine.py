"""The engine: one thread that turns requests into tokens, one visible step at a time.

    engine = Engine(model, experts, mtp=True, max_context=None, max_queue=16, prefill_chunk=64)
    engine.start()
    handle = engine.submit(prompt_ids, SamplingParams(max_tokens=64))
    for event in handle.events(): ...
    engine.stop()

`step` schedules one sequence (round robin), runs prompt chunks or a decode step of it, and
post-processes: sampling or verification of the draft, events, the next draft. Two sequences that
both decode share the step: its lanes carry a token of each in place of one token and its draft.
Beside sequences that decode, a prompt chunk has turns as long as their steps, layer by layer, so
that nobody waits for a whole chunk.
Sequences never share a matrix product, so what a request answers does not depend on what else is
running.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Items
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from host_runtime.engine.request import (
    ContextTooLongError,
    QueueFullError,
    RequestHandle,
    SamplingParams,
    check_prompt,
)
from host_runtime.engine.sampling import check_finite
from host_runtime.engine.sequence import Sequence
from host_runtime.errors import HostError
from host_runtime.experts.base import DuckStatus, Experts
from host_runtime.models import DeepseekV32, SequenceCache

PREFILL_CHUNK_MAX = 512  # tokens of one experts call (DUCK_EXPERTS_TOKENS_MAX)
PREFILL_CHUNKS = 2  # of one turn: the second's attention runs while the first's experts work
STEPS_TIMED = 4  # a prompt's turn is as long as the shortest of so many decode steps
LANES = 2  # sequences that may share a decode step
ACTIVE_MAX = 4  # sequences with caches in memory at once
STOP_WAIT_S_MAX = 60.0
# A working MTP module is right for 45 to 98 % of the drafts; far below, its weights are wrong.
ACCEPTANCE_MIN = 0.05
ACCEPTANCE_DRAFTS_MIN = 256

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineStatus:
    """`ready` is False while any duck is not serving; `reason` then says which and why."""

    ready: bool
    reason: str
    ducks: list[DuckStatus] = field(default_factory=list)
    active: int = 0
    queued: int = 0
    drafts_proposed: int = 0
    drafts_accepted: int = 0
    steps_shared: int = 0  # decode steps of two sequences


class Engine:
    """Owns the sequences; the caller owns `model` and `experts` and closes the latter."""

    def __init__(
        self,
        model: DeepseekV32,
        experts: Experts,
        *,
        mtp: bool = True,
        max_context: int | None = None,
        max_queue: int = 16,
        prefill_chunk: int = 64,
        max_active: int = ACTIVE_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        limit = model.config.max_position_embeddings
        _check_range("max_context", max_context if max_context is not None else limit, 2, limit)
        _check_range("prefill_chunk", prefill_chunk, 1, PREFILL_CHUNK_MAX)
        _check_range("max_queue", max_queue, 0, 1_000_000)
        _check_range("max_active", max_active, 1, 1024)
        if mtp and model.mtp is None:
            raise HostError("MTP is switched on, but the model has no MTP module", "--no-mtp")
        self.model, self.experts, self.mtp = model, experts, mtp
        self.max_context = max_context if max_context is not None else limit
        self.max_queue, self.max_active, self.prefill_chunk = max_queue, max_active, prefill_chunk
        self._clock = clock
        self._waiting: deque[Sequence] = deque()
        self._active: deque[Sequence] = deque()
        self._changed = threading.Condition()  # guards the two queues and _stopping
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._drafts_proposed = self._drafts_accepted = self._steps_shared = 0
        self._warned_of_drafts = False
        self._steps_s: deque[float] = deque(maxlen=STEPS_TIMED)  # of the newest decode steps

    # ------------------------------------------------------------------ for callers, any thread
    def start(self) -> None:
        """Start the engine thread."""
        if self._thread is not None:
            raise RuntimeError("the engine was started before")
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End all requests (reason "error") and the thread; returns when it has ended."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is None:
            self._finish_all()
            return
        self._thread.join(STOP_WAIT_S_MAX)
        if self._thread.is_alive():
            raise HostError(f"the engine thread did not end within {STOP_WAIT_S_MAX:.0f} s")

    def submit(self, prompt_ids: Items[int], params: SamplingParams) -> RequestHandle:
        """Queue a request. Raises InvalidRequestError, ContextTooLongError, QueueFullError."""
        vocab_size = self.model.config.vocab_size
        check_prompt(prompt_ids, vocab_size)
        params.check(vocab_size)
        if len(prompt_ids) + params.max_tokens > self.max_context:
            raise ContextTooLongError(len(prompt_ids), params.max_tokens, self.max_context)
        eos = () if params.ignore_eos else self.model.generation.eos_token_ids
        handle = RequestHandle(self._notify)
        stop_tokens = frozenset((*eos, *params.stop_token_ids))
        sequence = Sequence(list(prompt_ids), params, handle, stop_tokens, self._clock)
        with self._changed:
            if self._stopping:
                raise HostError("the engine is stopping")
            if len(self._waiting) + len(self._active) >= self.max_queue + self.max_active:
                raise QueueFullError(
                    f"{len(self._active)} requests are running and {len(self._waiting)} waiting",
                    "try again later",
                )
            self._waiting.append(sequence)
            self._changed.notify_all()
        return handle

    def status(self) -> EngineStatus:
        """Readiness, ducks and load."""
        ducks = self.experts.status()
        away = [f"{duck.name}: {duck.detail or duck.state}" for duck in ducks if not duck.ready]
        with self._changed:
            active, queued = len(self._active), len(self._waiting)
            running = self._thread is not None and self._thread.is_alive() and not self._stopping
        reason = "; ".join(away) if running else "the engine is not running"
        ready = running and not away
        counts = (self._drafts_proposed, self._drafts_accepted, self._steps_shared)
        return EngineStatus(ready, reason, ducks, active, queued, *counts)

    # ------------------------------------------------------------------ the engine thread
    def step(self) -> bool:
        """One turn of one sequence, or of two that decode together; False without any."""
        turn = self._schedule()
        for sequence in turn:
            sequence.start()
        with self._timing(turn):
            if len(turn) < 2 or not self._decode_together(turn):
                for sequence in turn:
                    with _ending_on_errors(sequence):
                        self._advance(sequence)
        for sequence in turn:
            if sequence.finished:
                with self._changed:
                    self._active.remove(sequence)
                self._count_drafts(sequence)
        return bool(turn)

    def _schedule(self) -> list[Sequence]:
        """Admit and drop requests; the sequences of the next turn, who then queue up again."""
        with self._changed:
            for queue in (self._waiting, self._active):
                for sequence in [entry for entry in queue if entry.handle.cancelled]:
                    queue.remove(sequence)
                    sequence.finish("cancelled")
            while self._waiting and len(self._active) < self.max_active:
                self._active.append(self._waiting.popleft())
            turn = next_turn(self._active)
            for sequence in turn:
                self._active.remove(sequence)
            self._active.extend(turn)
            return turn

    def _advance(self, sequence: Sequence) -> None:
        """One turn of a sequence by itself: prompt chunks, or last token and draft."""
        if sequence.cache is None:
            sequence.cache = self.model.new_cache(sequence.capacity)
        if sequence.decodes:
            inputs = sequence.next_inputs(self.model.device)  # [n]
            hidden = self.model.forward(inputs, sequence.cache, self.experts)  # [n, D]
        else:
            prompt_hidden = self._advance_prompt(sequence, sequence.cache)
            if prompt_hidden is None:
                return
            hidden = prompt_hidden
        chosen = self._post_process(sequence, hidden)
        self._follow(sequence, hidden, draft=chosen and not self._others_decode(sequence))

    def _advance_prompt(self, sequence: Sequence, cache: SequenceCache) -> torch.Tensor | None:
        """A turn of a prompt: the hidden states [n, D] of whole chunks, if any has ended.

        Two chunks if nobody waits for tokens. Else layers of one, for as long as a step takes.
        """
        device = self.model.device
        if sequence.chunk is None:
            others = self._others_decode(sequence)
            count = 1 if others else PREFILL_CHUNKS
            chunks = sequence.next_chunks(self.prefill_chunk, count, device)
            if not others:
                return self.model.forward_chunks(chunks, cache, self.experts)
            sequence.chunk = self.model.start_chunk(chunks[0], cache, self.experts)
        end_s = self._clock() + min(self._steps_s, default=0.0)
        while True:
            hidden = sequence.chunk.advance()
            if hidden is not None:
                sequence.chunk = None
                return hidden
            if self._others_decode(sequence) and self._clock() >= end_s:
                return None

    def _decode_together(self, turn: list[Sequence]) -> bool:
        """One token of each sequence in one step, a lane for each. False if the step failed:
        caches are as before, and each can go on alone, so that only who is to blame fails."""
        caches = [sequence.cache for sequence in turn if sequence.cache is not None]
        lengths = [cache.length for cache in caches]
        last = [sequence.last_token for sequence in turn]
        try:
            tokens = torch.tensor(last, dtype=torch.int64, device=self.model.device)
            hidden = self.model.decode(tokens, caches, self.experts)  # [n, D]
        except Exception as error:  # noqa: BLE001 - each sequence is tried alone and tells it then
            _log.warning("a step of %d requests failed, each goes on alone: %s", len(turn), error)
            for cache, length in zip(caches, lengths, strict=True):
                cache.truncate(length)
            return False
        self._steps_shared += 1
        for row, sequence in zip(torch.split(hidden, 1), turn, strict=True):  # [1, D]
            with _ending_on_errors(sequence):
                sequence.draft = None  # made when the sequence was alone
                self._post_process(sequence, row)
                self._follow(sequence, row, draft=False)
        return True

    @contextmanager
    def _timing(self, turn: list[Sequence]) -> Iterator[None]:
        """Note how long a decode step takes; prompts' turns are not noted."""
        decoding = bool(turn) and turn[0].decodes
        begin_s = self._clock() if decoding else 0.0
        yield
        if decoding:
            self._steps_s.append(self._clock() - begin_s)

    def _others_decode(self, sequence: Sequence) -> bool:
        return any(other.decodes for other in self._active if other is not sequence)

    def _post_process(self, sequence: Sequence, hidden: torch.Tensor) -> bool:
        """Choose tokens from hidden [n, D] and emit them; roll the caches back after a rejection.

        False after an inner prompt chunk, when there is nothing to choose.
        """
        assert sequence.cache is not None
        if sequence.draft is None:
            if sequence.cache.length < len(sequence.prompt):
                return False
            choices = [sequence.sampler.choose(self.model.logits(hidden[-1:])[0])]
        else:
            logits = self.model.logits(hidden)  # [2, V]
            choices = [sequence.sampler.verify(logits[0], sequence.draft)]
            sequence.drafts_proposed += 1
            if choices[0].accepted_draft:
                sequence.drafts_accepted += 1
                choices.append(sequence.sampler.choose(logits[1]))
            else:
                sequence.cache.truncate(sequence.cache.length - 1)
        for choice in choices:
            if not sequence.finished:
                sequence.emit(choice)
        return True

    def _follow(self, sequence: Sequence, hidden: torch.Tensor, *, draft: bool) -> None:
        """Let the MTP module follow hidden [n, D]; with `draft` guess the token after the last.

        Without, a decoding sequence's hidden states wait until there are as many as a prompt chunk
        has: a sequence that shares its steps needs the module only when it is alone again.
        """
        if not self.mtp or sequence.finished:
            return
        assert sequence.cache is not None
        first, kept = sequence.cache.mtp_length, sequence.cache.length
        sequence.behind.append(hidden[: kept - first - sequence.behind_rows])
        if not draft and sequence.decodes and sequence.behind_rows < self.prefill_chunk:
            return
        rows = torch.cat(sequence.behind)  # [m, D]
        sequence.behind.clear()
        following = torch.tensor(sequence.tokens[first + 1 : kept + 1], device=self.model.device)
        parts = (torch.split(tensor, self.prefill_chunk) for tensor in (rows, following))
        for part, after in zip(*parts, strict=True):
            mixed = self.model.mtp_forward(part, after, sequence.cache, self.experts)  # [m, D]
        if not draft:
            sequence.draft = None
            return
        logits = self.model.mtp_logits(mixed[-1:])[0]  # [V]
        check_finite(logits, "draft logits")
        sequence.draft = int(logits.argmax())

    def _count_drafts(self, sequence: Sequence) -> None:
        """Totals for `status`; a draft model that is always wrong is slow, silent and suspect."""
        self._drafts_proposed += sequence.drafts_proposed
        self._drafts_accepted += sequence.drafts_accepted
        enough = self._drafts_proposed >= ACCEPTANCE_DRAFTS_MIN
        few = self._drafts_accepted < ACCEPTANCE_MIN * self._drafts_proposed
        if enough and few and not self._warned_of_drafts:
            self._warned_of_drafts = True
            _log.warning(
                "only %d of %d MTP drafts are accepted: the MTP module's weights may be wrong",
                self._drafts_accepted,
                self._drafts_proposed,
            )

    def _loop(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._stopping or self._waiting or self._active)
                    if self._stopping:
                        return
                self.step()
        finally:
            self._finish_all()  # whatever ended the thread, nobody waits for events forever

    def _finish_all(self) -> None:
        with self._changed:
            self._stopping = True
            for sequence in (*self._active, *self._waiting):
                sequence.finish("error", "the engine was stopped")
            self._active.clear()
            self._waiting.clear()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()


def next_turn(active: Iterable[Sequence]) -> list[Sequence]:
    """The first sequence of the queue; if it decodes, the next one that does so too.

    Two that share a step get two tokens for it. With a draft one of them alone would get one token
    and, with the acceptance a < 1, another: less than two, for the same calls and the MTP module's
    on top. So drafts are made for a sequence that is alone only (docs/reference/gpu-runtime.md).
    """
    queue = list(active)
    partners = [other for other in queue[1:] if other.decodes and queue[0].decodes]
    return [*queue[:1], *partners[: LANES - 1]]


@contextmanager
def _ending_on_errors(sequence: Sequence) -> Iterator[None]:
    """What goes wrong inside ends this sequence and no other."""
    try:
        yield
    except HostError as error:
        _log.warning("request failed: %s", error)
        sequence.finish("error", error.message)
    except Exception as error:  # noqa: BLE001 - a defect must end one request, not the server
        _log.exception("request failed")
        sequence.finish("error", f"internal error: {type(error).__name__}: {error}")


def _check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise HostError(f"{name} is {value}, expected {least} to {most}")
