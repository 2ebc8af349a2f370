"""What a request held comes back when it ends, however it ends: no garbage collection is needed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from emulated_card import Card
from host_kit import finish_all, outcome, tiny

from host_runtime.cuda.link import CallLink
from host_runtime.cuda.mailbox import HostLane, Mailbox
from host_runtime.cuda.pool import CachePool, GpuSequenceCache
from host_runtime.engine import Engine, SamplingParams
from host_runtime.errors import HostError
from host_runtime.experts.base import DuckStatus, ExpertsUnavailableError, MailboxMemory
from host_runtime.layers.leapfrog import ChunkByLayers
from host_runtime.models import DeepseekV32, SequenceCache
from host_runtime.transport import api, lanes, native
from host_runtime.transport.errors import TransportCode

POSITIONS = 64
CONFIG: Any = SimpleNamespace(
    kv_lora_rank=8, qk_rope_head_dim=4, index_head_dim=4, max_position_embeddings=POSITIONS,
    vocab_size=10,
)  # fmt: skip
CHUNK = 4


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class DuckExperts:
    """Experts with native lanes; a step fails while `lost`."""

    lost = False

    def open_lanes(self, mailboxes: list[MailboxMemory]) -> DuckExperts:
        return self

    def begin(self) -> None:
        pass

    def end(self) -> list[HostError | None]:
        error = ExpertsUnavailableError("d01 is silent", ["d01"]) if self.lost else None
        return [None, error]

    def submit(self, *_: object) -> Any:
        raise ExpertsUnavailableError("d01 is silent", ["d01"])

    def status(self) -> list[DuckStatus]:
        return []

    def close(self) -> None:
        pass


class CardModel:
    """What cuda.model.GpuModel does with rows and lanes, with room for one sequence."""

    config, mtp, device = CONFIG, None, torch.device("cpu")
    generation = SimpleNamespace(eos_token_ids=(1,))

    def __init__(self) -> None:
        self.pool = CachePool(CONFIG, [0], POSITIONS, torch.float32, self.device, POSITIONS)
        self.link = CallLink([HostLane(Mailbox(2, 8, pinned=False)) for _ in range(2)])
        self.kept: list[GpuSequenceCache] = []  # as an error does that somebody keeps

    def new_cache(self, capacity: int) -> GpuSequenceCache:
        self.kept.append(self.pool.reserve(capacity))
        return self.kept[-1]

    def forward(self, tokens: torch.Tensor, cache: GpuSequenceCache, experts: Any) -> torch.Tensor:
        cache.require(cache.length + len(tokens))
        with self.link.serving(experts):
            pass
        cache.length += len(tokens)
        return torch.zeros(len(tokens), 8)

    def forward_chunks(self, chunks: Any, *rest: Any) -> torch.Tensor:
        return torch.cat([self.forward(chunk, *rest) for chunk in chunks])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.arange(10.0).expand(len(hidden), 10)

    def start_chunk(self, tokens: torch.Tensor, cache: Any, experts: Any) -> ChunkByLayers:
        steps = [lambda x: x, lambda _: self.forward(tokens, cache, experts)]
        return ChunkByLayers(steps, torch.empty(0), lambda hidden: hidden)


def card_engine(**options: Any) -> tuple[Engine, CardModel, DuckExperts]:
    model, experts = CardModel(), DuckExperts()
    engine = Engine(
        cast(DeepseekV32, model), experts, mtp=False, max_context=POSITIONS, prefill_chunk=CHUNK,
        **options,
    )  # fmt: skip
    return engine, model, experts


def rows_taken(model: CardModel) -> dict[int, int]:
    return dict(model.pool._taken)


@pytest.mark.parametrize("steps", [0, 1, 3], ids=["first step", "second step", "fourth step"])
def test_rows_of_a_request_that_lost_its_duck_are_free_at_once(steps: int) -> None:
    """So the requests after it find room: the card has rows for one sequence here."""
    engine, model, experts = card_engine()
    handle = engine.submit([2, 3, 4], SamplingParams(max_tokens=20))
    for _ in range(steps):
        engine.step()
    experts.lost = True
    finish_all(engine)
    assert outcome(handle)[1].error == "d01 is silent"
    assert rows_taken(model) == {}
    experts.lost = False
    handle = engine.submit([2, 3, 4], SamplingParams(max_tokens=20))
    finish_all(engine)
    assert outcome(handle)[1].reason == "length"
    assert rows_taken(model) == {}


@pytest.mark.parametrize("end", ["cancel", "stop"])
def test_rows_of_a_request_that_is_ended_are_free_at_once(end: str) -> None:
    engine, model, _ = card_engine()
    handle = engine.submit([2, 3, 4], SamplingParams(max_tokens=20))
    engine.step()
    assert rows_taken(model) == {0: 23}
    if end == "cancel":
        handle.cancel()
        finish_all(engine)
    else:
        engine.stop()
    assert outcome(handle)[1].reason == {"cancel": "cancelled", "stop": "error"}[end]
    assert rows_taken(model) == {}


@pytest.mark.parametrize("end", ["cancel", "lose"])
def test_rows_of_a_chunk_between_two_layers_are_its_own_until_it_ends(end: str) -> None:
    engine, model, experts = card_engine(clock=lambda: 0.0)
    model.pool = CachePool(CONFIG, [0], 2 * POSITIONS, torch.float32, model.device, POSITIONS)
    first = engine.submit([2, 3, 4], SamplingParams(max_tokens=30))
    engine.step()
    late = engine.submit([2] * CHUNK, SamplingParams(max_tokens=4))
    for _ in range(2):
        engine.step()
    assert [sequence.chunk is not None for sequence in engine._active] == [False, True]
    assert rows_taken(model) == {0: 33, POSITIONS: 8}
    if end == "cancel":
        late.cancel()
    else:
        experts.lost = True
    engine.step()
    engine.step()
    assert outcome(late)[1].reason == {"cancel": "cancelled", "lose": "error"}[end]
    assert POSITIONS not in rows_taken(model)
    first.cancel()
    finish_all(engine)
    assert rows_taken(model) == {}


def test_released_rows_are_refused_and_released_once() -> None:
    """A second release must not take the rows from whoever has them now."""
    pool = CardModel().pool
    first = pool.reserve(40)
    first.length = 10
    first.release()
    second = pool.reserve(40)
    assert second.base == first.base
    first.release()
    with pytest.raises(ValueError, match="1 positions do not fit a cache of 0"):
        first.require(1)
    del first
    with pytest.raises(HostError, match="40 of 64"):
        pool.reserve(40)


def test_a_released_cache_of_the_cpu_holds_no_memory() -> None:
    """With the MTP module's."""
    model, experts = tiny()
    engine = Engine(model, experts)
    handle = engine.submit([2, 3, 4], SamplingParams(max_tokens=8, ignore_eos=True))
    engine.step()
    cache = engine._active[0].cache
    assert isinstance(cache, SequenceCache)
    buffers = [weakref.ref(layer) for layer in (*cache.layers, cache.mtp) if layer is not None]
    assert len(buffers) == len(model.layers) + 1
    handle.cancel()
    engine.step()
    assert [buffer() for buffer in buffers] == [None] * len(buffers)
    cache.release()


