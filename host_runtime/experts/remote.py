"""Routed experts on the ducks of a fleet.

Legend: T tokens, k experts per token, H hidden size.
One call = one message (experts.h) to all ducks; each duck computes its slice of the MoE
intermediate rows for all T * k experts, and the sum of the ducks' outputs is the result.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from host_runtime import wire
from host_runtime.errors import HostError
from host_runtime.experts.base import DuckStatus, ExpertsUnavailableError, MailboxMemory
from host_runtime.experts.call_trace import TRACE_CALLS_MAX, CallRecorder, DuckPlace
from host_runtime.experts.remote_lanes import RemoteLanes
from host_runtime.fleet.cache import CacheConfig, load_cache
from host_runtime.fleet.config import FleetConfig
from host_runtime.fleet.connect import connect
from host_runtime.fleet.kernel_file import load_kernel_file
from host_runtime.fleet.manager import FleetManager
from host_runtime.fleet.status import FleetEvent
from host_runtime.transport import (
    Faults,
    LaneShape,
    TransportCode,
    TransportError,
    TransportOptions,
)

DTYPES = {
    wire.Dtype.F32: torch.float32,
    wire.Dtype.BF16: torch.bfloat16,
    wire.Dtype.FP8: torch.float8_e4m3fn,
}
FP8_MAX = 448.0  # the largest E4M3 value
FP8_BLOCK = 128  # values that share a scale
ALIGN = 64
# A long call is cut into messages of EXPERTS_TOKENS_MAX tokens; this many of them travel at once.
PARTS_IN_FLIGHT = 2
# Decoding uses one or two layouts, prefill one more and a remainder.
MESSAGES_KEPT = 4


@dataclass(frozen=True)
class RemoteOptions:
    """How calls travel and how long anything may take."""

    activation_dtype: wire.Dtype = wire.Dtype.F32
    result_dtype: wire.Dtype = wire.Dtype.F32
    call_deadline_ms: int = 3000  # silence of a duck that owes an answer
    call_time_limit_ms: int = 10_000  # in the kernel; a runaway ends the session
    core_count: int = 0  # of each duck; 0 = all
    tokens_max: int = wire.EXPERTS_TOKENS_MAX  # of one message
    faults: Faults | None = None
    poll_policy: wire.PollPolicy = wire.PollPolicy.BLOCK  # of the host's threads
    # Between two pieces of weights that ducks compare with their digest again; 0 = never.
    scrub_pause_s: float = 30.0


@dataclass(frozen=True)
class MessageLayout:
    """Where the parts of a CALL message lie, in bytes from its start."""

    tokens: int
    top_k: int
    hidden: int
    dtype: wire.Dtype

    @property
    def ids_offset(self) -> int:
        return ctypes.sizeof(wire.ExpertsCall)

    @property
    def weights_offset(self) -> int:
        return wire.experts_weight_offset(self.tokens, self.top_k)

    @property
    def activation_offset(self) -> int:
        return wire.experts_activation_offset(self.tokens, self.top_k)

    @property
    def size_bytes(self) -> int:
        return self.scales_offset + (
            4 * self.tokens * self.hidden // FP8_BLOCK if self.dtype is wire.Dtype.FP8 else 0
        )

    @property
    def scales_offset(self) -> int:
        """Behind the activations: the scales of FP8."""
        element = DTYPES[self.dtype].itemsize
        return self.activation_offset + element * self.tokens * self.hidden


class CallMessage:
    """A CALL message of one layout, filled again for each call; the transport copies it.

    Header, padding and views are made once, so that filling is three tensor copies.
    """

    def __init__(self, layout: MessageLayout, result_dtype: wire.Dtype) -> None:
        whole = torch.zeros(layout.size_bytes + ALIGN, dtype=torch.uint8)
        skip = -whole.data_ptr() % ALIGN
        self._bytes = whole[skip : skip + layout.size_bytes]
        self.size_bytes = layout.size_bytes
        self.address = self._bytes.data_ptr()
        self._header = wire.ExpertsCall.from_address(self.address)
        self._header.magic = wire.EXPERTS_CALL_MAGIC
        self._header.token_count, self._header.top_k = layout.tokens, layout.top_k
        self._header.hidden_size = layout.hidden
        self._header.activation_dtype = layout.dtype
        self._header.result_dtype = result_dtype
        self._header.activation_offset = layout.activation_offset
        places, row = (layout.tokens, layout.top_k), (layout.tokens, layout.hidden)
        # int16 holds the same 16 bits as the uint16 of the message.
        self._ids = self._view(layout.ids_offset, torch.int16, places)
        self._weights = self._view(layout.weights_offset, torch.float32, places)
        self._rows = self._view(layout.activation_offset, DTYPES[layout.dtype], row)
        self._scales: torch.Tensor | None = None
        if layout.dtype is wire.Dtype.FP8:
            blocks = (layout.tokens, layout.hidden // FP8_BLOCK)
            self._scales = self._view(layout.scales_offset, torch.float32, blocks)

    def fill(
        self, layer: int, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
    ) -> None:
        """hidden [T, H], ids and weights [T, k]; any dtype, any device."""
        self._header.layer = layer
        self._ids.copy_(ids)
        self._weights.copy_(weights)
        if self._scales is None:
            self._rows.copy_(hidden)
            return
        rows, scales = quantise_fp8(hidden)
        self._rows.copy_(rows)
        self._scales.copy_(scales)

    def raw(self) -> bytes:
        """A copy of the message, to look at."""
        return ctypes.string_at(self.address, self.size_bytes)

    def _view(self, begin: int, dtype: torch.dtype, shape: tuple[int, int]) -> torch.Tensor:
        end = begin + dtype.itemsize * shape[0] * shape[1]
        return self._bytes[begin:end].view(dtype).view(shape)


def quantise_fp8(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """E4M3 values [T, H] and float32 scales [T, H / 128]: the largest of each 128 becomes 448."""
    tokens, width = hidden.shape
    blocks = hidden.float().reshape(tokens, width // FP8_BLOCK, FP8_BLOCK)
    scales = blocks.abs().amax(dim=2) / FP8_MAX
    scales = torch.where(scales > 0, scales, torch.ones_like(scales))
    rows = (blocks / scales[:, :, None]).to(torch.float8_e4m3fn)
    return rows.reshape(tokens, width), scales


class RemoteExperts:
    """The experts of all MoE layers, on the ducks. ``start()`` before the first call."""

    def __init__(
        self,
        fleet: FleetConfig,
        cache_file: Path,
        kernel_file: Path,
        library: Path,
        options: RemoteOptions | None = None,
    ) -> None:
        self._options = options or RemoteOptions()
        self._places = [DuckPlace(duck.name, duck.domain) for duck in fleet.ducks]
        self._recorder: CallRecorder | None = None
        self._cache = load_cache(cache_file)
        kernel = load_kernel_file(kernel_file)
        tokens = min(self._options.tokens_max, _tokens_that_fit(self._cache, self._options))
        self._tokens_max = tokens
        largest = self._layout(tokens, wire.EXPERTS_TOP_K_MAX)
        self._messages: OrderedDict[tuple[int, int], CallMessage] = OrderedDict()
        self._credit = threading.Condition()  # guards the messages; told of each finished call
        self._transport = connect(fleet, library, _transport_options(self._options))
        self._manager = FleetManager(
            fleet,
            self._cache,
            kernel,
            self._transport,
            partial(_open_request, self._cache, largest, self._options),
            self._options.call_deadline_ms,
            scrub_pause_s=self._options.scrub_pause_s,
        )
        self._lanes: list[RemoteLanes] = []
        self._last_status: list[DuckStatus] | None = None  # set by close()

    def start(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Connect, check versions, load, open. Raises HostError naming the ducks in the way.

        ``progress(bytes_done, bytes_total)`` is called every two seconds while weights load.
        """
        try:
            if self._options.faults is not None:
                self.set_faults(self._options.faults)
            self._manager.start(progress)
        except BaseException:
            self.close()
            raise

    def submit(
        self,
        layer: int,
        hidden: torch.Tensor,
        expert_ids: torch.Tensor,
        expert_weights: torch.Tensor,
    ) -> RemotePending:
        """Send one call: hidden [T, H], expert_ids and expert_weights [T, k]. See base.Experts."""
        self._check(layer, hidden, expert_ids, expert_weights)
        self._refuse_while_away()
        return RemotePending(self, layer, hidden, expert_ids, expert_weights, self._tokens_max)

    def open_lanes(self, mailboxes: Sequence[MailboxMemory]) -> RemoteLanes:
        """Native threads that answer the mailboxes of captured steps. See base.LaneExperts."""
        options = self._options
        shape = LaneShape(
            hidden_size=self._cache.hidden_size,
            top_k=mailboxes[0].top_k,
            expert_count=self._cache.expert_count,
            layers=self._cache.layers,
            activation_dtype=options.activation_dtype,
            result_dtype=options.result_dtype,
            poll_policy=options.poll_policy,
        )
        lanes = RemoteLanes(
            self._transport,
            mailboxes,
            shape,
            self._refuse_while_away,
            self._unavailable,
            lambda: self._recorder,
        )
        self._lanes.append(lanes)
        return lanes

    def status(self) -> list[DuckStatus]:
        """One entry per duck, in slot order; after close() as it was then."""
        if self._last_status is not None:
            return self._last_status
        return [
            DuckStatus(report.name, report.ready, str(report.state), report.detail, report.counters)
            for report in self._manager.reports()
        ]

    def events(self) -> list[FleetEvent]:
        """What happened to the ducks lately, oldest first."""
        return self._manager.events()

    def set_faults(self, faults: Faults) -> None:
        """Fault injection on this host's ports, for tests and demonstrations."""
        self._transport.set_faults(faults)

    def set_trace(self, calls: int) -> None:
        """Keep times of the last ``calls`` calls; 0 = none, as at first."""
        if not 0 <= calls <= TRACE_CALLS_MAX:
            raise HostError(f"a trace of {calls} calls; 0 to {TRACE_CALLS_MAX} are possible")
        self._transport.set_trace(calls)
        self._recorder = CallRecorder(calls) if calls else None

    def trace(self) -> list[dict[str, Any]]:
        """The kept calls, oldest first, with every duck's times (docs/reference/api.md)."""
        recorder = self._recorder
        if recorder is None:
            return []
        return recorder.document(self._transport.trace(), self._places)

    def close(self) -> None:
        """Ends the compute session and all threads; calling it again does nothing."""
        if self._last_status is not None:
            return
        for lanes in self._lanes:
            lanes.close()
        self._manager.close()
        self._last_status = self.status()
        self._transport.close()

    # ---- used by RemotePending -----------------------------------------------------------------
    def send_part(
        self, layer: int, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
    ) -> int:
        """Send one message; returns its ticket. Waits while the ducks' credit is used up."""
        give_up = time.monotonic() + self._options.call_deadline_ms / 1000
        with self._credit:
            while True:
                # Filled anew after each wait: another thread may have used the message meanwhile.
                message = self._message(hidden.shape[0], ids.shape[1])
                message.fill(layer, hidden, ids, weights)
                try:
                    ticket = self._transport.submit(message.address, message.size_bytes)
                    if self._recorder is not None:
                        self._recorder.submitted(ticket, layer, hidden.shape[0])
                    return ticket
                except TransportError as error:
                    left = give_up - time.monotonic()
                    if left <= 0 or not self._is_out_of_credit(error):
                        raise self._unavailable(error, layer) from error
                self._credit.wait(left)

    def receive_part(self, layer: int, ticket: int, out: torch.Tensor) -> None:
        """Wait for a ticket; the sum of all ducks goes to ``out`` [T, H] float32, contiguous."""
        begin_s = time.monotonic()
        try:
            self._transport.wait_sum(
                ticket, self._options.result_dtype, out.data_ptr(), out.numel()
            )
            if self._recorder is not None:
                self._recorder.waited(ticket, begin_s, time.monotonic())
        except TransportError as error:
            raise self._unavailable(error, layer) from error
        finally:
            self._give_credit()

    def drop_part(self, ticket: int) -> None:
        """End a call whose result nobody wants: its credit is free when the ducks are done."""
        with contextlib.suppress(TransportError):
            self._transport.wait(ticket)
        with contextlib.suppress(TransportError):
            self._transport.release(ticket)
        self._give_credit()

    def _is_out_of_credit(self, error: TransportError) -> bool:
        is_state = error.code is TransportCode.STATE and not error.ducks
        return is_state and self._manager.problem() is None

    def _give_credit(self) -> None:
        with self._credit:
            self._credit.notify_all()

    # ---- checks --------------------------------------------------------------------------------
    def _check(
        self, layer: int, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
    ) -> None:
        if layer not in self._cache.layers:
            raise HostError(f"layer {layer} has no experts in {self._cache.path}")
        if hidden.dim() != 2 or hidden.shape[1] != self._cache.hidden_size or not len(hidden):
            raise HostError(
                f"hidden has shape {list(hidden.shape)}, expected [T, {self._cache.hidden_size}]"
            )
        if ids.dim() != 2 or ids.shape != weights.shape or len(ids) != len(hidden):
            raise HostError(
                f"expert_ids {list(ids.shape)} and expert_weights {list(weights.shape)} must be "
                f"[{len(hidden)}, k]"
            )
        if not 1 <= ids.shape[1] <= wire.EXPERTS_TOP_K_MAX:
            raise HostError(f"{ids.shape[1]} experts per token, at most {wire.EXPERTS_TOP_K_MAX}")
        low, high = torch.aminmax(ids)
        if low < 0 or high >= self._cache.expert_count:
            raise HostError(
                f"expert ids {int(low)} to {int(high)}, the cache has {self._cache.expert_count}"
            )

    def _refuse_while_away(self) -> None:
        problem = self._manager.problem()
        if problem is not None:
            raise ExpertsUnavailableError(problem.message, problem.duck_names)

    def _unavailable(self, error: TransportError, layer: int) -> ExpertsUnavailableError:
        self._manager.call_failed(error)
        names = self._manager.names(error.ducks)
        if error.code is TransportCode.STATE and not names:
            problem = self._manager.problem()
            if problem is not None:  # the session went away between two looks
                return ExpertsUnavailableError(problem.message, problem.duck_names)
        return ExpertsUnavailableError(f"{error.message} (layer {layer})", names, error.hint)

    def _message(self, tokens: int, top_k: int) -> CallMessage:
        """The message of this layout; the MESSAGES_KEPT last used ones are kept."""
        message = self._messages.pop((tokens, top_k), None)
        if message is None:
            layout = self._layout(tokens, top_k)
            message = CallMessage(layout, self._options.result_dtype)
            if len(self._messages) >= MESSAGES_KEPT:
                self._messages.popitem(last=False)
        self._messages[tokens, top_k] = message
        return message

    def _layout(self, tokens: int, top_k: int) -> MessageLayout:
        hidden, dtype = self._cache.hidden_size, self._options.activation_dtype
        return MessageLayout(tokens, top_k, hidden, dtype)


