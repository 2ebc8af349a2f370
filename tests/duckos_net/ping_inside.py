"""Runs inside a network namespace: echo requests that must not be fragmented, and their answers.

Usage: ping_inside.py ADDRESS SIZE... ; one line per size: "SIZE MICROSECONDS" or "SIZE lost"."""

from __future__ import annotations

import os
import socket
import struct
import sys
import time

IP_MTU_DISCOVER = 10
IP_PMTUDISC_DO = 2
WAIT_S = 2.0
TRIES = 3


def checksum(data: bytes) -> int:
    padded = data + b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def echo_request(identifier: int, sequence: int, payload: bytes) -> bytes:
    header = struct.pack("!BBHHH", 8, 0, 0, identifier, sequence)
    return struct.pack("!BBHHH", 8, 0, checksum(header + payload), identifier, sequence) + payload


def ping(link: socket.socket, address: str, size: int, sequence: int) -> float | None:
    payload = os.urandom(size)
    identifier = os.getpid() & 0xFFFF
    link.sendto(echo_request(identifier, sequence, payload), (address, 0))
    began = time.monotonic()
    while time.monotonic() < began + WAIT_S:
        link.settimeout(max(0.01, began + WAIT_S - time.monotonic()))
        try:
            packet, _ = link.recvfrom(65536)
        except TimeoutError:
            return None
        answer = packet[4 * (packet[0] & 15) :]
        kind, _, _, its_identifier, its_sequence = struct.unpack("!BBHHH", answer[:8])
        if (kind, its_identifier, its_sequence) == (0, identifier, sequence):
            assert checksum(answer) == 0 and answer[8:] == payload, "the answer differs"
            return time.monotonic() - began
    return None


def main() -> None:
    address, sizes = sys.argv[1], [int(size) for size in sys.argv[2:]]
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as link:
        link.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        for sequence, size in enumerate(sizes):
            took = None
            for attempt in range(TRIES):
                took = took or ping(link, address, size, sequence * TRIES + attempt)
            sys.stdout.write(f"{size} {'lost' if took is None else round(took * 1e6)}\n")


if __name__ == "__main__":
    main()
