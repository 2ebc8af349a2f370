"""A duck of another protocol version: it answers HELLO as wire.h says every version does."""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import secrets
import socket
import threading
from types import TracebackType

from host_runtime import wire

HEADER_BYTES = ctypes.sizeof(wire.PacketHeader)
MAC_OFFSET = HEADER_BYTES - wire.WIRE_MAC_BYTES  # the MAC ends the header


def fleet_mac(key: bytes, packet: bytes) -> bytes:
    """HMAC-SHA-256 over header (mac = 0) and payload, cut to 16 bytes."""
    without = packet[:MAC_OFFSET] + bytes(wire.WIRE_MAC_BYTES) + packet[HEADER_BYTES:]
    return hmac.new(key, without, hashlib.sha256).digest()[: wire.WIRE_MAC_BYTES]


class FakeDuck:
    """Answers every authentic HELLO with an INFO that tells ``protocol_version``."""

    def __init__(self, name: str, key: bytes, protocol_version: int) -> None:
        self._name = name.encode()
        self._key = key
        self._version = protocol_version
        self._socket = socket.socket(type=socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(0.05)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self.port: int = self._socket.getsockname()[1]

    def __enter__(self) -> FakeDuck:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                packet, sender = self._socket.recvfrom(wire.WIRE_PACKET_BYTES_MAX)
            except TimeoutError:
                continue
            answer = self._answer(packet)
            if answer is not None:
                self._socket.sendto(answer, sender)

    def _answer(self, packet: bytes) -> bytes | None:
        if len(packet) < HEADER_BYTES + ctypes.sizeof(wire.Hello):
            return None
        header = wire.PacketHeader.from_buffer_copy(packet)
        if header.type != wire.MessageType.HELLO:
            return None
        if bytes(header.mac) != fleet_mac(self._key, packet):
            return None
        hello = wire.Hello.from_buffer_copy(packet, HEADER_BYTES)
        info = wire.Info(
            session=hello.session,
            protocol_version=self._version,
            name=self._name,
            boot_id=1,
            abi_version=wire.KERNEL_ABI_VERSION,
        )
        info.host_nonce[:] = list(hello.host_nonce)
        info.duck_nonce[:] = list(secrets.token_bytes(wire.WIRE_NONCE_BYTES))
        payload = bytes(info)
        header.version, header.type = self._version, wire.MessageType.INFO
        header.message_bytes = header.payload_bytes = len(payload)
        header.mac[:] = [0] * wire.WIRE_MAC_BYTES
        answer = bytes(header) + payload
        mac = fleet_mac(self._key, answer)
        return answer[:MAC_OFFSET] + mac + answer[HEADER_BYTES:]