class RemotePending:
    """A call on its way, in one message or several."""

    def __init__(
        self,
        experts: RemoteExperts,
        layer: int,
        hidden: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        tokens_max: int,
    ) -> None:
        self._experts = experts
        self._layer = layer
        self._shape = hidden.shape
        self._parts = [(hidden, ids, weights)]
        if hidden.shape[0] > tokens_max:
            parts = (torch.split(tensor, tokens_max) for tensor in (hidden, ids, weights))
            self._parts = list(zip(*parts, strict=True))
        self._tickets: list[int] = []
        self._sent = 0
        self._send_more()

    def wait(self) -> torch.Tensor:
        """[T, H] float32: the sum over ducks. Raises ExpertsUnavailableError."""
        result = torch.empty(self._shape, dtype=torch.float32)
        row = 0
        for hidden, _, _ in self._parts:
            end = row + hidden.shape[0]
            self._experts.receive_part(self._layer, self._tickets.pop(0), result[row:end])
            row = end
            self._send_more()
        self._parts = []
        return result

    def _send_more(self) -> None:
        while self._sent < len(self._parts) and len(self._tickets) < PARTS_IN_FLIGHT:
            hidden, ids, weights = self._parts[self._sent]
            self._tickets.append(self._experts.send_part(self._layer, hidden, ids, weights))
            self._sent += 1

    def __del__(self) -> None:
        # An engine that stops between submit() and wait() must not use up the ducks' credit.
        for ticket in getattr(self, "_tickets", ()):
            self._experts.drop_part(ticket)


