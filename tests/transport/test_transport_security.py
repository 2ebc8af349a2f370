"""Replayed, forged, damaged and misdirected packets are counted, ignored and never answered."""

from __future__ import annotations

import ctypes
import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from transport_kit import (
    CRASH,
    call,
    factor_of,
    library,
    load,
    message,
    open_request,
    running_shelf,
    scale_call,
    scaled_sum,
    submit,
    wait_sum,
    wait_until,
)

from host_runtime import wire
from host_runtime.transport import (
    DomainEndpoint,
    DomainStats,
    DuckEndpoint,
    DuckFaultError,
    DuckLinkStatus,
    Transport,
    TransportOptions,
)

HEADER_BYTES = ctypes.sizeof(wire.PacketHeader)
MAC_AT = 40  # in the packet header


class Relay:
    """A wire between host and duck that keeps a copy of everything. What ``holds`` is true of is
    kept from the host."""

    def __init__(self, duck_port: int) -> None:
        self._host_side = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._duck_side = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._host_side.bind(("127.0.0.1", 0))
        self._duck_side.connect(("127.0.0.1", duck_port))
        self.port: int = self._host_side.getsockname()[1]
        self.host: tuple[str, int] | None = None
        self.to_host: list[bytes] = []
        self.to_duck: list[bytes] = []
        self.holds: Callable[[bytes], bool] = lambda _: False
        self.held: list[bytes] = []
        self._is_over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over:
            ready, _, _ = select.select([self._host_side, self._duck_side], [], [], 0.05)
            if self._host_side in ready:
                packet, self.host = self._host_side.recvfrom(65536)
                self.to_duck.append(packet)
                self._duck_side.send(packet)
            if self._duck_side in ready:
                packet = self._duck_side.recv(65536)
                self.to_host.append(packet)
                assert self.host is not None
                if self.holds(packet):
                    self.held.append(packet)
                else:
                    self._host_side.sendto(packet, self.host)

    def inject(self, packet: bytes) -> None:
        """To the host, from the duck's address as the host sees it."""
        assert self.host is not None
        self._host_side.sendto(packet, self.host)

    def close(self) -> None:
        self._is_over = True
        self._thread.join()
        self._host_side.close()
        self._duck_side.close()


@pytest.fixture
def wired(tmp_path: Path, echo_kernel: bytes) -> Iterator[tuple[Relay, Transport]]:
    """One serving duck behind a relay; heartbeats are rare, so that silence can be seen."""
    options = TransportOptions(silence_ms=60_000, ping_ms=50_000)
    with running_shelf(tmp_path, echo_kernel, [0]) as shelf:
        relay = Relay(shelf.ducks[0].port)
        domains = [DomainEndpoint("domain1", "127.0.0.1", None, 1500)]
        ducks = [DuckEndpoint("d01", "127.0.0.1", relay.port, 0)]
        try:
            with Transport(library(), domains, ducks, shelf.key, options) as transport:
                load(transport, 0, shelf.kernel, factor_of(0))
                transport.session_open([0], open_request(), 10_000)
                check_calls(transport)
                yield relay, transport
        finally:
            relay.close()


def check_calls(transport: Transport) -> None:
    values = np.arange(1000, dtype=np.float32)
    for _ in range(3):
        np.testing.assert_array_equal(
            call(transport, scale_call(values), 1000), scaled_sum(values, [0])
        )


def expect_drops(
    wired: tuple[Relay, Transport],
    packets: list[bytes],
    counter: Callable[[DuckLinkStatus, DomainStats], int],
) -> None:
    """Every injected packet is counted there; the host sends nothing back; calls go on."""
    relay, transport = wired

    def counted() -> int:
        return counter(transport.duck_status(0), transport.domain_stats(0))

    before, sent = counted(), len(relay.to_duck)
    for packet in packets:
        relay.inject(packet)
    wait_until(lambda: counted() >= before + len(packets), 5, "all packets counted")
    assert counted() == before + len(packets)
    assert len(relay.to_duck) == sent, "the host answered"
    check_calls(transport)


def session_packets(relay: Relay) -> list[bytes]:
    """What the duck sent under the session key."""
    is_sealed = [
        p for p in relay.to_host if p[6] == wire.WireKey.SESSION and p[5] != wire.MessageType.INFO
    ]
    assert len(is_sealed) > 10
    return is_sealed[-40:]


def with_field(packet: bytes, name: str, value: int) -> bytes:
    header = wire.PacketHeader.from_buffer_copy(packet)
    setattr(header, name, value)
    return bytes(header) + packet[HEADER_BYTES:]


def test_replayed_packets(wired: tuple[Relay, Transport]) -> None:
    expect_drops(wired, session_packets(wired[0]), lambda duck, _: duck.dropped_replay)


def test_replayed_info(wired: tuple[Relay, Transport]) -> None:
    infos = [packet for packet in wired[0].to_host if packet[5] == wire.MessageType.INFO]
    assert infos
    expect_drops(wired, infos, lambda duck, _: duck.dropped_session)


def test_replayed_and_forged_cookies(wired: tuple[Relay, Transport]) -> None:
    """Nobody asked; while somebody asks, a cookie must have the question's nonce."""
    cookies = [packet for packet in wired[0].to_host if packet[5] == wire.MessageType.COOKIE]
    assert cookies
    forged = [with_field(cookies[0], "session", 99), cookies[0]]
    expect_drops(wired, cookies + forged, lambda duck, _: duck.dropped_session)


