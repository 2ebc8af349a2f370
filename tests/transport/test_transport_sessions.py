"""A session proves key, version and life of a duck, and every wait for a duck ends."""

from __future__ import annotations

import ctypes
import hashlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from real_duckd import new_key
from relay import relayed
from transport_kit import (
    BUSY,
    HELLO_MS,
    REQUEST_MS,
    done,
    library,
    load,
    message,
    reserve,
    running_shelf,
    serving,
    submit,
    wait_sum,
    wait_until,
)

from duckctl.native import native_path
from host_runtime import wire
from host_runtime.transport import (
    DomainEndpoint,
    DuckEndpoint,
    DuckRefusedError,
    DuckUnreachableError,
    Faults,
    Greeting,
    Transport,
    TransportCode,
    TransportError,
    TransportOptions,
    VersionMismatchError,
)


def test_hello_tells_who_the_ducks_are(tmp_path: Path, echo_kernel: bytes) -> None:
    with running_shelf(tmp_path, echo_kernel, [0, 0, 1]) as shelf, shelf.transport() as transport:
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(lambda duck: transport.hello(duck, HELLO_MS), range(3)))
        for i, answer in enumerate(answers):
            info, round_trip_ns = answer.info, answer.round_trip_ns
            assert info.name == f"d{i + 1:02}".encode()
            assert bytes(info.build).hex() == transport.build == shelf.ducks[i].build
            assert info.protocol_version == wire.WIRE_VERSION
            assert info.state == wire.State.IDLE
            assert 0 < round_trip_ns < HELLO_MS * 1_000_000
            assert answer.identity == identity_of(shelf.ducks[i].identity_file)
            assert 0 < transport.duck_status(i).handshake_ns < HELLO_MS * 1_000_000
        assert len({answer.info.boot_id for answer in answers}) == 3


def identity_of(path: Path) -> bytes:
    """The public half of a duck's own key, by another library than its own."""
    digits = path.read_text().strip().removeprefix("duck-x25519-private:")
    private = X25519PrivateKey.from_private_bytes(bytes.fromhex(digits))
    return private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def test_another_fleets_key_is_not_believed_and_the_hint_says_so(
    tmp_path: Path, echo_kernel: bytes
) -> None:
    with (
        running_shelf(tmp_path, echo_kernel, [0]) as shelf,
        shelf.transport(key=new_key()) as transport,
        pytest.raises(DuckUnreachableError, match=r"d01 .*no INFO after this host's proof") as e,
    ):
        transport.hello(0, 300)
    assert "public key that belongs to this fleet's private key" in e.value.hint
    assert e.value.ducks == (0,)


def test_an_unused_port_is_named_as_such(tmp_path: Path, echo_kernel: bytes) -> None:
    with running_shelf(tmp_path, echo_kernel, [0]) as shelf, shelf.transport() as transport:
        shelf.ducks[0].kill()
        with pytest.raises(DuckUnreachableError, match="d01") as caught:
            transport.hello(0, 300)
        assert "nothing listens on this port" in caught.value.hint


def test_another_build_is_told(tmp_path: Path, echo_kernel: bytes) -> None:
    with running_shelf(tmp_path, echo_kernel, [0]) as shelf:
        build = shelf.ducks[0].build
    other = hashlib.sha1(b"another build").hexdigest()
    binary = tmp_path / "duckd-other"
    binary.write_bytes(native_path("duckd").read_bytes().replace(build.encode(), other.encode()))
    binary.chmod(0o755)
    with (
        running_shelf(tmp_path, echo_kernel, [0], binary=binary) as shelf,
        shelf.transport() as transport,
    ):
        info = transport.hello(0, HELLO_MS).info
        assert bytes(info.build).hex() == other != transport.build


def answer_with_version(stranger: socket.socket, version: int) -> None:
    """A duck of another protocol version: its COOKIE has the form that all versions share."""
    packet, host = stranger.recvfrom(65536)
    header = wire.PacketHeader.from_buffer_copy(packet)
    hello = wire.Hello.from_buffer_copy(packet, ctypes.sizeof(header))
    cookie = wire.Cookie(session=hello.session, protocol_version=version, name=b"future")
    cookie.host_nonce[:] = list(hello.host_nonce)
    header.version, header.type = version, wire.MessageType.COOKIE
    stranger.sendto(bytes(header) + bytes(cookie), host)


def test_another_protocol_version_is_named() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.bind(("127.0.0.1", 0))
        port = stranger.getsockname()[1]
        answering = threading.Thread(target=answer_with_version, args=(stranger, 9))
        answering.start()
        domains = [DomainEndpoint("domain1", None, None, 1500)]
        ducks = [DuckEndpoint("d01", "127.0.0.1", port, 0)]
        with (
            Transport(library(), domains, ducks, new_key()) as transport,
            pytest.raises(VersionMismatchError) as caught,
        ):
            transport.hello(0, HELLO_MS)
        answering.join()
    assert "d01 (127.0.0.1:" in caught.value.message
    assert "speaks protocol version 9, this host speaks 2" in caught.value.message


