"""The few commands of GDB's remote protocol that break a guest on purpose."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

RSP, RIP = 7, 16  # register numbers of x86-64


class GdbStub:
    """Stops the guest when it connects; ``go_on`` lets it run and leaves."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(20)
        self._socket.connect(str(path))
        self._data = b""
        self._ask("?")

    def _receive(self) -> bytes:
        """The next packet; acknowledgements between packets are passed over."""
        while b"#" not in self._data[:-2]:
            self._data += self._socket.recv(4096)
        end = self._data.index(b"#")
        packet = self._data[self._data.index(b"$") + 1 : end]
        self._data = self._data[end + 3 :]
        with suppress(BrokenPipeError):  # QEMU has hung up after its last answer
            self._socket.sendall(b"+")
        return packet

    def _ask(self, text: str) -> bytes:
        self._socket.sendall(f"${text}#{sum(text.encode()) % 256:02x}".encode())
        while (answer := self._receive()).startswith(b"T") and text != "?":
            pass  # why it stopped, once more
        return answer

    def register(self, number: int) -> int:
        data = bytes.fromhex(self._ask("g").decode())
        return int.from_bytes(data[8 * number : 8 * number + 8], "little")

    def set_register(self, number: int, value: int) -> None:
        registers = bytearray.fromhex(self._ask("g").decode())
        registers[8 * number : 8 * number + 8] = value.to_bytes(8, "little")
        assert self._ask(f"G{registers.hex()}") == b"OK"

    def write(self, address: int, data: bytes) -> None:
        assert self._ask(f"M{address:x},{len(data):x}:{data.hex()}") == b"OK"

    def go_on(self) -> None:
        assert self._ask("D") == b"OK"
        self._socket.close()
