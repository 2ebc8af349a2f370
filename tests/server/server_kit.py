"""Helpers for the server's tests: a scripted engine, the real application, a real uvicorn."""

from __future__ import annotations

import asyncio
import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from host_runtime.config import GenerationConfig
from host_runtime.engine import (
    EngineStatus,
    FinishedEvent,
    QueueFullError,
    RequestStats,
    SamplingParams,
    TokenEvent,
)
from host_runtime.experts.base import DuckStatus
from host_runtime.server.app import create_app
from host_runtime.server.engine_port import Event
from host_runtime.server.port import bind, bound_url
from host_runtime.server.service import Service
from host_runtime.server.tokens import ChatTokenizer

ROOT = Path(__file__).parents[2]
DUCKLET = ROOT / "duckctl" / "models" / "ducklet"
DEADLINE_S = 120.0
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


@cache
def ducklet_tokenizer() -> ChatTokenizer:
    """ducklet's tokenizer, loaded once."""
    return ChatTokenizer(DUCKLET / "tokenizer.json")


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll until ``condition`` holds; fail after DEADLINE_S."""
    ends_at = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < ends_at, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.005)


class ScriptedHandle:
    """A request whose events the test decides."""

    def __init__(self, prompt_ids: Sequence[int], params: SamplingParams) -> None:
        self.prompt_ids = list(prompt_ids)
        self.params = params
        self.cancelled = threading.Event()
        self.token_count = 0
        self._queue: queue.Queue[Event] = queue.Queue()

    def tokens(self, ids: Sequence[int]) -> None:
        """Send tokens."""
        for token_id in ids:
            self.token_count += 1
            self._queue.put(TokenEvent(token_id, time.monotonic(), accepted_draft=False))

    def finish(self, reason: Any = "stop", error: str | None = None) -> None:
        """Send the last event."""
        stats = RequestStats(
            prompt_tokens=len(self.prompt_ids),
            completion_tokens=self.token_count,
            drafts_proposed=5,
            drafts_accepted=3,
            queue_s=0.25,
            ttft_s=0.5,
            decode_s=2.0,
        )
        self._queue.put(FinishedEvent(reason, error, stats))

    def events(self) -> Iterator[Event]:
        """As the engine's handle."""
        while True:
            event = self._queue.get(timeout=DEADLINE_S)
            yield event
            if isinstance(event, FinishedEvent):
                return

    def cancel(self) -> None:
        """As the engine's handle: the final event follows."""
        if not self.cancelled.is_set():
            self.cancelled.set()
            self.finish("cancelled")


Script = Callable[[ScriptedHandle], None]


@dataclass
class ScriptedEngine:
    """Plays ``script`` for each request: an engine whose failures can be arranged."""

    script: Script = lambda handle: handle.finish()
    ducks: list[DuckStatus] = field(default_factory=list)
    running: bool = True
    full: bool = False
    handles: list[ScriptedHandle] = field(default_factory=list)

    def submit(self, prompt_ids: Sequence[int], params: SamplingParams) -> ScriptedHandle:
        """As Engine.submit."""
        if self.full:
            raise QueueFullError("4 requests are running and 16 waiting", "try again later")
        handle = ScriptedHandle(prompt_ids, params)
        self.handles.append(handle)
        self.script(handle)
        return handle

    def status(self) -> EngineStatus:
        """As Engine.status."""
        away = [f"{d.name}: {d.detail}" for d in self.ducks if not d.ready]
        reason = "; ".join(away) if self.running else "the engine is not running"
        return EngineStatus(self.running and not away, reason, self.ducks, 1, 2, steps_shared=7)


def says(*parts: str | int, reason: str = "stop") -> Script:
    """A script: text (encoded by the tokenizer) and single token ids, then the end."""

    def script(handle: ScriptedHandle) -> None:
        for part in parts:
            if isinstance(part, str):
                handle.tokens(ducklet_tokenizer().encode_text(part))
            else:
                handle.tokens([part])
        handle.finish(reason)

    return script


def scripted_service(engine: ScriptedEngine, **changes: Any) -> Service:
    """A service over a scripted engine with ducklet's tokenizer."""
    fields: dict[str, Any] = {
        "engine": engine,
        "tokenizer": ducklet_tokenizer(),
        "model_name": "ducklet",
        "max_context": 2048,
        "defaults": GenerationConfig(eos_token_ids=(1,), temperature=0.6, top_p=0.95, top_k=0),
        "request_deadline_s": DEADLINE_S,
    }
    return Service(**{**fields, **changes})


@dataclass
class Api:
    """The application called in-process, without sockets."""

    service: Service
    api_key: str | None = None

    def request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        """One request."""

        async def send() -> httpx.Response:
            app = create_app(self.service, self.api_key)
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://duck") as client:
                return await client.request(method, path, **arguments)

        return asyncio.run(send())

    def get(self, path: str, **arguments: Any) -> httpx.Response:
        """GET."""
        return self.request("GET", path, **arguments)

    def post(self, path: str, body: dict[str, Any], **arguments: Any) -> httpx.Response:
        """POST of a JSON body; the model is filled in."""
        return self.request("POST", path, json={"model": "ducklet", **body}, **arguments)

    def chat(self, content: str = "Hi", **fields: Any) -> httpx.Response:
        """One question."""
        body = {"messages": [{"role": "user", "content": content}], **fields}
        return self.post(CHAT, body)


def scripted_api(script: Script | None = None, **engine_fields: Any) -> tuple[Api, ScriptedEngine]:
    """The application over a scripted engine."""
    engine = ScriptedEngine(**engine_fields)
    if script is not None:
        engine.script = script
    return Api(scripted_service(engine)), engine


def sse_documents(text: str) -> list[dict[str, Any]]:
    """The JSON documents of a stream; checks the framing and the final [DONE]."""
    events = [event for event in text.split("\n\n") if event and not event.startswith(":")]
    assert events[-1] == "data: [DONE]"
    assert all(event.startswith("data: ") for event in events)
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]


def joined(documents: Sequence[dict[str, Any]], key: str = "content") -> str:
    """The text of a streamed chat answer, or of completions with key "text"."""
    pieces = []
    for document in documents:
        for choice in document.get("choices", []):
            source = choice if key == "text" else choice["delta"]
            pieces.append(source.get(key) or "")
    return "".join(pieces)


def finish_reason(documents: Sequence[dict[str, Any]]) -> str:
    """The one finish reason of a stream."""
    reasons = [c["finish_reason"] for d in documents for c in d.get("choices", [])]
    (reason,) = [entry for entry in reasons if entry is not None]
    return str(reason)


@contextmanager
def live_server(service: Service) -> Iterator[str]:
    """The application behind a real uvicorn in a thread; gives its URL."""
    listener: socket.socket = bind("127.0.0.1", 0)
    config = uvicorn.Config(
        create_app(service), log_config=None, lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    wait_until(lambda: server.started, "uvicorn starts")
    try:
        yield bound_url(listener)
    finally:
        server.should_exit = True
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
