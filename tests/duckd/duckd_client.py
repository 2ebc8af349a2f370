"""A small host for tests of duckd: its own packing, and the arithmetic of the `cryptography`
package, so that duckd's handshake and sealing are checked by an independent oracle."""

from __future__ import annotations

import hashlib
import secrets
import select
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from duckd_crypto import MAC_AT, FleetKey, agree, derive, gmac, public_bytes
from duckd_stats import STATS_FIELDS, USAGE_BYTES, USAGE_FIELDS

MAGIC = 0x4B435544
HEADER = struct.Struct("<IBBBBIIIIHHIQ16s")
CLEAR, SESSION, DOMAIN = 0, 1, 2
VERSION = 2
TO_DUCK, TO_HOST = 0, 1

HELLO, INFO, PING, PONG, LOG, STATS, REBOOT, DONE, USAGE = range(1, 10)
COOKIE, PROOF, DOMAIN_KEY, REKEY = range(10, 14)
RESERVE, WRITE, WRITE_ACK, COMMIT, READ, READ_DATA = range(16, 22)
OPEN, CALL, RESULT, NACK, QUERY, BUSY, FAULT, CLOSE = range(32, 40)

OK, BAD_REQUEST, NO_MEMORY, BAD_RANGE, NOT_RESERVED, DIGEST, NOT_COMMITTED, BAD_ELF, ABI = range(9)
(KERNEL_REFUSED, OWNER_BUSY, NO_SESSION, TIME_LIMIT, MEMORY_LIMIT, KERNEL_FAULT) = range(9, 15)
CALL_TOO_LARGE, LIMIT, UNSUPPORTED, INTERNAL = range(15, 19)

KERNEL_REGION, WEIGHTS_REGION = 0, 1
FRESH = LAST = TAKEOVER = 1
ONE_SHOT = 2
STRIDE = 1408
PREFIX_BYTES = {WRITE: 16, RESULT: 8}


class DuckSilentError(AssertionError):
    """The duck did not answer in time."""


@dataclass(frozen=True)
class Packet:
    type: int
    key: int
    session: int
    sequence: int
    message_bytes: int
    fragment_index: int
    fragment_bytes: int
    payload: bytes
    counter: int
    bytes: int  # of the whole datagram


@dataclass(frozen=True)
class Done:
    status: int
    detail: int
    value: int
    text: str


@dataclass(frozen=True)
class Fault:
    status: int
    kind: int
    core: int
    call: int
    address: int
    instruction: int
    text: str