class PythonExperts:
    """Experts without lanes of their own, whose calls fail."""

    def __init__(self, error: type[Exception]) -> None:
        self._error = error

    def submit(self, *_: object) -> Any:
        raise self._error("no answer")


def step_of(experts: Any, *, post: bool) -> None:
    """A step of two lanes, with a call in the first one if `post`."""
    card = Card(2, 8)
    link = CallLink([HostLane(box) for box in card.boxes])
    try:
        with link.serving(experts):
            if post:
                card.post(0, 1, torch.zeros(1, 8), torch.zeros(1, 2).long(), torch.zeros(1, 2))
                card.result(0)
    finally:
        link.close()


def lost_lane() -> None:
    experts = DuckExperts()
    experts.lost = True
    step_of(experts, post=False)


def silent_call() -> None:
    api._check(int(TransportCode.UNREACHABLE), native.Error(code=3, text=b"silent", ducks=2))


def silent_lanes() -> None:
    def begin(error: native.Error) -> int:
        error.code, error.text = 3, b"silent"
        return int(TransportCode.UNREACHABLE)

    lanes.Lanes._check(begin)


@pytest.mark.parametrize(
    "fail",
    [
        lost_lane,
        pytest.param(lambda: step_of(PythonExperts(HostError), post=True), id="failed_call"),
        pytest.param(lambda: step_of(PythonExperts(KeyError), post=True), id="defect"),
        silent_call,
        silent_lanes,
    ],
)
def test_an_error_that_is_over_keeps_nothing_of_its_callers(fail: Callable[[], None]) -> None:
    class Held:
        pass

    held: list[weakref.ref[Held]] = []

    def caller() -> None:
        local = Held()
        held.append(weakref.ref(local))
        fail()

    raised = False
    try:
        caller()
    except (HostError, KeyError):
        raised = True
    assert raised
    assert held[0]() is None
