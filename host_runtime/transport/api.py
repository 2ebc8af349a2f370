"""Host and ducks exchange messages through ``Transport``: a typed wrapper around libduckhost.so.

Every method is thread-safe and releases the interpreter while it waits. Buffers go by address, so
numpy arrays and torch tensors are read and written in place.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from host_runtime import wire
from host_runtime.transport import native
from host_runtime.transport.errors import TransportCode, TransportError, native_error
from host_runtime.transport.lanes import Lane, Lanes, LaneShape

REPLY_BYTES_MAX = wire.WIRE_PACKET_BYTES_MAX


@dataclass(frozen=True)
class DomainEndpoint:
    """One domain. ``call_address`` None: calls go to each duck, else they are broadcast there.

    ``device`` None: UDP sockets; else a DPDK device. ``cpu``: where the domain's thread runs.
    """

    name: str
    bind_address: str | None
    call_address: str | None
    mtu: int
    device: str | None = None
    cpu: int | None = None


@dataclass(frozen=True)
class DuckEndpoint:
    """One duck; ``domain`` is an index into the domains."""

    name: str
    address: str
    port: int
    domain: int


@dataclass(frozen=True)
class TransportOptions:
    """Times and limits; 0 means the default told in duckhost.h (struct duckhost_options)."""

    poll_policy: wire.PollPolicy = wire.PollPolicy.BLOCK
    silence_ms: int = 0
    call_ms: int = 0
    request_retry_us: int = 0
    query_us: int = 0
    retry_us_max: int = 0
    nack_us: int = 0
    ping_ms: int = 0
    bulk_chunk_bytes: int = 0
    bulk_chunks_max: int = 0
    bulk_mbps: int = 0
    socket_buffer_bytes: int = 0
    rekey_ms: int = 0
    rekey_packets: int = 0
    session_calls_max: int = 0


@dataclass(frozen=True)
class Faults:
    """Fault injection: probabilities per packet and direction, a random delay, ducks cut off."""

    seed: int = 1
    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    delay_us: int = 0
    cut_ducks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Greeting:
    """What a handshake brought: the duck's own words, the key that it proved to hold."""

    info: wire.Info
    identity: bytes
    round_trip_ns: int


# Judges a duck by its index and what it proved; raises when it must not be talked to.
IdentityCheck = Callable[[int, Greeting], None]


