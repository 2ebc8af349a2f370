"""Proves duckd's manners on the wire: who is answered, who is counted and dropped, and that no
question gets an answer longer than itself."""

from __future__ import annotations

import contextlib
import random
import struct
import time
from collections.abc import Callable

import duckd_client as wire
import pytest
from duckd_client import Client
from duckd_crypto import FleetKey, public_bytes
from duckd_process import DuckProcess

Kernel = Callable[..., bytes]
FIXED_SIZES = {
    wire.PING: 32,
    wire.LOG: 1008,
    wire.STATS: 256,
    wire.USAGE: 296,
    wire.REBOOT: 208,
    wire.RESERVE: 208,
    wire.COMMIT: 208,
    wire.READ: 1024,
    wire.OPEN: 208,
    wire.QUERY: 208,
    wire.CLOSE: 208,
    wire.DOMAIN_KEY: 208,
    wire.REKEY: 40,
}


def counted(client: Client, counter: str, packets: list[bytes]) -> int:
    """How far a drop counter moved while these packets came; none of them may be answered."""
    before = client.stats()[counter]
    for packet in packets:
        client.send_raw(packet)
    assert client.silent()
    return client.stats()[counter] - before


# ---- handshake ----------------------------------------------------------------------------------


def test_info_tells_the_truth(duck: DuckProcess) -> None:
    with duck.client() as client:
        info = client.info
        assert info[48:68].hex() == duck.facts["build"]
        platform = struct.unpack_from("<I", info, 68)[0]
        assert platform == 1
        assert wire.text_of(info[72:104]) == "d01"
        cores, memory, weights_max, mtu = struct.unpack_from("<4xIQQI", info, 152)[:4]
        assert cores == 1
        total = int(open("/proc/meminfo").readline().split()[1]) << 10  # noqa: SIM115, PTH123
        assert memory == total
        assert 0 < weights_max < total
        loopback_mtu = int(open("/sys/class/net/lo/mtu").read())  # noqa: SIM115, PTH123
        assert mtu == loopback_mtu
        assert client.ping() == 0  # IDLE


def test_identity_is_the_one_in_its_file(duck: DuckProcess) -> None:
    """INFO opens under keys that need the private half of the identity that COOKIE told."""
    with duck.client() as client:
        assert client.identity == public_bytes(duck.identity)


def test_another_fleets_host_is_not_believed(duck: DuckProcess) -> None:
    """Its signature is wrong, or right for another public key: silence, and counted."""
    with duck.client() as friend, Client(duck.port, FleetKey()) as stranger:
        before = friend.stats()["dropped_mac"]
        stranger.send_raw(stranger.hello_packet())
        stranger.send_raw(stranger.make_proof(stranger.expect(wire.COOKIE).payload))
        assert stranger.silent()
        assert friend.stats()["dropped_mac"] == before + 1
    with Client(duck.port, duck.key) as liar:
        liar.send_raw(liar.hello_packet())
        cookie = liar.expect(wire.COOKIE).payload
        liar.send_raw(liar.make_proof(cookie, signer=FleetKey()))
        assert liar.silent()


def test_repeated_handshake_is_answered_alike(duck: DuckProcess) -> None:
    with Client(duck.port, duck.key) as client:
        for _ in range(3):
            client.send_raw(client.hello_packet())
        cookies = {client.expect(wire.COOKIE).payload for _ in range(3)}
        assert len(cookies) == 1
        client.make_proof(cookies.pop())
        for _ in range(3):
            client.send_raw(client.proof)
        boots = {client.expect(wire.INFO).payload[40:48] for _ in range(3)}
        assert len(boots) == 1


