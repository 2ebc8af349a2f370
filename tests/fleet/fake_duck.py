"""A duck of another protocol version: it answers HELLO as wire.h says every version does."""

from __future__ import annotations

import ctypes
import socket
import threading
from types import TracebackType

from host_runtime import wire

HEADER_BYTES = ctypes.sizeof(wire.PacketHeader)


class FakeDuck:
    """Answers every HELLO with a COOKIE that tells ``protocol_version``."""

    def __init__(self, name: str, protocol_version: int) -> None:
        self._name = name.encode()
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
        hello = wire.Hello.from_buffer_copy(packet, HEADER_BYTES)
        cookie = wire.Cookie(
            session=hello.session,
            protocol_version=self._version,
            name=self._name,
            boot_id=1,
        )
        cookie.host_nonce[:] = list(hello.host_nonce)
        payload = bytes(cookie)
        header.version, header.type = self._version, wire.MessageType.COOKIE
        header.message_bytes = header.payload_bytes = len(payload)
        return bytes(header) + payload
