"""Sending answers: as one JSON document, or as a stream of server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from host_runtime.server.answer import Answer, Whole, collect
from host_runtime.server.errors import ApiError
from host_runtime.server.output import Delta

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
CLIENT_CLOSED_REQUEST = 499
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

Document = dict[str, Any]


@dataclass(frozen=True)
class Wrapping:
    """How one endpoint dresses an answer.

    ``first`` opens a stream, ``chunk`` wraps a delta (None: nothing to send), ``last`` closes it
    for a finish reason, ``whole`` is the answer of a client that doesn't stream, and ``ended`` is
    told how the request ended.
    """

    first: Callable[[], list[Document]]
    chunk: Callable[[Delta], Document | None]
    last: Callable[[str], list[Document]]
    whole: Callable[[Whole], Document]
    ended: Callable[[str], None]


class AnswerStream(StreamingResponse):
    """A streamed answer; whatever happens to the client, the request is ended in the books."""

    def __init__(self, answer: Answer, wrapping: Wrapping) -> None:
        self._ended = wrapping.ended
        super().__init__(_events(answer, wrapping), media_type="text/event-stream", headers=HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the end, or until the client goes away."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended("disconnected")


async def send_whole(request: Request, answer: Answer, wrapping: Wrapping) -> Response:
    """The answer as one document; a client that goes away cancels it."""
    work = asyncio.ensure_future(collect(answer))
    watch = asyncio.ensure_future(_disconnected(request))
    outcome = "disconnected"
    try:
        await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        whole = work.result()
        outcome = answer.finish_reason
        return JSONResponse(wrapping.whole(whole))
    except ApiError as error:
        outcome = error.code or "error"
        raise
    finally:
        work.cancel()
        watch.cancel()
        wrapping.ended(outcome)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _events(answer: Answer, wrapping: Wrapping) -> AsyncIterator[bytes]:
    for document in wrapping.first():
        yield _event(document)
    try:
        async with aclosing(answer.deltas()) as deltas:
            async for delta in deltas:
                if delta is None:
                    yield KEEP_ALIVE
                elif (chunk := wrapping.chunk(delta)) is not None:
                    yield _event(chunk)
        wrapping.ended(answer.finish_reason)
        for document in wrapping.last(answer.finish_reason):
            yield _event(document)
    except ApiError as error:
        wrapping.ended(error.code or "error")
        for document in wrapping.last("error"):
            yield _event(document)
        yield _event(error.body())
    yield DONE


def _event(document: Document) -> bytes:
    return f"data: {json.dumps(document, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()
