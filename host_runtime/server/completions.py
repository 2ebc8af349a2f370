"""POST /v1/completions."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from functools import partial

from fastapi import Request
from fastapi.responses import Response

from host_runtime.server.answer import Answer, Whole
from host_runtime.server.limits import COMPLETION_TOKENS_DEFAULT
from host_runtime.server.output import AnswerReader, Delta
from host_runtime.server.schemas import CompletionRequest, parse_request
from host_runtime.server.sending import AnswerStream, Document, Wrapping, send_whole
from host_runtime.server.service import Service
from host_runtime.server.tokens import BEGIN_OF_SENTENCE, ChatTokenizer, Mark

ENDPOINT = "/v1/completions"


async def answer_completion(service: Service, request: Request, body: bytes) -> Response:
    """One completion request from its body to its response."""
    with service.refusals_counted(ENDPOINT):
        completion = parse_request(body, CompletionRequest)
        answer = await _start(service, completion)
    wrapping = _CompletionWrapping(service, completion, answer).wrapping()
    if completion.stream:
        return AnswerStream(answer, wrapping)
    return await send_whole(request, answer, wrapping)


async def _start(service: Service, completion: CompletionRequest) -> Answer:
    """The request at the engine, or the ApiError that says why not."""
    service.check_model(completion.model)
    prompt_ids = await asyncio.to_thread(_prompt_ids, service.tokenizer, completion.single_prompt())
    reader = AnswerReader(service.tokenizer, chat=False, stops=completion.stops())
    return service.start(
        completion,
        prompt_ids,
        reader,
        max_tokens=completion.max_tokens or COMPLETION_TOKENS_DEFAULT,
        prompt_field="prompt",
    )


def _prompt_ids(tokenizer: ChatTokenizer, prompt: str | list[int]) -> list[int]:
    """Text gets the begin-of-sentence token and is otherwise plain; token ids are taken as they
    are."""
    if isinstance(prompt, str):
        return tokenizer.encode([Mark(BEGIN_OF_SENTENCE), prompt])
    tokenizer.check_ids(prompt, "prompt")
    return prompt


class _CompletionWrapping:
    """Completion documents of one answer."""

    def __init__(self, service: Service, request: CompletionRequest, answer: Answer) -> None:
        self._service = service
        self._request = request
        self._answer = answer
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def wrapping(self) -> Wrapping:
        return Wrapping(
            first=self._first,
            chunk=self._chunk,
            last=self._last,
            whole=self._whole,
            ended=partial(self._service.ended, ENDPOINT, self._answer),
        )

    def _document(self, choices: Sequence[Document]) -> Document:
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._service.model_name,
            "choices": list(choices),
        }

    def _choice(self, text: str, finish_reason: str | None) -> Document:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
        return self._document([choice])

    def _echo(self) -> str:
        if not self._request.echo:
            return ""
        return self._service.tokenizer.decode(self._answer.prompt_ids)

    def _first(self) -> list[Document]:
        echo = self._echo()
        if not echo and not self._request.return_token_ids:
            return []
        document = self._choice(echo, None)
        if self._request.return_token_ids:
            document["choices"][0]["prompt_token_ids"] = self._answer.prompt_ids
        return [document]

    def _chunk(self, delta: Delta) -> Document | None:
        with_ids = bool(self._request.return_token_ids and delta.token_ids)
        if not delta.content and not with_ids:
            return None
        document = self._choice(delta.content, None)
        if with_ids:
            document["choices"][0].update(delta.token_fields())
        return document

    def _last(self, finish_reason: str) -> list[Document]:
        measured = self._answer.measurements()
        documents = [{**self._choice("", finish_reason), "duckctl": measured}]
        if self._request.include_usage():
            usage = self._document([])
            documents.append({**usage, "usage": self._answer.usage(), "duckctl": measured})
        return documents

    def _whole(self, whole: Whole) -> Document:
        document = self._choice(self._echo() + whole.content, self._answer.finish_reason)
        if self._request.return_token_ids:
            document["choices"][0]["prompt_token_ids"] = self._answer.prompt_ids
            document["choices"][0]["token_ids"] = self._answer.token_ids
        return {
            **document,
            "usage": self._answer.usage(),
            "duckctl": self._answer.measurements(),
        }