@pytest.mark.slow
def test_hello_survives_loss(tmp_path: Path, echo_kernel: bytes) -> None:
    with running_shelf(tmp_path, echo_kernel, [0]) as shelf, shelf.transport() as transport:
        transport.set_faults(Faults(seed=11, drop=0.4, duplicate=0.2, reorder=0.2))
        for _ in range(10):
            transport.hello(0, 10000)
        assert transport.domain_stats(0).faults.dropped > 0


@pytest.mark.parametrize("timeout_ms", [200, 900])  # after 600 ms HELLO begins anew
def test_a_duck_whose_hello_failed_is_not_attached(tmp_path: Path, timeout_ms: int) -> None:
    """It sent INFO and then nothing more: nobody judged its identity, so nobody may use it."""
    told: list[wire.MessageType] = []

    def until_info(kind: wire.MessageType) -> bool:
        told.append(kind)
        return wire.MessageType.INFO not in told[:-1]

    def judge(index: int, greeting: Greeting) -> None:
        raise ValueError(f"not asked about duck {index}: {greeting}")

    with (
        running_shelf(tmp_path, b"", [0]) as shelf,
        relayed((shelf.ducks[0].address, shelf.ducks[0].port)) as relay,
    ):
        relay.passes = until_info
        domains = [DomainEndpoint("domain1", None, None, 1500)]
        ducks = [DuckEndpoint("d01", "127.0.0.1", relay.port, 0)]
        with Transport(library(), domains, ducks, shelf.key, check_identity=judge) as transport:
            with pytest.raises(DuckUnreachableError, match="d01"):
                transport.hello(0, timeout_ms)
            assert wire.MessageType.INFO in told
            assert transport.duck_status(0).attached == 0
            with pytest.raises(TransportError, match=r"d01 .*is not attached"):
                transport.request(0, wire.MessageType.STATS, bytes(256), REQUEST_MS)


def test_a_failed_hello_leaves_an_earlier_session_alone(tmp_path: Path) -> None:
    """One that no INFO answered has replaced nothing."""
    with running_shelf(tmp_path, b"", [0]) as shelf, shelf.transport() as transport:
        transport.hello(0, HELLO_MS)
        transport.set_faults(Faults(cut_ducks=(0,)))
        with pytest.raises(DuckUnreachableError, match="d01"):
            transport.hello(0, 100)
        transport.set_faults(Faults())
        transport.request(0, wire.MessageType.STATS, bytes(256), REQUEST_MS)


def test_requests_and_their_replies(tmp_path: Path, echo_kernel: bytes) -> None:
    with running_shelf(tmp_path, echo_kernel, [0]) as shelf, shelf.transport() as transport:
        with pytest.raises(TransportError, match="is not attached: STATS needs a HELLO") as early:
            transport.request(0, wire.MessageType.STATS, bytes(256), REQUEST_MS)
        assert early.value.code is TransportCode.STATE
        load(transport, 0, echo_kernel, 2.5)
        kind, reply = transport.request(0, wire.MessageType.STATS, bytes(256), REQUEST_MS)
        assert kind == wire.MessageType.STATS
        assert wire.Stats.from_buffer_copy(reply).commits == 2
        read = wire.Read(region=wire.Region.KERNEL, bytes=700, offset=64)
        kind, reply = transport.request(0, wire.MessageType.READ, bytes(read), REQUEST_MS)
        assert (kind, reply) == (wire.MessageType.READ_DATA, echo_kernel[64:764])
        kind, reply = transport.request(0, wire.MessageType.LOG, bytes(1008), REQUEST_MS)
        log = wire.LogReply.from_buffer_copy(reply)
        assert kind == wire.MessageType.LOG and len(reply) == 16 + log.text_bytes > 16
        with pytest.raises(DuckRefusedError, match=r"d01 .*refused RESERVE: bad request") as e:
            reserve(transport, 0, wire.Region.COUNT, 5)
        assert e.value.status == wire.Status.ERR_BAD_REQUEST
        with pytest.raises(TransportError, match="message type 17 is not a request"):
            transport.request(0, wire.MessageType.WRITE, b"", REQUEST_MS)


def test_many_requests_at_once_wait_their_turn(tmp_path: Path, echo_kernel: bytes) -> None:
    with running_shelf(tmp_path, echo_kernel, [0]) as shelf, shelf.transport() as transport:
        transport.hello(0, HELLO_MS)
        transport.set_faults(Faults(seed=12, drop=0.1, duplicate=0.1))
        with ThreadPoolExecutor(12) as pool:
            replies = list(
                pool.map(
                    lambda _: transport.request(0, wire.MessageType.STATS, bytes(256), REQUEST_MS),
                    range(60),
                )
            )
        assert {kind for kind, _ in replies} == {wire.MessageType.STATS}