class _Fleet:
    """The native fleet while it may be used: ``with fleet as handle``."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._handle: ctypes.c_void_p | None = None
        self._users = 0

    def set(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle

    def __enter__(self) -> ctypes.c_void_p:
        with self._changed:
            if self._handle is None:
                raise TransportError("the transport is closed", code=TransportCode.CLOSED)
            self._users += 1
            return self._handle

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._users -= 1
            self._changed.notify_all()

    def take(self) -> ctypes.c_void_p | None:
        """Nobody gets the handle any more; None when that was so before."""
        with self._changed:
            handle, self._handle = self._handle, None
            return handle

    def wait_unused(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._users == 0)


class Transport:
    """The ducks of one fleet, reached through one port per domain. Nothing is sent on opening.

    ``key`` is the fleet's private key. ``check_identity`` is asked about every duck that has
    proven its own key; without it every key is good.
    """

    def __init__(
        self,
        library: Path,
        domains: Sequence[DomainEndpoint],
        ducks: Sequence[DuckEndpoint],
        key: bytes,
        options: TransportOptions | None = None,
        check_identity: IdentityCheck | None = None,
    ) -> None:
        if len(key) != wire.WIRE_KEY_BYTES:
            raise ValueError(f"a fleet key has {wire.WIRE_KEY_BYTES} bytes, this one {len(key)}")
        self._check_identity = check_identity
        self._library = native.load(library)
        self.build: str = self._library.duckhost_build().decode()
        self._duck_count = len(ducks)
        self._trace_entries = 0
        self._fleet = _Fleet()
        fleet = ctypes.c_void_p()
        settings = native.Options(**asdict(options or TransportOptions()))
        domain_array = (native.Domain * len(domains))(*map(_domain, domains))
        duck_array = (native.Duck * len(ducks))(*map(_duck, ducks))
        error = native.Error()
        code = self._library.duckhost_open(
            domain_array,
            len(domains),
            duck_array,
            len(ducks),
            key,
            settings,
            ctypes.byref(fleet),
            error,
        )
        _check(code, error)
        self._fleet.set(fleet)

    # ---- single ducks --------------------------------------------------------------------------
    def hello(self, duck: int, timeout_ms: int) -> Greeting:
        """Begin a new session with a duck; an identity that is refused ends it at once."""
        info, round_trip_ns = wire.Info(), ctypes.c_uint64()
        identity = ctypes.create_string_buffer(wire.WIRE_KEY_BYTES)
        function = self._library.duckhost_hello
        self._call(function, duck, timeout_ms, info, identity, ctypes.byref(round_trip_ns))
        greeting = Greeting(info, identity.raw, round_trip_ns.value)
        if self._check_identity is not None:
            try:
                self._check_identity(duck, greeting)
            except BaseException:
                self.detach(duck)
                raise
        return greeting

    def detach(self, duck: int) -> None:
        """Forget the session with a duck; what waits for it fails."""
        self._call(self._library.duckhost_detach, duck)

    def request(
        self, duck: int, kind: wire.MessageType, payload: bytes, timeout_ms: int
    ) -> tuple[wire.MessageType, bytes]:
        """One request and its reply. An error status of the duck is a DuckRefusedError."""
        reply = ctypes.create_string_buffer(REPLY_BYTES_MAX)
        reply_type, reply_bytes = ctypes.c_uint32(), ctypes.c_uint32()
        self._call(
            self._library.duckhost_request,
            duck,
            kind,
            payload,
            len(payload),
            timeout_ms,
            reply,
            len(reply),
            ctypes.byref(reply_type),
            ctypes.byref(reply_bytes),
        )
        return wire.MessageType(reply_type.value), reply.raw[: reply_bytes.value]

    def write(
        self,
        duck: int,
        region: wire.Region,
        offset: int,
        data: bytes | bytearray | memoryview,
        progress: native.Progress | None = None,
    ) -> None:
        """Write ``data`` to a reserved region; returns when the duck has all of it."""
        with _address_of(data) as (address, size):
            self.write_memory(duck, region, offset, address, size, progress)

    def write_memory(
        self,
        duck: int,
        region: wire.Region,
        offset: int,
        address: int,
        size: int,
        progress: native.Progress | None = None,
    ) -> None:
        """The same from an address, e.g. a tensor's data_ptr()."""
        function = self._library.duckhost_write
        self._call(function, duck, region, offset, address, size, progress)

    # ---- compute -------------------------------------------------------------------------------
    def session_open(
        self,
        ducks: Sequence[int],
        request: wire.Open,
        timeout_ms: int,
        weights_ids: Mapping[int, bytes] | None = None,
    ) -> None:
        """Open a compute session of the loaded kernel on these ducks; closes the last one.

        ``weights_ids``: the set id (32 bytes) that each duck must hold; without it the request's
        for all, and zero is any. A duck that holds another one is a DuckRefusedError.
        """
        mask = sum(1 << duck for duck in set(ducks))
        ids = None
        if weights_ids is not None:
            size, any_id = wire.WIRE_DIGEST_BYTES, bytes(wire.WIRE_DIGEST_BYTES)
            ids = b"".join(weights_ids.get(duck, any_id) for duck in range(self._duck_count))
            if len(ids) != size * self._duck_count:
                raise ValueError(f"a weights id has {size} bytes")
        self._call(self._library.duckhost_session_open, mask, request, ids, timeout_ms)

    def session_close(self) -> None:
        """End the compute session; calls under way fail."""
        self._call(self._library.duckhost_session_close)

    def submit(self, address: int, size: int) -> int:
        """Send one message to every duck of the session; the bytes are copied. A ticket.

        Waits for its turn while four calls are with the ducks. Tickets may be waited for in any
        order; at most eight may be unreleased.
        """
        ticket = ctypes.c_uint64()
        self._call(self._library.duckhost_submit, address, size, ctypes.byref(ticket))
        return ticket.value

    def wait_sum(
        self, ticket: int, dtype: wire.Dtype, out_address: int, count: int
    ) -> native.Timing:
        """Wait, add the ducks' outputs in duck order to ``count`` float32, release the ticket."""
        timing = native.Timing()
        self._call(self._library.duckhost_wait_sum, ticket, dtype, out_address, count, timing)
        return timing

    def wait(self, ticket: int) -> native.Timing:
        """Wait only; then ``result`` for each duck, and ``release``."""
        timing = native.Timing()
        self._call(self._library.duckhost_wait, ticket, timing)
        return timing

    def result(self, ticket: int, duck: int) -> bytes:
        """A copy of one duck's output of a finished call."""
        data, size = ctypes.c_void_p(), ctypes.c_uint32()
        function = self._library.duckhost_result
        self._call(function, ticket, duck, ctypes.byref(data), ctypes.byref(size))
        return ctypes.string_at(data, size.value)

    def release(self, ticket: int) -> None:
        """Give back a ticket, whether its call is finished or not."""
        self._call(self._library.duckhost_release, ticket)

    def open_lanes(self, lanes: Sequence[Lane], shape: LaneShape) -> Lanes:
        """Native threads that answer the mailboxes ``lanes`` with the session's ducks."""
        return Lanes(self._library, self._fleet, lanes, shape)

    # ---- what is going on ----------------------------------------------------------------------
    def duck_status(self, duck: int) -> native.DuckLinkStatus:
        """Heartbeat and counters of one duck; never waits."""
        status = native.DuckLinkStatus()
        with self._fleet as handle:
            if self._library.duckhost_get_duck_status(handle, duck, status) != 0:
                raise ValueError(f"duck {duck}, there are {self._duck_count}")
        return status

    def domain_stats(self, domain: int) -> native.DomainStats:
        """Counters of one domain's port; never waits."""
        stats = native.DomainStats()
        with self._fleet as handle:
            if self._library.duckhost_get_domain_stats(handle, domain, stats) != 0:
                raise ValueError(f"there is no domain {domain}")
        return stats

    def set_trace(self, calls: int) -> None:
        """Keep the last ``calls`` calls with every duck's times; 0 = none, as at first."""
        self._call(self._library.duckhost_set_trace, calls)
        self._trace_entries = calls * self._duck_count

    def trace(self) -> list[native.TraceEntry]:
        """The calls kept so far, oldest first: one entry per call and duck."""
        entries = (native.TraceEntry * max(1, self._trace_entries))()
        count = ctypes.c_uint32()
        function = self._library.duckhost_get_trace
        self._call(function, entries, self._trace_entries, ctypes.byref(count))
        return list(entries[: count.value])

    def set_faults(self, faults: Faults) -> None:
        """Inject faults from now on; ``Faults()`` ends it."""
        settings = native.FaultSettings(
            seed=faults.seed,
            drop=faults.drop,
            duplicate=faults.duplicate,
            reorder=faults.reorder,
            corrupt=faults.corrupt,
            delay_us=faults.delay_us,
            cut_ducks=sum(1 << duck for duck in set(faults.cut_ducks)),
        )
        self._call(self._library.duckhost_set_faults, settings)

    def run_native(self, function: Callable[..., int], *arguments: object) -> None:
        """``function(fleet, *arguments, error)`` of another native library that makes calls."""
        self._call(function, *arguments)

    def _call(self, function: Callable[..., int], *arguments: object) -> None:
        """One native function on this fleet; its error becomes an exception."""
        error = native.Error()
        with self._fleet as handle:
            code = function(handle, *arguments, error)
        _check(code, error)

    # ---- the end -------------------------------------------------------------------------------
    def close(self) -> None:
        """End the threads; methods running elsewhere fail with CLOSED. Again: does nothing."""
        handle = self._fleet.take()
        if handle is None:
            return
        self._library.duckhost_stop(handle)
        self._fleet.wait_unused()
        self._library.duckhost_close(handle)

    def __enter__(self) -> Transport:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _domain(endpoint: DomainEndpoint) -> native.Domain:
    return native.Domain(
        name=_text(endpoint.name, wire.WIRE_NAME_BYTES),
        bind_address=_text(endpoint.bind_address or "", native.ADDRESS_BYTES),
        call_address=_text(endpoint.call_address or "", native.ADDRESS_BYTES),
        mtu=endpoint.mtu,
        cpu=0 if endpoint.cpu is None else endpoint.cpu + 1,
        device=_text(endpoint.device or "", native.DEVICE_BYTES),
    )


