"""Wake-on-LAN as a sleeping NIC does it: a magic packet for a machine that is off gives it power.

A magic packet has six bytes FF and sixteen times the station's address anywhere in its payload
(AMD, "Magic Packet Technology", 20213). The socket's filter lets only EtherType 0842 and UDP to
port 7 or 9 through, so the lab's own traffic costs nothing here.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Iterable

ETH_P_ALL = 3
SO_ATTACH_FILTER = 26
FRAME_BYTES_MAX = 2048
SYNC = b"\xff" * 6
REPEATS = 16

# Classic BPF (Linux, Documentation/networking/filter.rst): code, jump if true, if false, value.
_LOAD_HALF, _LOAD_BYTE, _LOAD_X_IP_BYTES, _LOAD_HALF_X = 0x28, 0x30, 0xB1, 0x48
_JUMP_EQUAL, _RETURN = 0x15, 0x06
FILTER = (
    (_LOAD_HALF, 0, 0, 12),  # EtherType
    (_JUMP_EQUAL, 7, 0, 0x0842),
    (_JUMP_EQUAL, 0, 7, 0x0800),
    (_LOAD_BYTE, 0, 0, 23),  # IPv4 protocol
    (_JUMP_EQUAL, 0, 5, 17),
    (_LOAD_X_IP_BYTES, 0, 0, 14),
    (_LOAD_HALF_X, 0, 0, 16),  # UDP destination port
    (_JUMP_EQUAL, 1, 0, 9),
    (_JUMP_EQUAL, 0, 1, 7),
    (_RETURN, 0, 0, FRAME_BYTES_MAX),
    (_RETURN, 0, 0, 0),
)


def woken(frame: bytes, macs: Iterable[str]) -> str | None:
    """The station that this frame wakes, or None."""
    for mac in macs:
        if SYNC + bytes.fromhex(mac.replace(":", "")) * REPEATS in frame:
            return mac
    return None


def listen(interface: str) -> socket.socket:
    """A raw socket on a bridge that sees only what may be a magic packet."""
    program = b"".join(struct.pack("HBBI", *step) for step in FILTER)
    buffer = ctypes.create_string_buffer(program)
    header = struct.pack("HL", len(FILTER), ctypes.addressof(buffer))
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # deaf until the filter is in place
    raw.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, header)
    raw.bind((interface, ETH_P_ALL))
    return raw