def test_replayed_handshake_does_not_disturb_its_session(duck: DuckProcess, kernel: Kernel) -> None:
    """A recorded HELLO brings a cookie for another address; a recorded PROOF nothing at all."""
    with duck.serving(kernel("echo")) as client, Client(duck.port, duck.key) as attacker:
        before = client.stats()["dropped_session"]
        for _ in range(50):
            attacker.send_raw(client.hello_packet())
            attacker.send_raw(client.proof)
        assert client.call(b"mine") == b"mine"
        assert client.stats()["dropped_session"] == before + 50
        answers = [attacker.socket.recv(2048) for _ in range(50)]
        assert {answer[5] for answer in answers} == {wire.COOKIE}
        assert {answer[80:96] for answer in answers}.isdisjoint({client.cookie[24:40]})


def test_hello_of_another_version_is_answered(duck: DuckProcess) -> None:
    """HELLO and COOKIE keep their form in every version: a stale host learns who is there."""
    with Client(duck.port, duck.key) as client:
        client.send_raw(client.hello_packet(version=9))
        cookie = client.expect(wire.COOKIE).payload
        assert struct.unpack_from("<II", cookie) == (client.session, wire.VERSION)
        assert cookie[112:132].hex() == duck.facts["build"]
        assert wire.text_of(cookie[136:168]) == "d01"


def test_rekey_in_the_middle_of_calls(duck: DuckProcess, kernel: Kernel) -> None:
    """Calls before, across and after fresh keys; what the old keys sealed is still good once."""
    with duck.serving(kernel("echo"), domain_session=77) as client:
        for turn in range(5):
            text = b"call %d" % turn
            waiting = client.call_fragments(text, client.call_sequence + 1)
            sealed = [client.seal(packet) for packet in waiting]
            client.rekey()
            client.send_raw(sealed[0])
            client.call_sequence += 1
            client.ping()  # the duck speaks under the new keys from here on
            client.query(client.call_sequence)  # the result may have come before PONG
            assert client.collect(client.call_sequence) == text
            assert client.call(b"after") == b"after"
        before = client.stats()["dropped_replay"]
        client.send_raw(sealed[0])
        assert client.silent()
        assert client.stats()["dropped_replay"] == before + 1


def test_domain_key_opens_for_its_own_session_only(duck: DuckProcess) -> None:
    """A key that was sealed for another session, or changed on its way, is refused in words."""
    with duck.client() as client, duck.client() as other:
        client.domain_session = other.domain_session = 5
        client.wrap, own = other.wrap, client.wrap
        refused = client.give_domain_key()
        assert (refused.status, refused.text) == (
            wire.BAD_REQUEST,
            "DOMAIN_KEY: the key does not open",
        )
        client.wrap = own
        assert client.give_domain_key().status == wire.OK
        client.domain_session = 0
        assert client.give_domain_key().status == wire.BAD_REQUEST


def test_two_hosts_at_once(duck: DuckProcess, kernel: Kernel) -> None:
    with duck.serving(kernel("echo")) as server, duck.client() as health:
        for i in range(20):
            text = b"call %d" % i
            assert server.call(text) == text
            assert health.ping() == 3  # SERVING
            assert health.stats()["calls_finished"] == i + 1


# ---- dropped packets ----------------------------------------------------------------------------


