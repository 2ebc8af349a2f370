"""Sending answers: as one JSON document, or as a stream of server-sent events."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from host_runtime.server.answer import Answer, Whole, collect
from host_runtime.server.errors import ApiError, internal_error
from host_runtime.server.limits import KEEP_ALIVE_S, UNREAD_MARGIN_S
from host_runtime.server.output import Delta

log = logging.getLogger("host_runtime.server")

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
        self._limit_s = answer.generation.deadline_s + UNREAD_MARGIN_S
        super().__init__(_events(answer, wrapping), media_type="text/event-stream", headers=HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the end, or until the client goes away or hasn't read for too long."""
        try:
            async with asyncio.timeout(self._limit_s):
                await super().__call__(scope, receive, send)
        except TimeoutError:  # the response stays incomplete, and so the connection is closed
            log.warning("a client has not read its answer within %g s", self._limit_s)
            self._ended("request_deadline_exceeded")
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
    except Exception:
        outcome = "internal_error"
        raise
    finally:
        work.cancel()
        watch.cancel()
        wrapping.ended(outcome)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _events(answer: Answer, wrapping: Wrapping) -> AsyncIterator[bytes]:
    try:
        for document in wrapping.first():
            yield _event(document)
        sent_s = time.monotonic()
        async with aclosing(answer.deltas()) as deltas:
            async for delta in deltas:
                chunk = None if delta is None else wrapping.chunk(delta)
                if chunk is not None:
                    yield _event(chunk)
                elif delta is None or time.monotonic() - sent_s >= KEEP_ALIVE_S:
                    yield KEEP_ALIVE  # also while text is held back, as all of a tool call is
                else:
                    continue
                sent_s = time.monotonic()
        last = [_event(document) for document in wrapping.last(answer.finish_reason)]
        wrapping.ended(answer.finish_reason)
        for event in last:
            yield event
    except ApiError as error:
        for event in _failed(error, wrapping):
            yield event
    except Exception:
        log.exception("a stream failed")
        for event in _failed(internal_error(), wrapping):
            yield event
    yield DONE


def _failed(error: ApiError, wrapping: Wrapping) -> list[bytes]:
    wrapping.ended(error.code or "error")
    return [*(_event(document) for document in wrapping.last("error")), _event(error.body())]


def _event(document: Document) -> bytes:
    return f"data: {json.dumps(document, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()
