"""Proves that addresses are bound, named and judged rightly."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from host_runtime.server.errors import StartupError
from host_runtime.server.port import bind, bound_url, drop_unread, is_loopback, port_owner


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.0.7", False),
        ("rack.example", False),
    ],
)
def test_loopback_is_told_from_addresses_that_others_can_reach(host: str, expected: bool) -> None:
    assert is_loopback(host) == expected


def test_a_bound_port_refuses_clients_until_the_server_listens() -> None:
    with bind("127.0.0.1", 0) as server:
        address = server.getsockname()
        assert bound_url(server) == f"http://127.0.0.1:{address[1]}"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        server.listen()
        socket.create_connection(address).close()


def test_a_connection_that_nobody_reads_from_is_dropped() -> None:
    with bind("127.0.0.1", 0) as server:
        drop_unread(server, 0.3)
        server.listen()
        with socket.create_connection(server.getsockname()):
            connection, _ = server.accept()
            with connection, pytest.raises(OSError) as caught:
                connection.settimeout(60)  # has no errno
                while True:
                    connection.sendall(bytes(65536))
            assert caught.value.errno == errno.ETIMEDOUT


def test_a_port_whose_old_connections_linger_can_be_taken_again() -> None:
    with bind("127.0.0.1", 0) as server:
        server.listen()
        address = server.getsockname()
        client = socket.create_connection(address)
        accepted, _ = server.accept()
        accepted.close()  # closed here first: this side keeps the port in TIME_WAIT
        client.close()
    bind("127.0.0.1", address[1]).close()


def test_the_owner_of_a_port_is_found_in_proc() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        name = Path("/proc/self/comm").read_text().strip()
        assert port_owner(port) == f"{name} (process {os.getpid()})"
        with pytest.raises(StartupError, match=rf"port {port} on 127.0.0.1 is in use by {name}"):
            bind("127.0.0.1", port)
    assert port_owner(port) == ""


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("no.such.host.invalid", "can't resolve"),
        ("a" * 64 + ".example", "can't resolve"),
        ("a..example", "can't resolve"),
        ("203.0.113.1", "can't bind 203.0.113.1"),
    ],
)
def test_addresses_that_are_not_ours_are_named(host: str, text: str) -> None:
    with pytest.raises(StartupError, match=text):
        bind(host, 0)