def test_a_request_to_a_dead_duck_ends(tmp_path: Path, echo_kernel: bytes) -> None:
    options = TransportOptions(silence_ms=500, ping_ms=100)
    with running_shelf(tmp_path, echo_kernel, [0]) as shelf, shelf.transport(options) as transport:
        transport.hello(0, HELLO_MS)
        shelf.ducks[0].kill()
        begin = time.monotonic()
        with pytest.raises(DuckUnreachableError, match=r"d01 .*does not answer: .* during STATS"):
            transport.request(0, wire.MessageType.STATS, bytes(256), REQUEST_MS)
        assert time.monotonic() - begin < 3


def test_heartbeat_goes_on_while_idle_and_ends_with_the_duck(
    tmp_path: Path, echo_kernel: bytes
) -> None:
    options = TransportOptions(ping_ms=50)
    with running_shelf(tmp_path, echo_kernel, [0]) as shelf, shelf.transport(options) as transport:
        assert transport.duck_status(0).heard_age_ns == 0xFFFFFFFFFFFFFFFF
        info = transport.hello(0, HELLO_MS).info
        received = transport.duck_status(0).packets_received
        wait_until(lambda: transport.duck_status(0).packets_received > received + 5, 5, "pongs")
        status = transport.duck_status(0)
        assert (status.attached, status.boot_id, status.boot_changed) == (1, info.boot_id, 0)
        assert 0 < status.round_trip_ns < 1_000_000_000
        shelf.ducks[0].kill()
        wait_until(lambda: transport.duck_status(0).heard_age_ns > 500_000_000, 5, "silence")


def test_detach_and_a_restarted_duck(tmp_path: Path, echo_kernel: bytes) -> None:
    with running_shelf(tmp_path, echo_kernel, [0, 0]) as shelf, shelf.transport() as transport:
        first = transport.hello(0, HELLO_MS).info
        transport.hello(1, HELLO_MS)
        transport.detach(0)
        assert transport.duck_status(0).attached == 0
        with pytest.raises(TransportError, match=r"d01 .*is not attached"):
            transport.request(0, wire.MessageType.STATS, bytes(256), REQUEST_MS)
        shelf.ducks[0].kill()
        shelf.ducks[0].start()
        second = transport.hello(0, HELLO_MS).info
        assert second.boot_id != first.boot_id
        for duck in range(2):
            transport.request(duck, wire.MessageType.STATS, bytes(256), REQUEST_MS)


def test_reboot_begins_anew(tmp_path: Path, echo_kernel: bytes) -> None:
    with running_shelf(tmp_path, echo_kernel, [0]) as shelf, shelf.transport() as transport:
        load(transport, 0, echo_kernel, 1.0)
        before = transport.hello(0, HELLO_MS).info
        assert before.state == wire.State.READY
        done(transport, 0, wire.MessageType.REBOOT, bytes(208))

        def is_new() -> bool:
            return transport.hello(0, HELLO_MS).info.boot_id != before.boot_id

        wait_until(is_new, 5, "another boot_id")
        assert transport.hello(0, HELLO_MS).info.state == wire.State.IDLE


def watch_forever(transport: Transport) -> None:
    while True:
        transport.duck_status(0)


def test_closing_ends_every_wait(tmp_path: Path, echo_kernel: bytes) -> None:
    """A call, a write, a request and a look at counters in other threads end with CLOSED."""
    found: list[TransportCode] = []

    def note(action: object, *arguments: object) -> None:
        try:
            assert callable(action)
            action(*arguments)
        except TransportError as error:
            found.append(error.code)

    options = TransportOptions(silence_ms=20000)
    with (
        running_shelf(tmp_path, echo_kernel, [0, 0]) as shelf,
        serving(shelf, options) as transport,
    ):
        ticket = submit(transport, message(BUSY, 0xFFFFFFFF))
        transport.set_faults(Faults(cut_ducks=(1,)))
        waits = [
            threading.Thread(target=note, args=(wait_sum, transport, ticket, 4)),
            threading.Thread(
                target=note, args=(transport.write, 1, wire.Region.WEIGHTS, 0, bytes(4096))
            ),
            threading.Thread(
                target=note,
                args=(transport.request, 1, wire.MessageType.STATS, bytes(256), 20000),
            ),
        ]
        for wait in waits:
            wait.start()
        watcher = threading.Thread(target=note, args=(watch_forever, transport))
        watcher.start()
        cut = transport.domain_stats(0).faults.cut
        wait_until(lambda: transport.domain_stats(0).faults.cut > cut + 3, 5, "packets cut off")
        transport.close()
        for wait in (*waits, watcher):
            wait.join(5)
            assert not wait.is_alive()
    assert found == [TransportCode.CLOSED] * 4