@pytest.mark.slow
def test_every_check_has_its_counter(duck: DuckProcess) -> None:
    with duck.client() as client:
        ping = client.seal(wire.build(wire.PING, bytes(32), session=client.session, sequence=1))

        def changed(at: int, value: bytes) -> bytes:
            return ping[:at] + value + ping[at + len(value) :]

        def sealed(type_: int, payload: bytes, **fields: int) -> bytes:
            packet = wire.build(type_, payload, session=client.session, **fields)
            return client.seal(packet)

        assert counted(client, "dropped_short", [b"", b"x", ping[:55]]) == 3
        assert counted(client, "dropped_magic", [changed(0, b"GOOSE"[:4])]) == 1
        assert counted(client, "dropped_version", [changed(4, b"\1"), changed(4, b"\0")]) == 2
        types = [0, 1, 2, 4, 8, 10, 11, 18, 21, 34, 37, 38, 40, 63, 64, 200, 255]
        assert counted(client, "dropped_type", [sealed(t, bytes(208)) for t in types]) == len(types)
        wrong_keys = [changed(6, b"\0"), changed(6, b"\2"), changed(6, b"\3")]
        assert counted(client, "dropped_type", wrong_keys) == 3
        sizes = [
            ping[:-1],
            ping + b"x",
            changed(28, b"\1"),  # start of a RESULT
            changed(24, b"\0\0"),  # stride 0
            changed(24, b"\1\0"),  # stride no multiple of 64
            changed(24, struct.pack("<H", 8960)),  # stride too long
            changed(20, b"\1"),  # no such fragment
            changed(16, b"\x21"),  # message and payload disagree
            sealed(wire.CALL, bytes(64), message_bytes=(32 << 20) + 64, stride=64),
            ping.ljust(60000, b"\0"),
        ]
        sizes += [sealed(t, bytes(n - 1)) for t, n in FIXED_SIZES.items()]
        sizes += [sealed(t, bytes(n + 1)) for t, n in FIXED_SIZES.items()]
        assert counted(client, "dropped_size", sizes) == len(sizes)
        flips = [changed(at, bytes([ping[at] ^ 1])) for at in (7, 12, 32, 40, 55, 56, 87)]
        assert counted(client, "dropped_mac", flips) == len(flips)
        assert counted(client, "dropped_session", [changed(8, b"\0\0\0\0")]) == 1
        assert client.ping() == 0


def test_replay_window(duck: DuckProcess) -> None:
    with duck.client() as client:
        old = client.seal(wire.build(wire.PING, bytes(32), session=client.session, sequence=1))
        late = client.seal(wire.build(wire.PING, bytes(32), session=client.session, sequence=2))
        client.send_raw(old)
        assert client.expect(wire.PONG).sequence == 1
        assert counted(client, "dropped_replay", [old, old]) == 2
        client.counter += 4000
        client.ping()
        client.send_raw(late)  # within the window, never seen
        assert client.expect(wire.PONG).sequence == 2
        client.counter += 100
        client.ping()
        too_old = client.seal(
            wire.build(wire.PING, bytes(32), session=client.session, sequence=3), counter=4
        )
        assert counted(client, "dropped_replay", [late, too_old]) == 2
        zero = client.seal(
            wire.build(wire.PING, bytes(32), session=client.session, sequence=3), counter=0
        )
        assert counted(client, "dropped_replay", [zero]) == 1


def test_noise_changes_nothing(duck: DuckProcess, kernel: Kernel) -> None:
    seed = 11
    print(f"seed {seed}")  # noqa: T201
    noise = random.Random(seed)
    with duck.serving(kernel("echo")) as client:
        client.close_session()
        image = bytes(range(256)) * 300
        client.load(wire.WEIGHTS_REGION, image)
        assert client.open().status == wire.OK
        template = client.seal(
            wire.build(wire.CALL, bytes(200), session=client.session, sequence=1)
        )
        before = client.stats()
        for _ in range(3000):
            if noise.random() < 0.5:
                packet = noise.randbytes(noise.randrange(0, 400))
            else:
                changed = bytearray(template)
                for _ in range(noise.randrange(1, 5)):
                    changed[noise.randrange(len(changed))] = noise.randrange(256)
                packet = bytes(changed[: noise.randrange(1, len(changed) + 1)])
            if packet != template:
                client.send_raw(packet)
        assert client.call(b"after the noise") == b"after the noise"
        after = client.stats()
        assert after["calls_started"] == before["calls_started"] + 1
        assert client.close_session().status == wire.OK
        assert client.commit(wire.WEIGHTS_REGION, image).status == wire.OK


# ---- requests -----------------------------------------------------------------------------------


