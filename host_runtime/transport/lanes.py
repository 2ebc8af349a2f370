"""Expert calls of captured GPU steps: native threads between mailboxes and ducks.

    lanes = transport.open_lanes(mailboxes, shape)
    lanes.begin()
    ...                      # the card runs a step
    for outcome in lanes.end(): ...

The C interface is duckhost_lanes.h; what a mailbox holds is told there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated

from host_runtime import wire
from host_runtime.transport import native
from host_runtime.transport.errors import TransportError, native_error
from host_runtime.wire import U32, U64, layout

LANES_MAX = 8
LAYERS_MAX = 256
CALLS_MAX = 256  # of one lane in one step: as many are remembered
LayerMask = Annotated[object, ctypes.c_uint64 * (LAYERS_MAX // 64)]


@layout
class Lane(ctypes.LittleEndianStructure):
    """Addresses of one mailbox, see struct duckhost_lane; its memory outlives the lanes."""

    flags: Annotated[int, ctypes.c_void_p]
    expert: Annotated[int, ctypes.c_void_p]
    weight: Annotated[int, ctypes.c_void_p]
    hidden: Annotated[int, ctypes.c_void_p]
    result: Annotated[int, ctypes.c_void_p]


@layout
class LaneShapeWords(ctypes.LittleEndianStructure):
    hidden_size: U32
    top_k: U32
    expert_count: U32
    activation_dtype: U32
    result_dtype: U32
    poll_policy: U32
    layers: LayerMask


@layout
class LaneOutcomeWords(ctypes.LittleEndianStructure):
    calls: U32
    failed_layer: U32
    error: Annotated[native.Error, native.Error]


@layout
class LaneCall(ctypes.LittleEndianStructure):
    """One call of a lane, see struct duckhost_lane_call."""

    layer: U32
    call: U32
    seen_ns: U64
    sent_ns: U64
    answered_ns: U64
    total_ns: U64
    kernel_ns: U32
    session: U32


@dataclass(frozen=True)
class LaneShape:
    """What all calls of the lanes have in common; ``layers`` are those with experts."""

    hidden_size: int
    top_k: int
    expert_count: int
    layers: tuple[int, ...]
    activation_dtype: wire.Dtype
    result_dtype: wire.Dtype
    poll_policy: wire.PollPolicy = wire.PollPolicy.BLOCK


@dataclass(frozen=True)
class LaneOutcome:
    """Of one lane in one step: number of calls, and the first failure with its layer."""

    calls: int
    failed_layer: int
    error: TransportError | None


def declare(library: ctypes.CDLL) -> None:
    """Argument types of the functions in duckhost_lanes.h."""
    handle, error, u32 = ctypes.c_void_p, ctypes.POINTER(native.Error), ctypes.c_uint32
    out = ctypes.POINTER(ctypes.c_void_p)
    shape, outcomes = ctypes.POINTER(LaneShapeWords), ctypes.POINTER(LaneOutcomeWords)
    types: dict[str, list[object]] = {
        "open": [handle, ctypes.POINTER(Lane), u32, shape, out, error],
        "begin": [handle, error],
        "end": [handle, outcomes, u32, error],
        "calls": [handle, u32, ctypes.POINTER(LaneCall), u32, ctypes.POINTER(u32), error],
    }
    for name, argument_types in types.items():
        function = getattr(library, f"duckhost_lanes_{name}")
        function.argtypes, function.restype = argument_types, ctypes.c_int
    library.duckhost_lanes_close.argtypes = [handle]
    library.duckhost_lanes_close.restype = None


class Lanes:
    """Threads that serve mailboxes; made by ``Transport.open_lanes``. Used by one thread."""

    def __init__(
        self,
        library: ctypes.CDLL,
        fleet: AbstractContextManager[ctypes.c_void_p],
        lanes: Sequence[Lane],
        shape: LaneShape,
    ) -> None:
        declare(library)
        self._library, self._fleet, self._count = library, fleet, len(lanes)
        self._in_step = False
        words = LaneShapeWords(
            hidden_size=shape.hidden_size,
            top_k=shape.top_k,
            expert_count=shape.expert_count,
            activation_dtype=shape.activation_dtype,
            result_dtype=shape.result_dtype,
            poll_policy=shape.poll_policy,
        )
        words.layers[:] = _mask(shape.layers)  # type: ignore[index]
        array = (Lane * len(lanes))(*lanes)
        handle = ctypes.c_void_p()
        with fleet as fleet_handle:
            self._check(
                lambda error: library.duckhost_lanes_open(
                    fleet_handle, array, len(lanes), words, ctypes.byref(handle), error
                )
            )
        self._handle: ctypes.c_void_p | None = handle

    def begin(self) -> None:
        """A step begins; the transport stays open until its end. CLOSED if it is not open."""
        self._fleet.__enter__()
        try:
            self._check(lambda error: self._library.duckhost_lanes_begin(self._handle, error))
        except BaseException:
            self._fleet.__exit__(None, None, None)
            raise
        self._in_step = True

    def end(self) -> list[LaneOutcome]:
        """The card is done: waits for calls under way; what happened in each lane."""
        outcomes = (LaneOutcomeWords * self._count)()
        try:
            self._check(
                lambda error: self._library.duckhost_lanes_end(
                    self._handle, outcomes, self._count, error
                )
            )
        finally:
            self._leave()
        return [_outcome(words) for words in outcomes]

    def calls(self, lane: int) -> list[LaneCall]:
        """The lane's calls in the last step, in order: the first CALLS_MAX of them."""
        entries, count = (LaneCall * CALLS_MAX)(), ctypes.c_uint32()
        self._check(
            lambda error: self._library.duckhost_lanes_calls(
                self._handle, lane, entries, CALLS_MAX, ctypes.byref(count), error
            )
        )
        return list(entries[: count.value])

    def close(self) -> None:
        """End the threads. Again: does nothing."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        self._library.duckhost_lanes_close(handle)
        if self._in_step:
            self._leave()

    def _leave(self) -> None:
        self._in_step = False
        self._fleet.__exit__(None, None, None)

    @staticmethod
    def _check(function: Callable[[native.Error], int]) -> None:
        error = native.Error()
        problem = native_error(function(error), error)
        try:
            if problem is not None:
                raise problem
        finally:
            del problem  # as in api._check


def _mask(layers: Iterable[int]) -> list[int]:
    words = [0] * (LAYERS_MAX // 64)
    for layer in layers:
        if not 0 <= layer < LAYERS_MAX:
            raise ValueError(f"layer {layer}: lanes serve 0 to {LAYERS_MAX - 1}")
        words[layer // 64] |= 1 << layer % 64
    return words


def _outcome(words: LaneOutcomeWords) -> LaneOutcome:
    error = native_error(words.error.code, words.error)
    return LaneOutcome(words.calls, words.failed_layer, error)
