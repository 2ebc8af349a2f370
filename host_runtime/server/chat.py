"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from host_runtime.server.answer import Answer, Whole
from host_runtime.server.dsml import ParsedCall
from host_runtime.server.encoding import encode_conversation
from host_runtime.server.output import AnswerReader, Delta
from host_runtime.server.schemas import ChatRequest, parse_request
from host_runtime.server.sending import AnswerStream, Document, Wrapping, send_whole
from host_runtime.server.service import Service

ENDPOINT = "/v1/chat/completions"


async def answer_chat(service: Service, request: Request, body: bytes) -> Response:
    """One chat request from its body to its response."""
    with service.refusals_counted(ENDPOINT):
        chat = parse_request(body, ChatRequest)
        answer = await _start(service, chat)
    wrapping = _ChatWrapping(service, chat, answer).wrapping()
    if chat.stream:
        return AnswerStream(answer, wrapping)
    return await send_whole(request, answer, wrapping)


async def _start(service: Service, chat: ChatRequest) -> Answer:
    """The request at the engine, or the ApiError that says why not."""
    service.check_model(chat.model)
    thinking = chat.wants_thinking()
    tools = chat.offered_tools()
    prompt = encode_conversation(chat.conversation(), tools=tools, thinking=thinking)
    # Long prompts take a while to encode: keep the event loop free for the other streams.
    prompt_ids = await asyncio.to_thread(service.tokenizer.encode, prompt.pieces)
    reader = AnswerReader(
        service.tokenizer, chat=True, thinking=thinking, tools=bool(tools), stops=chat.stops()
    )
    return service.start(
        chat, prompt_ids, reader, max_tokens=chat.token_limit(), prompt_field="messages"
    )


class _ChatWrapping:
    """Chat documents of one answer: they share an id, and calls are numbered."""

    def __init__(self, service: Service, chat: ChatRequest, answer: Answer) -> None:
        self._service = service
        self._chat = chat
        self._answer = answer
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._call_count = 0

    def wrapping(self) -> Wrapping:
        return Wrapping(
            first=self._first,
            chunk=self._chunk,
            last=self._last,
            whole=self._whole,
            ended=partial(self._service.ended, ENDPOINT, self._answer),
        )

    def _document(self, kind: str, choices: Sequence[Document]) -> Document:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._service.model_name,
            "choices": list(choices),
        }

    def _choice(self, delta: Document, finish_reason: str | None) -> Document:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return self._document("chat.completion.chunk", [choice])

    def _first(self) -> list[Document]:
        document = self._choice({"role": "assistant", "content": ""}, None)
        if self._chat.return_token_ids:
            document["choices"][0]["prompt_token_ids"] = self._answer.prompt_ids
        return [document]

    def _chunk(self, delta: Delta) -> Document | None:
        fields: Document = {}
        if delta.reasoning:
            fields["reasoning_content"] = delta.reasoning
        if delta.content:
            fields["content"] = delta.content
        if delta.calls:
            fields["tool_calls"] = [
                {"index": self._call_count + offset, **_call(call)}
                for offset, call in enumerate(delta.calls)
            ]
            self._call_count += len(delta.calls)
        with_ids = bool(self._chat.return_token_ids and delta.token_ids)
        if not fields and not with_ids:
            return None
        document = self._choice(fields, None)
        if with_ids:
            document["choices"][0].update(delta.token_fields())
        return document

    def _last(self, finish_reason: str) -> list[Document]:
        measured = self._answer.measurements()
        documents = [{**self._choice({}, finish_reason), "duckctl": measured}]
        if self._chat.include_usage():
            usage = self._document("chat.completion.chunk", [])
            documents.append({**usage, "usage": self._answer.usage(), "duckctl": measured})
        return documents

    def _whole(self, whole: Whole) -> Document:
        message: Document = {
            "role": "assistant",
            "content": None if whole.calls and not whole.content else whole.content,
            "refusal": None,
        }
        if whole.reasoning:
            message["reasoning_content"] = whole.reasoning
        if whole.calls:
            message["tool_calls"] = [_call(call) for call in whole.calls]
        choice: Document = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": self._answer.finish_reason,
        }
        document = self._document("chat.completion", [choice])
        if self._chat.return_token_ids:
            choice["prompt_token_ids"] = self._answer.prompt_ids
            choice["token_ids"] = self._answer.token_ids
        return {
            **document,
            "usage": self._answer.usage(),
            "duckctl": self._answer.measurements(),
        }


def _call(call: ParsedCall) -> dict[str, Any]:
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
