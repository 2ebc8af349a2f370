"""A stop lets running answers finish, also when it comes as two signals; a second stop does not."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator

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
from host_runtime.server.port import bind, bound_url
from host_runtime.server.service import Service

NOT_CANCELLED_S = 0.3  # several looks of the server at what it has been told


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """As they are in a process of its own, and afterwards as they were."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def serve_with(service: Service, client: Callable[[str], None]) -> None:
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
    lifecycle.serve(service, listener, None)
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
