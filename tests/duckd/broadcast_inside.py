"""Run in a network namespace of its own by test_duckd_machine.py: three ducks in one domain, called
by broadcast. Arguments: duckd, a folder with echo.elf."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import duckd_client as wire
import duckd_process
from duckd_client import Client
from duckd_crypto import FleetKey
from duckd_process import DuckProcess

DOMAIN = 0x77
PORT = 7211


class DomainClient(Client):
    """A session with one duck, by the domain's one socket."""

    def __init__(self, address: str, key: FleetKey, shared: socket.socket) -> None:
        super().__init__(PORT, key, domain_session=DOMAIN)
        self.socket.close()
        self.socket = shared
        self.address = (address, PORT)


def main() -> None:
    duckd_process.chosen_binary = Path(sys.argv[1])
    folder = Path(sys.argv[2])
    for words in (
        "link set lo up",
        "link add duck0 type veth peer name duck1",
        "addr add 10.9.0.100/24 brd + dev duck0",
        *(f"addr add 10.9.0.{i}/24 brd + dev duck0" for i in (1, 2, 3)),
        "link set duck0 up",
        "link set duck1 up",
    ):
        subprocess.run(["ip", *words.split()], check=True)
    kernel = (folder / "echo.elf").read_bytes()
    host = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    host.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    host.bind(("10.9.0.100", 0))
    key = FleetKey()
    ducks: list[DuckProcess] = []
    clients: list[DomainClient] = []
    try:
        for i in (1, 2, 3):
            own = folder / f"d{i}"
            own.mkdir()
            listen = f"10.9.0.{i}:{PORT}"
            ducks.append(DuckProcess(own, "--listen", listen, name=f"d0{i}", key=key))
            clients.append(DomainClient(f"10.9.0.{i}", key, host))
            clients[-1].domain_key = bytes(range(16))
            clients[-1].hello()
            clients[-1].load(wire.KERNEL_REGION, kernel)
            assert clients[-1].open(domain_session=DOMAIN).status == wire.OK
        print(call_all(host, clients))  # noqa: T201 - what the test compares
    finally:
        for duck in ducks:
            assert duck.stop() == 0


def call_all(host: socket.socket, clients: list[DomainClient]) -> str:
    results = 0
    for sequence in range(1, 21):
        data = b"to everyone %d" % sequence
        packet = wire.build(wire.CALL, data, session=DOMAIN, sequence=sequence, key=wire.DOMAIN)
        host.sendto(clients[0].seal_domain(packet), ("10.9.0.255", PORT))
        answered: set[str] = set()
        host.settimeout(5.0)
        while len(answered) < len(clients):
            raw, sender = host.recvfrom(65536)
            assert raw[5] == wire.RESULT
            assert raw[wire.HEADER.size + 8 :] == data
            assert sender[1] == PORT
            answered.add(sender[0])
        assert answered == {client.address[0] for client in clients}
        results += len(answered)
    return f"{len(clients)} ducks, 20 broadcast calls, {results} results"


if __name__ == "__main__":
    main()
