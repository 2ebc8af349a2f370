"""Requests that may wait have connections; a stop in one signal or two lets answers finish."""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest
from server_kit import (
    CHAT,
    DEADLINE_S,
    ScriptedEngine,
    ScriptedHandle,
    ducklet_tokenizer,
    scripted_service,
    wait_until,
)

from host_runtime.server import lifecycle
from host_runtime.server.lifecycle import connections_max
from host_runtime.server.port import bind, bound_url
from host_runtime.server.service import Service

REQUESTS_MAX = 20
NOT_CANCELLED_S = 0.3  # several looks of the server at what it has been told


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """As they are in a process of its own, and afterwards as they were."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def serve_with(
    service: Service, client: Callable[[str], None], requests_max: int = REQUESTS_MAX
) -> None:
    """The server in this thread, where signals arrive, and its client in another one."""
    listener: socket.socket = bind("127.0.0.1", 0)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            client(bound_url(listener))
        except BaseException as error:  # noqa: BLE001 - told where the test fails
            failures.append(error)
            os.kill(os.getpid(), signal.SIGTERM)

    listener.listen()
    thread = threading.Thread(target=run)
    thread.start()
    lifecycle.serve(service, listener, None, requests_max)
    thread.join(DEADLINE_S)
    assert failures == []


def stop_twice(service: Service, url: str, then: Callable[[], None]) -> str:
    """A stream that is stopped by two signals, and what came of it."""
    body = {"model": "ducklet", "stream": True, "messages": [{"role": "user", "content": "x"}]}
    with httpx.stream("POST", url + CHAT, json=body, timeout=DEADLINE_S) as response:
        lines = response.iter_lines()
        text = next(lines)
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(lambda: service.stopping, "the first signal is heeded")
        os.kill(os.getpid(), signal.SIGTERM)
        then()
        return text + "\n".join(lines)


def test_one_stop_in_two_signals_lets_an_answer_finish() -> None:
    """As a service manager does it that tells all processes, and duckctl then passes its own on."""
    engine = ScriptedEngine(script=lambda handle: None)
    service = scripted_service(engine)
    texts: list[str] = []

    def client(url: str) -> None:
        texts.append(stop_twice(service, url, finish))

    def finish() -> None:
        (handle,) = engine.handles
        assert not handle.cancelled.wait(NOT_CANCELLED_S)
        handle.tokens(ducklet_tokenizer().encode_text("done"))
        handle.finish()

    serve_with(service, client)
    assert '"finish_reason":"stop"' in texts[0]
    assert "server_stopping" not in texts[0]


def test_a_second_stop_ends_answers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "SAME_STOP_S", 0.0)
    monkeypatch.setattr(lifecycle, "SHUTDOWN_GRACE_S", 2 * DEADLINE_S)
    handles: list[ScriptedHandle] = []
    service = scripted_service(ScriptedEngine(script=handles.append))

    def client(url: str) -> None:
        stop_twice(service, url, lambda: None)

    serve_with(service, client)
    assert handles[0].cancelled.is_set()


@pytest.mark.parametrize(("requests_max", "spare"), [(6, 2), (3, 1)])
def test_requests_that_may_wait_have_room_beside_idle_connections(
    requests_max: int, spare: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit follows the queue's length; more connections are too many for all."""
    monkeypatch.setattr(lifecycle, "CONNECTIONS_SPARE", spare)
    statuses: list[int] = []

    def client(url: str) -> None:
        parts = urlsplit(url)
        address = (str(parts.hostname), int(parts.port or 0))
        with ExitStack() as idle:
            for _ in range(requests_max + spare - 1):
                idle.enter_context(socket.create_connection(address))
            statuses.append(httpx.get(url + "/health", timeout=DEADLINE_S).status_code)
            idle.enter_context(socket.create_connection(address))
            statuses.append(httpx.get(url + "/health", timeout=DEADLINE_S).status_code)
        os.kill(os.getpid(), signal.SIGTERM)

    serve_with(scripted_service(ScriptedEngine()), client, requests_max)
    assert statuses == [200, 503]


@pytest.mark.parametrize(
    ("wanted", "files_max", "connections"),
    [(532, 1024, 532), (532, 788, 532), (532, 787, 531), (4612, 1024, 768), (532, 64, 32)],
)
def test_connections_leave_open_files_for_the_rest(
    wanted: int, files_max: int, connections: int
) -> None:
    assert connections_max(wanted, files_max) == connections


def test_the_limit_of_open_files_is_raised_as_far_as_it_may(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what is too few is told."""
    limits = [1024, 2048]

    def setrlimit(_kind: int, values: tuple[int, int]) -> None:
        limits[:] = values

    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", setrlimit)

    def client(url: str) -> None:
        assert httpx.get(url + "/health", timeout=DEADLINE_S).status_code == 200
        os.kill(os.getpid(), signal.SIGTERM)

    serve_with(scripted_service(ScriptedEngine()), client, 100)
    assert (limits, "warning" in capsys.readouterr().err) == ([1024, 2048], False)
    serve_with(scripted_service(ScriptedEngine()), client, 1000)
    assert (limits, "warning" in capsys.readouterr().err) == ([1768, 2048], False)
    serve_with(scripted_service(ScriptedEngine()), client, 4100)
    assert limits == [2048, 2048]
    assert "at most 1792 connections at once, 4612 would be enough" in capsys.readouterr().err
