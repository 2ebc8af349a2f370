"""The boot service under clients that take all they can get: it bounds them and goes on."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from boot_kit import INVENTORY, make_fleet, make_plan

from duckctl.boot import http_server
from duckctl.boot.http_server import BootServer
from duckctl.boot.plan import BootPlan, BootPolicy
from duckctl.boot.service import BootService
from duckctl.inventory import load_inventory
from duckctl.process import wait_until

SLOTS = 2
ASK = b"GET /boot.ipxe HTTP/1.1\r\nConnection: close\r\n\r\n"


@pytest.fixture
def plan(tmp_path: Path) -> BootPlan:
    """On loopback addresses, at ports that are free."""
    path = tmp_path / "shelf.yml"
    text = INVENTORY.replace("198.18.", "127.31.")
    path.write_text(text.format(first="dhcp", second="dhcp", unknown="discover"))
    return make_plan(load_inventory(path), tmp_path, policy=BootPolicy(http_port=0))


@pytest.fixture
def server(plan: BootPlan, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """A server of few slots and little patience, and where it is."""
    monkeypatch.setattr(http_server, "REQUESTS_AT_ONCE_MAX", SLOTS)
    monkeypatch.setattr(http_server, "REQUEST_S", 0.3)
    running = BootServer(lambda: plan)
    running.start(plan.fleet.domains[:1])
    yield running._servers[0].server_address[:2]  # type: ignore[misc]
    running.stop()


def request_threads() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def answer(connection: socket.socket) -> bytes:
    connection.settimeout(10)
    found = b""
    while data := connection.recv(65536):
        found += data
    return found


def test_idle_connections_are_bounded_and_end(server: tuple[str, int]) -> None:
    """More connections than slots get no thread; who comes after them is served when their time is
    over."""
    with ExitStack() as stack:
        for _ in range(2 * SLOTS):
            stack.enter_context(closing(socket.create_connection(server)))
        time.sleep(0.2)  # would be enough for a thread each
        assert request_threads() <= SLOTS
        last = stack.enter_context(closing(socket.create_connection(server)))
        last.sendall(ASK)
        assert answer(last).startswith(b"HTTP/1.1 200")


@pytest.mark.slow
def test_a_request_that_comes_by_the_byte_is_cut_off(server: tuple[str, int]) -> None:
    """The time is for the whole request, not for each byte; no slot stays taken."""
    for _ in range(SLOTS + 1):
        with closing(socket.create_connection(server)) as slow:
            started = time.monotonic()
            with pytest.raises(OSError, match=r"Broken pipe|reset"):
                while time.monotonic() - started < 10:
                    slow.sendall(b"G")
                    time.sleep(0.02)
    with closing(socket.create_connection(server)) as other:
        other.sendall(ASK)
        assert answer(other).startswith(b"HTTP/1.1 200")
    assert wait_until(lambda: request_threads() == 0, 5)


def test_without_a_free_descriptor_the_service_goes_on(tmp_path: Path) -> None:
    """Told once; when there is one again, what has changed meanwhile is seen."""
    (tmp_path / "images").mkdir()
    told: list[str] = []
    plan = make_plan(make_fleet(tmp_path), tmp_path)
    service = BootService(plan, on_finding=lambda finding: told.append(finding.text))
    service.step()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        service.step()
        service.step()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    (text,) = told
    assert "what was served goes on" in text
    assert "Too many open files" in text
    service.step()
    assert len(told) == 1