def test_repeated_request_is_answered_from_the_cache(duck: DuckProcess) -> None:
    with duck.client() as client:
        assert client.reserve(wire.WEIGHTS_REGION, 4096).status == wire.OK
        client.write(wire.WEIGHTS_REGION, b"\7" * 4096)
        fresh = struct.pack("<IIQ192x", wire.WEIGHTS_REGION, wire.FRESH, 8192)
        assert client.done(wire.RESERVE, fresh) == wire.Done(wire.OK, 0, 8192, "")
        client.write(wire.WEIGHTS_REGION, b"\7" * 8192)
        client.send(wire.RESERVE, fresh, client.sequence)  # again: must not make it fresh again
        assert wire.parse_done(client.expect(wire.DONE).payload).value == 8192
        assert client.commit(wire.WEIGHTS_REGION, b"\7" * 8192).status == wire.OK


@pytest.mark.slow
@pytest.mark.parametrize("is_open", [False, True])
def test_no_answer_is_longer_than_its_question(
    duck: DuckProcess, kernel: Kernel, is_open: bool
) -> None:
    """Every message type, plausible and implausible contents; RESULT is the stated exception."""
    noise = random.Random(5)
    with duck.serving(kernel("echo")) as client:
        if not is_open:
            client.close_session()
        sequence = client.sequence + 1
        asked = answered = 0
        for type_ in [*FIXED_SIZES, wire.WRITE, wire.CALL, wire.NACK]:
            if type_ in (wire.REBOOT, wire.OPEN) or (is_open and type_ == wire.CLOSE):
                continue
            sizes = [FIXED_SIZES[type_]] if type_ in FIXED_SIZES else [8, 16, 72, 200, 1400]
            for size in sizes * 6:
                payload = noise.choice(
                    [bytes(size), noise.randbytes(size), b"\1" + bytes(size - 1)]
                )
                prefix = 16 if type_ == wire.WRITE else 0
                message = max(0, size - prefix)
                packet = wire.build(
                    type_,
                    payload[: prefix + message].ljust(prefix + message, b"\0"),
                    session=client.session,
                    sequence=sequence,
                    message_bytes=message,
                )
                sequence += 1
                client.send_raw(client.seal(packet))
                asked += len(packet)  # together: on a busy machine an answer may come late
                while (answer := client.receive(0.02)) is not None:
                    answered += 0 if answer.type == wire.RESULT else answer.bytes
                assert answered <= asked, (type_, size)


def test_handshake_answers_are_as_long_as_questions(duck: DuckProcess) -> None:
    with Client(duck.port, duck.key) as client:
        packet = client.hello_packet()
        client.send_raw(packet)
        cookie = client.expect(wire.COOKIE)
        assert cookie.bytes == len(packet)
        client.send_raw(client.make_proof(cookie.payload))
        assert client.expect(wire.INFO).bytes == len(client.proof)


def test_log_tells_what_happened(duck: DuckProcess, kernel: Kernel) -> None:
    with duck.serving(kernel("echo")) as client:
        client.close_session()
        log = client.log()
        for words in ("started", "kernel committed", "session open", "session closed"):
            assert words in log


def test_reboot_gives_a_new_boot_id_and_empty_memory(duck: DuckProcess) -> None:
    with duck.client() as client:
        client.load(wire.WEIGHTS_REGION, b"weights" * 1000)
        assert client.ping() == 2  # READY
        assert client.done(wire.REBOOT, bytes(208)).status == wire.OK
        with Client(duck.port, duck.key) as again:
            deadline = time.monotonic() + 10.0
            while again.boot_id in (0, client.boot_id):
                assert time.monotonic() < deadline, "the duck did not come back"
                again.newest = 0
                with contextlib.suppress(wire.DuckSilentError):
                    again.try_hello()
            assert again.identity == client.identity
            assert again.ping() == 0  # IDLE
    assert duck.process.poll() is None
