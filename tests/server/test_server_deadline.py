"""Proves that a request's deadline also holds for clients that don't read."""

from __future__ import annotations

import asyncio
import json

import pytest
from server_kit import CHAT, DEADLINE_S, ScriptedEngine, scripted_service
from starlette.types import Message

from host_runtime.engine import FinishedEvent, SamplingParams, TokenEvent
from host_runtime.server import sending
from host_runtime.server.app import create_app
from host_runtime.server.errors import ApiError
from host_runtime.server.generation import Generation, submit


async def submitted(engine: ScriptedEngine, deadline_s: float) -> Generation:
    return submit(
        engine, [1], SamplingParams(max_tokens=9), deadline_s=deadline_s, prompt_field="messages"
    )


def test_the_engine_is_told_at_the_deadline_though_nobody_asks_for_events() -> None:
    engine = ScriptedEngine(script=lambda handle: handle.tokens([5, 6]))

    async def run() -> None:
        generation = await submitted(engine, 0.05)
        await asyncio.to_thread(engine.handles[0].cancelled.wait, DEADLINE_S)
        assert engine.handles[0].cancelled.is_set()
        for token in (5, 6):
            event = await generation.next_event(DEADLINE_S)
            assert isinstance(event, TokenEvent)
            assert event.token_id == token
        with pytest.raises(ApiError) as caught:
            await generation.next_event(DEADLINE_S)
        assert (caught.value.status, caught.value.code) == (504, "request_deadline_exceeded")

    asyncio.run(run())


def test_a_request_that_was_cancelled_before_its_deadline_is_not_told_as_late() -> None:
    engine = ScriptedEngine(script=lambda handle: None)

    async def run() -> None:
        generation = await submitted(engine, DEADLINE_S)
        generation.cancel()
        event = await generation.next_event(DEADLINE_S)
        assert isinstance(event, FinishedEvent)
        assert event.reason == "cancelled"

    asyncio.run(run())


def test_a_request_that_has_ended_leaves_no_timer() -> None:
    engine = ScriptedEngine()

    async def run() -> None:
        async with await submitted(engine, 0.02) as generation:
            await generation.next_event(DEADLINE_S)
        await asyncio.sleep(0.1)
        assert not engine.handles[0].cancelled.is_set()

    asyncio.run(run())


def test_a_stream_that_nobody_reads_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "UNREAD_MARGIN_S", 0.05)
    engine = ScriptedEngine(script=lambda handle: handle.tokens([5, 6]))
    service = scripted_service(engine, request_deadline_s=0.05)
    body = {"model": "ducklet", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    came = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
    sent = []

    async def receive() -> Message:
        if not came:
            await asyncio.Event().wait()
        return came.pop()

    async def send(message: Message) -> None:
        sent.append(message)
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()  # the client's buffers are full

    async def run() -> None:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "method": "POST",
            "path": CHAT,
            "query_string": b"",
            "headers": [],
        }
        async with asyncio.timeout(DEADLINE_S):
            await create_app(service)(scope, receive, send)

    asyncio.run(run())
    # uvicorn closes the connection of a response that has begun and didn't end.
    assert [message.get("more_body") for message in sent] == [None, True]
    assert dict(service.metrics.requests) == {(CHAT, "request_deadline_exceeded"): 1}
    assert service.running == set()
    assert engine.handles[0].cancelled.is_set()