def text_of(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode()


def parse_done(payload: bytes) -> Done:
    status, detail, value = struct.unpack_from("<IIQ", payload)
    return Done(status, detail, value, text_of(payload[16:]))


def parse_fault(payload: bytes) -> Fault:
    status, kind, core, call, address, instruction = struct.unpack_from("<IIIIQQ", payload)
    return Fault(status, kind, core, call, address, instruction, text_of(payload[32:]))


def ranges_of(payload: bytes) -> list[tuple[int, int]]:
    kind, count = struct.unpack_from("<II", payload)
    flat = struct.unpack_from(f"<{2 * count}I", payload, 8)
    assert kind in (WRITE, CALL, RESULT)
    return list(zip(flat[::2], flat[1::2], strict=True))


def build(
    type_: int,
    payload: bytes,
    *,
    session: int,
    sequence: int = 1,
    key: int = SESSION,
    message_bytes: int | None = None,
    index: int = 0,
    stride: int = STRIDE,
    counter: int = 0,
    version: int = VERSION,
    magic: int = MAGIC,
    epoch: int = 0,
    start: int = 0,
    payload_bytes: int | None = None,
) -> bytes:
    """A packet without its MAC."""
    if message_bytes is None:
        message_bytes = len(payload) - PREFIX_BYTES.get(type_, 0)
    if payload_bytes is None:
        payload_bytes = len(payload)
    front = (magic, version, type_, key, epoch, session, sequence, message_bytes, index)
    return HEADER.pack(*front, stride, payload_bytes, start, counter, bytes(16)) + payload


def with_mac(packet: bytes, mac: bytes) -> bytes:
    return packet[:MAC_AT] + mac + packet[MAC_AT + 16 :]


def fragments(data: bytes, stride: int) -> list[bytes]:
    return [data[i : i + stride] for i in range(0, len(data), stride)] or [b""]


class Client:
    """One host session with one duck."""

    def __init__(self, port: int, key: FleetKey, *, domain_session: int = 0) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self.socket.bind(("127.0.0.1", 0))
        self.address = ("127.0.0.1", port)
        self.key = key
        self.session = secrets.randbits(32) | 1
        self.domain_session = domain_session
        self.domain_key = secrets.token_bytes(16)
        self.wrap_counter = 0
        self.epoch = 0
        self.counter = self.domain_counter = 0
        self.newest = 0  # counter of the duck's newest packet
        self.sequence = self.write_sequence = self.call_sequence = 0
        self.host_nonce = secrets.token_bytes(16)
        self.to_duck = self.to_host = self.chain = self.wrap = self.former = b""
        self.info = self.cookie = self.proof = self.identity = b""
        self.boot_id = 0

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- packets ----------------------------------------------------------------------------
    def send_raw(self, packet: bytes) -> None:
        self.socket.sendto(packet, self.address)

    def seal(self, packet: bytes, counter: int | None = None) -> bytes:
        """Seal by session key with the next counter (or the one given)."""
        if counter is None:
            self.counter += 1
            counter = self.counter
        packet = packet[:32] + struct.pack("<Q", counter) + packet[40:]
        return with_mac(packet, gmac(self.to_duck, counter, SESSION << 8 | TO_DUCK, packet))

    def seal_domain(self, packet: bytes) -> bytes:
        self.domain_counter += 1
        packet = packet[:32] + struct.pack("<Q", self.domain_counter) + packet[40:]
        tag = DOMAIN << 8 | TO_DUCK
        return with_mac(packet, gmac(self.domain_key, self.domain_counter, tag, packet))

    def send(self, type_: int, payload: bytes, sequence: int, **fields: int) -> int:
        built = build(
            type_,
            payload,
            session=self.session,
            sequence=sequence,
            epoch=self.epoch % 256,
            **fields,
        )
        packet = self.seal(built)
        self.send_raw(packet)
        return len(packet)

    def receive(self, timeout: float = 5.0) -> Packet | None:
        """The next packet, its MAC and counter checked; None when none comes."""
        readable, _, _ = select.select([self.socket], [], [], timeout)
        if not readable:
            return None
        raw = self.socket.recv(65536)
        fields = HEADER.unpack_from(raw)
        magic, version, type_, key, epoch, session, sequence, message_bytes = fields[:8]
        index, stride, payload_bytes, start, counter, mac = fields[8:]
        assert (magic, version) == (MAGIC, VERSION)
        assert (start == 0) == (type_ != RESULT)
        assert payload_bytes == len(raw) - HEADER.size
        assert session == self.session
        if key == CLEAR:
            assert (type_, epoch, counter, mac) == (COOKIE, 0, 0, bytes(16))
        else:
            assert key == SESSION
            is_former = epoch != self.epoch % 256  # sent before the duck heard the new keys
            assert not is_former or epoch == (self.epoch - 1) % 256
            host_key = self.former if is_former else self.to_host
            assert mac == gmac(host_key, counter, SESSION << 8 | TO_HOST, raw)
            if not is_former:
                assert counter > self.newest, "loopback keeps the order"
                self.newest = counter
        payload = raw[HEADER.size :]
        return Packet(
            type_, key, session, sequence, message_bytes, index, stride, payload, counter, len(raw)
        )

    def expect(self, types: int | Iterable[int], timeout: float = 5.0) -> Packet:
        wanted = {types} if isinstance(types, int) else set(types)
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            packet = self.receive(left)
            if packet is not None and packet.type in wanted:
                return packet
        raise DuckSilentError(f"no packet of type {sorted(wanted)} in {timeout} s")

    def silent(self, timeout: float = 0.15) -> bool:
        """True when nothing comes. A PING afterwards proves that the duck had its chance."""
        return self.receive(timeout) is None

    # ---- control ----------------------------------------------------------------------------
    def hello_packet(self, version: int = VERSION) -> bytes:
        hello = struct.pack("<II", self.session, VERSION) + self.host_nonce + bytes(20)
        return build(
            HELLO, hello.ljust(192, b"\0"), session=self.session, key=CLEAR, version=version
        )

    def make_proof(self, cookie: bytes, signer: FleetKey | None = None) -> bytes:
        """The PROOF packet that answers a cookie; the session keys follow from it."""
        session, version = struct.unpack_from("<II", cookie)
        assert (session, version) == (self.session, VERSION)
        assert cookie[8:24] == self.host_nonce
        self.cookie = cookie
        duck_nonce, boot_id = cookie[24:40], cookie[40:48]
        ephemeral, self.identity = cookie[48:80], cookie[80:112]
        private = X25519PrivateKey.generate()
        own = public_bytes(private)
        transcript = b"duck handshake 2" + self.key.public + struct.pack("<I", self.session)
        transcript += boot_id + self.host_nonce + duck_nonce + own + ephemeral + self.identity
        digest = hashlib.sha256(transcript).digest()
        secret = agree(private, ephemeral) + agree(private, self.identity)
        keys = derive(digest, secret, b"duck session 2", 80)
        self.to_duck, self.to_host, self.chain, self.wrap = (
            keys[:16],
            keys[16:32],
            keys[32:64],
            keys[64:],
        )
        proof = struct.pack("<II", self.session, 0) + self.host_nonce + duck_nonce + own
        proof += (signer or self.key).sign(digest)
        self.proof = build(PROOF, proof.ljust(288, b"\0"), session=self.session, key=CLEAR)
        return self.proof

    def take_info(self, info: bytes) -> None:
        assert struct.unpack_from("<II", info) == (self.session, VERSION)
        self.info = info
        self.boot_id = struct.unpack_from("<Q", info, 40)[0]
        assert self.cookie[40:48] == info[40:48]

    def try_hello(self, timeout: float = 0.2) -> None:
        """One attempt; the duck may be starting."""
        self.send_raw(self.hello_packet())
        cookie = self.expect(COOKIE, timeout).payload
        self.send_raw(self.make_proof(cookie))
        self.take_info(self.expect(INFO, timeout).payload)

    def hello(self) -> Self:
        self.try_hello(5.0)
        self.ping()
        if self.domain_session:
            assert self.give_domain_key().status == OK
        return self

    def give_domain_key(self) -> Done:
        self.wrap_counter += 1
        nonce = struct.pack("<QI", self.wrap_counter, self.domain_session)
        sealed = AESGCM(self.wrap).encrypt(nonce, self.domain_key, b"")
        front = struct.pack("<IIQ", self.domain_session, 0, self.wrap_counter)
        return self.done(DOMAIN_KEY, (front + sealed).ljust(208, b"\0"))

    def rekey(self) -> None:
        """Fresh session keys; the duck answers under the old ones."""
        private = X25519PrivateKey.generate()
        epoch = self.epoch + 1
        self.send(REKEY, struct.pack("<II", epoch, 0) + public_bytes(private), epoch)
        answer = self.expect(REKEY).payload
        assert struct.unpack_from("<I", answer) == (epoch,)
        keys = derive(self.chain, agree(private, answer[8:40]), b"duck rekey 2", 64)
        self.former = self.to_host
        self.to_duck, self.to_host, self.chain = keys[:16], keys[16:32], keys[32:]
        self.epoch = epoch
        self.counter = self.newest = 0

    def ping(self, timeout: float = 5.0) -> int:
        """State of the duck (enum duck_state)."""
        mark = secrets.randbits(64)
        self.send(PING, struct.pack("<Q24x", mark), 1)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            pong = self.expect(PONG, timeout)
            echoed, _, state, _, boot_id = struct.unpack("<QQIIQ", pong.payload)
            if echoed == mark:
                assert boot_id == self.boot_id
                return int(state)
        raise DuckSilentError("no PONG")

    def request(self, type_: int, payload: bytes, timeout: float = 10.0) -> Packet:
        self.sequence += 1
        self.send(type_, payload, self.sequence)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            packet = self.expect({DONE, LOG, STATS, READ_DATA, USAGE}, timeout)
            if packet.sequence == self.sequence:
                return packet
        raise DuckSilentError(f"request {type_} was not answered")

    def done(self, type_: int, payload: bytes, timeout: float = 10.0) -> Done:
        packet = self.request(type_, payload, timeout)
        assert packet.type == DONE
        return parse_done(packet.payload)

    def stats(self) -> dict[str, int]:
        packet = self.request(STATS, bytes(256))
        assert packet.type == STATS
        return dict(zip(STATS_FIELDS, struct.unpack_from("<31Q2I", packet.payload), strict=True))

    def usage(self) -> dict[str, int]:
        packet = self.request(USAGE, bytes(USAGE_BYTES))
        assert packet.type == USAGE
        return dict(zip(USAGE_FIELDS, struct.unpack_from("<2I10Q", packet.payload), strict=True))

    def log(self) -> str:
        text, since = "", 0
        while True:
            packet = self.request(LOG, struct.pack("<Q1000x", since))
            since, count = struct.unpack_from("<QI", packet.payload)
            if count == 0:
                return text
            text += packet.payload[16 : 16 + count].decode()

    # ---- bulk -------------------------------------------------------------------------------
    def reserve(self, region: int, size: int, flags: int = 0) -> Done:
        return self.done(RESERVE, struct.pack("<IIQ192x", region, flags, size))

    def write_fragments(
        self, region: int, offset: int, data: bytes, sequence: int, stride: int = 1344
    ) -> list[bytes]:
        """The unsealed packets of one chunk."""
        prefix = struct.pack("<IIQ", region, 0, offset)
        return [
            build(
                WRITE,
                prefix + part,
                session=self.session,
                sequence=sequence,
                epoch=self.epoch % 256,
                message_bytes=len(data),
                index=index,
                stride=stride,
            )
            for index, part in enumerate(fragments(data, stride))
        ]

    def write(self, region: int, data: bytes, *, chunk: int = 65536, stride: int = 1344) -> None:
        """The lossless way: chunk after chunk, each acknowledged."""
        for offset in range(0, len(data), chunk):
            self.write_sequence += 1
            part = data[offset : offset + chunk]
            packets = self.write_fragments(region, offset, part, self.write_sequence, stride)
            for packet in packets:
                self.send_raw(self.seal(packet))
            while (ack := self.expect(WRITE_ACK)).sequence != self.write_sequence:
                pass
            for begin, end in ranges_of(ack.payload):
                for index in range(begin, end):
                    self.send_raw(self.seal(packets[index]))

    def commit(
        self,
        region: int,
        data: bytes,
        offset: int = 0,
        *,
        last: bool = True,
        digest: bytes | None = None,
        set_id: bytes | None = None,
    ) -> Done:
        digest = digest or hashlib.sha256(data).digest()
        request = struct.pack("<IIQQ", region, LAST if last else 0, offset, len(data))
        return self.done(COMMIT, request + digest + (set_id or digest) + bytes(120))

    def load(self, region: int, data: bytes) -> None:
        assert self.reserve(region, len(data), FRESH).status == OK
        self.write(region, data)
        assert self.commit(region, data) == Done(OK, 0, 0, "")

    def read(self, region: int, offset: int, size: int) -> bytes:
        packet = self.request(READ, struct.pack("<IIQ1008x", region, size, offset))
        assert packet.type == READ_DATA, parse_done(packet.payload)
        return packet.payload

    # ---- compute ----------------------------------------------------------------------------
    def open(
        self,
        *,
        flags: int = 0,
        cores: int = 1,
        call_bytes: int = 1 << 20,
        result_bytes: int = 1 << 20,
        scratch: int = 1 << 16,
        limit_ms: int = 5000,
        domain_session: int = 0,
    ) -> Done:
        fields = (flags, cores, call_bytes, result_bytes, scratch, limit_ms, domain_session)
        reply = self.done(OPEN, struct.pack("<IIIIQII176x", *fields), timeout=20.0)
        if reply.status == OK:
            self.call_sequence = 0
        return reply

    def close_session(self) -> Done:
        return self.done(CLOSE, bytes(208))

    def call_fragments(self, data: bytes, sequence: int, stride: int = STRIDE) -> list[bytes]:
        return [
            build(
                CALL,
                part,
                session=self.session,
                sequence=sequence,
                epoch=self.epoch % 256,
                message_bytes=len(data),
                index=index,
                stride=stride,
            )
            for index, part in enumerate(fragments(data, stride))
        ]

    def send_call(self, data: bytes, stride: int = STRIDE) -> int:
        self.call_sequence += 1
        for packet in self.call_fragments(data, self.call_sequence, stride):
            self.send_raw(self.seal(packet))
        return self.call_sequence

    def collect(self, sequence: int, timeout: float = 10.0) -> bytes | Fault:
        """The result of a call, or the fault that came instead."""
        parts: dict[int, bytes] = {}
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            packet = self.expect({RESULT, FAULT}, timeout)
            if packet.type == FAULT:
                return parse_fault(packet.payload)
            if packet.sequence != sequence:
                continue
            parts[packet.fragment_index] = packet.payload[8:]
            if len(parts) == max(1, -(-packet.message_bytes // packet.fragment_bytes)):
                whole = b"".join(parts[i] for i in range(len(parts)))
                assert len(whole) == packet.message_bytes
                return whole
        raise DuckSilentError(f"no result of call {sequence}")

    def call(self, data: bytes, stride: int = STRIDE, timeout: float = 10.0) -> bytes | Fault:
        return self.collect(self.send_call(data, stride), timeout)

    def fault_of(self, data: bytes = b"go" * 4) -> Fault:
        """Make a call that must end in a fault."""
        result = self.call(data)
        assert isinstance(result, Fault), result
        return result

    def send_nack(self, sequence: int, ranges: Sequence[tuple[int, int]]) -> None:
        payload = struct.pack("<II", RESULT, len(ranges))
        payload += b"".join(struct.pack("<II", *range_) for range_ in ranges)
        self.send(NACK, payload, sequence)

    def query(self, sequence: int) -> None:
        self.send(QUERY, bytes(208), sequence)