def test_forged_packets(wired: tuple[Relay, Transport]) -> None:
    """One changed bit in the seal, the counter or the contents, wherever it is."""
    forged = []
    for packet in session_packets(wired[0]):
        for at in (32, MAC_AT, MAC_AT + 15, len(packet) - 1):
            changed = bytearray(packet)
            changed[at] ^= 0x10
            forged.append(bytes(changed))
    expect_drops(wired, forged, lambda duck, _: duck.dropped_mac)


def test_another_session(wired: tuple[Relay, Transport]) -> None:
    packets = [with_field(packet, "session", 0x12345678) for packet in session_packets(wired[0])]
    expect_drops(wired, packets, lambda duck, _: duck.dropped_session)


def test_wrong_lengths(wired: tuple[Relay, Transport]) -> None:
    packets = session_packets(wired[0])
    wrong = [packet[:-1] for packet in packets] + [packet + b"x" for packet in packets]
    wrong += [with_field(packet, "message_bytes", 0xFFFFFFFF) for packet in packets]
    wrong += [with_field(packet, "fragment_bytes", 0) for packet in packets]
    wrong += [with_field(packet, "fragment_bytes", 100) for packet in packets]
    wrong += [with_field(packet, "fragment_index", 0xFFFFFFFF) for packet in packets]
    wrong += [with_field(p, "start", 1) for p in packets if p[5] != wire.MessageType.RESULT]
    expect_drops(wired, wrong, lambda duck, _: duck.dropped_size)


def test_short_foreign_and_other_versions(wired: tuple[Relay, Transport]) -> None:
    packet = session_packets(wired[0])[0]
    short = [packet[:size] for size in (1, 8, HEADER_BYTES - 1)]
    expect_drops(wired, [*short, b""], lambda _, domain: domain.dropped_short)
    foreign = [with_field(packet, "magic", 0x4B435545), bytes(200)]
    expect_drops(wired, foreign, lambda _, domain: domain.dropped_magic)
    other = [with_field(packet, "version", version) for version in (0, 1, 255)]
    expect_drops(wired, other, lambda _, domain: domain.dropped_version)


def test_wrong_keys_and_types(wired: tuple[Relay, Transport]) -> None:
    """A duck has no domain key to speak with, and only COOKIE comes in clear."""
    packets = session_packets(wired[0])
    by_domain = [with_field(packet, "key", wire.WireKey.DOMAIN) for packet in packets]
    in_clear = [with_field(packet, "key", wire.WireKey.CLEAR) for packet in packets]
    expect_drops(wired, by_domain + in_clear, lambda duck, _: duck.dropped_type)


def test_another_source(wired: tuple[Relay, Transport]) -> None:
    relay, transport = wired
    packets = session_packets(relay)
    before = transport.domain_stats(0).dropped_source
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        assert relay.host is not None
        for packet in packets:
            stranger.sendto(packet, relay.host)
        wait_until(
            lambda: transport.domain_stats(0).dropped_source == before + len(packets), 5, "counted"
        )
        stranger.settimeout(0.05)
        with pytest.raises(TimeoutError):
            stranger.recv(65536)
    check_calls(transport)


def test_packets_of_an_ended_session(wired: tuple[Relay, Transport]) -> None:
    """After a new HELLO nothing of the old session counts."""
    relay, transport = wired
    old = session_packets(relay)
    transport.hello(0, 5000)
    before = transport.duck_status(0).dropped_session
    for packet in old:
        relay.inject(packet)
    wait_until(lambda: transport.duck_status(0).dropped_session == before + len(old), 5, "counted")


def first_is_late(relay: Relay, kind: wire.MessageType) -> None:
    """The first packet of this type stays on the wire; the duck sends it again when asked."""
    relay.held.clear()
    relay.holds = lambda packet: packet[5] == kind and not relay.held


def test_a_late_result_of_an_earlier_compute_session(wired: tuple[Relay, Transport]) -> None:
    """It has a call's number of the open session, too: calls count from 1 after each OPEN."""
    relay, transport = wired
    transport.session_open([0], open_request(), 10_000)
    first_is_late(relay, wire.MessageType.RESULT)
    values = np.arange(100, dtype=np.float32)
    np.testing.assert_array_equal(call(transport, scale_call(values), 100), scaled_sum(values, [0]))
    late = relay.held.copy()
    assert len(late) == 1
    transport.session_open([0], open_request(), 10_000)
    before = transport.duck_status(0).dropped_session
    relay.holds = lambda packet: packet[5] == wire.MessageType.RESULT
    ticket = submit(transport, scale_call(values + 1))
    wait_until(lambda: len(relay.held) > 1, 5, "the duck has answered the open session's call")
    relay.inject(late[0])
    relay.holds = lambda _: False
    result = wait_sum(transport, ticket, 100)
    np.testing.assert_array_equal(result, scaled_sum(values + 1, [0]))
    assert transport.duck_status(0).dropped_session == before + 1


def test_a_late_fault_of_an_earlier_compute_session(wired: tuple[Relay, Transport]) -> None:
    """What ended that session does not end this one."""
    relay, transport = wired
    first_is_late(relay, wire.MessageType.FAULT)
    with pytest.raises(DuckFaultError):
        call(transport, message(CRASH), 100)
    transport.session_open([0], open_request(), 10_000)
    assert len(relay.held) == 1
    expect_drops(wired, relay.held, lambda duck, _: duck.dropped_session)