def _duck(endpoint: DuckEndpoint) -> native.Duck:
    return native.Duck(
        name=_text(endpoint.name, wire.WIRE_NAME_BYTES),
        address=_text(endpoint.address, native.ADDRESS_BYTES),
        domain=endpoint.domain,
        port=endpoint.port,
    )


def _text(text: str, room: int) -> bytes:
    encoded = text.encode()
    if len(encoded) >= room:
        raise ValueError(f"{text!r} is too long: at most {room - 1} bytes")
    return encoded


class _PyBuffer(ctypes.Structure):
    """Py_buffer of Python's stable ABI (PEP 3118)."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


@contextlib.contextmanager
def _address_of(data: bytes | bytearray | memoryview) -> Iterator[tuple[int, int]]:
    """Where the bytes of a contiguous buffer lie (read-only maps too); pinned meanwhile."""
    buffer = _PyBuffer()
    simple_request = 0  # PyBUF_SIMPLE
    ctypes.pythonapi.PyObject_GetBuffer(
        ctypes.py_object(data), ctypes.byref(buffer), simple_request
    )
    try:
        yield buffer.buf or 0, buffer.len
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))


def _check(code: int, error: native.Error) -> None:
    problem = native_error(code, error)
    try:
        if problem is not None:
            raise problem
    finally:
        del problem  # else it and all that callers hold stay until the cyclic garbage collection
