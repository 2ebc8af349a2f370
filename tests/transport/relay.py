"""A hop between a host and one duck that sees every packet and may drop some."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from host_runtime import wire
from host_runtime.wire import MessageType

PACKET_BYTES_MAX = 65536
LOOK_S = 0.05


@dataclass
class Relay:
    """``passes`` says which of the duck's packets reach the host; all of the host's pass.

    ``largest`` is the longest UDP payload of each message type, both ways.
    """

    port: int = 0
    passes: Callable[[MessageType], bool] = lambda _: True
    largest: dict[MessageType, int] = field(default_factory=dict)

    def _type_of(self, packet: bytes) -> MessageType:
        kind = MessageType(wire.PacketHeader.from_buffer_copy(packet).type)
        self.largest[kind] = max(self.largest.get(kind, 0), len(packet))
        return kind

    def run(
        self, near: socket.socket, far: socket.socket, duck: tuple[str, int], end: threading.Event
    ) -> None:
        host: tuple[str, int] | None = None
        while not end.is_set():
            ready, _, _ = select.select([near, far], [], [], LOOK_S)
            if near in ready:
                packet, host = near.recvfrom(PACKET_BYTES_MAX)
                self._type_of(packet)
                far.sendto(packet, duck)
            if far in ready:
                packet = far.recv(PACKET_BYTES_MAX)
                if self.passes(self._type_of(packet)) and host is not None:
                    near.sendto(packet, host)


@contextlib.contextmanager
def relayed(duck: tuple[str, int]) -> Iterator[Relay]:
    """A relay to the duck at this address; the host talks to 127.0.0.1 and its port."""
    end = threading.Event()
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as near,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as far,
    ):
        for side in (near, far):
            side.bind(("127.0.0.1", 0))
            side.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        relay = Relay(near.getsockname()[1])
        thread = threading.Thread(target=relay.run, args=(near, far, duck, end))
        thread.start()
        try:
            yield relay
        finally:
            end.set()
            thread.join()