def _round_up(value: int, multiple: int) -> int:
    return (value + multiple - 1) // multiple * multiple


def _tokens_that_fit(cache: CacheConfig, options: RemoteOptions) -> int:
    """Largest T whose CALL and RESULT messages both fit DUCK_WIRE_CALL_BYTES_MAX."""
    dtype = options.activation_dtype
    head = MessageLayout(0, wire.EXPERTS_TOP_K_MAX, cache.hidden_size, dtype)
    per_token = 6 * wire.EXPERTS_TOP_K_MAX + max(
        wire.experts_activation_bytes(1, cache.hidden_size, dtype),
        DTYPES[options.result_dtype].itemsize * cache.hidden_size,
    )
    room = wire.WIRE_CALL_BYTES_MAX - head.activation_offset - 2 * ALIGN
    return max(1, min(wire.EXPERTS_TOKENS_MAX, room // per_token))


def _transport_options(options: RemoteOptions) -> TransportOptions:
    return TransportOptions(
        poll_policy=options.poll_policy,
        silence_ms=options.call_deadline_ms,
        call_ms=options.call_time_limit_ms + options.call_deadline_ms,
    )


def _open_request(
    cache: CacheConfig, largest: MessageLayout, options: RemoteOptions, core_count_max: int
) -> wire.Open:
    """One request for all ducks, so sized for the widest slice and the most cores."""
    result = DTYPES[options.result_dtype].itemsize * largest.tokens * largest.hidden
    rows = max(part.rows for part in cache.slices)
    cores = options.core_count or core_count_max
    return wire.Open(
        flags=wire.OPEN_TAKEOVER,
        core_count=options.core_count,
        call_bytes_max=_round_up(largest.size_bytes, ALIGN),
        result_bytes_max=_round_up(result, ALIGN),
        scratch_bytes=wire.experts_scratch_bytes(
            largest.hidden, rows, largest.tokens, largest.top_k, cores
        ),
        call_time_limit_ms=options.call_time_limit_ms,
    )
