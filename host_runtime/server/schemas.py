"""Requests of OpenAI's API, validated at the edge.

Policy for fields (docs/reference/api.md): a field either works, or is one of a short list that can
have no effect, or is refused with a 400 that names it. Nothing is ignored in silence.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from host_runtime.engine.request import SEED_MAX, SEED_MIN
from host_runtime.server.encoding import Message, ToolCall
from host_runtime.server.errors import bad_request
from host_runtime.server.limits import (
    MESSAGES_MAX,
    SHOWN_CHARACTERS_MAX,
    STOP_STRING_CHARACTERS_MAX,
    STOP_STRINGS_MAX,
    STOP_TOKEN_IDS_MAX,
    TOOLS_MAX,
)
from host_runtime.server.strict_json import strict_json

WITHOUT_EFFECT = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""Fields that concern OpenAI's own service; accepted, and they change nothing here."""

UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "suffix": ("",),
    "functions": ([],),
    "function_call": ("none",),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "response_format": ({"type": "text"},),
    "parallel_tool_calls": (True,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Fields that aren't supported, with the values (besides null) that ask for nothing special."""

_Item = TypeVar("_Item")
_List = Annotated[list[_Item], Field(fail_fast=True)]
"""Pydantic would note an error for every item (and branch of a union): one is enough. Without this
a request of one megabyte keeps the event loop busy for many seconds."""

_FUNCTION_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _one_unknown_field(cls, data: Any) -> Any:
        """Unknown fields are noted one by one, too: keep the first."""
        known = cls.model_fields
        if not isinstance(data, dict) or len(data) <= len(known):
            return data
        unknown = next(name for name in data if name not in known)
        return {name: data[name] for name in data if name in known or name == unknown}


class StreamOptions(_Strict):
    """Options of a streamed answer."""

    include_usage: bool | None = None


class ThinkingSwitch(_Strict):
    """DeepSeek's own form of the switch."""

    type: Literal["enabled", "disabled"]


class TemplateArguments(_Strict):
    """What chat_template_kwargs may hold."""

    thinking: bool | None = None
    enable_thinking: bool | None = None


class FunctionCallIn(_Strict):
    """Name and JSON arguments of a call in the history."""

    name: str
    arguments: str


class ToolCallIn(_Strict):
    """A call that the assistant made earlier."""

    id: Annotated[str, Field(min_length=1)]
    type: Literal["function"] = "function"
    function: FunctionCallIn
    index: int | None = None


class TextPart(_Strict):
    """A part of a message; only text is supported."""

    type: Literal["text"]
    text: str


class FunctionIn(_Strict):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolIn(_Strict):
    """One entry of ``tools``."""

    type: Literal["function"]
    function: FunctionIn


class MessageIn(_Strict):
    """One message as the client writes it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | _List[TextPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: _List[ToolCallIn] | None = None
    tool_call_id: str | None = None
    # Clients send back assistant messages with these; they must be empty.
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None


class SamplingFields(_Strict):
    """Fields that chat and completions have in common."""

    model: Annotated[str, Field(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    seed: Annotated[int, Field(ge=SEED_MIN, le=SEED_MAX)] | None = None
    stop: str | _List[str] | None = None
    stop_token_ids: Annotated[_List[int], Field(max_length=STOP_TOKEN_IDS_MAX)] | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None

    def stops(self) -> tuple[str, ...]:
        """The stop strings, checked."""
        stops = [self.stop] if isinstance(self.stop, str) else (self.stop or [])
        if len(stops) > STOP_STRINGS_MAX:
            raise bad_request(f"stop has {len(stops)} strings, at most {STOP_STRINGS_MAX}", "stop")
        for stop in stops:
            if not 1 <= len(stop) <= STOP_STRING_CHARACTERS_MAX:
                raise bad_request(
                    f"a stop string has {len(stop)} characters, expected 1 to "
                    f"{STOP_STRING_CHARACTERS_MAX}",
                    "stop",
                )
        return tuple(stops)

    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatRequest(SamplingFields):
    """POST /v1/chat/completions."""

    messages: Annotated[_List[MessageIn], Field(min_length=1, max_length=MESSAGES_MAX)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    tools: Annotated[_List[ToolIn], Field(max_length=TOOLS_MAX)] | None = None
    tool_choice: Any = None
    thinking: bool | ThinkingSwitch | None = None
    chat_template_kwargs: TemplateArguments | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None

    def wants_thinking(self) -> bool:
        """Off unless asked for; contradicting switches are an error."""
        asked: dict[str, bool] = {}
        if self.thinking is not None:
            on = self.thinking
            asked["thinking"] = on if isinstance(on, bool) else on.type == "enabled"
        arguments = self.chat_template_kwargs or TemplateArguments()
        for name in ("thinking", "enable_thinking"):
            value: bool | None = getattr(arguments, name)
            if value is not None:
                asked[f"chat_template_kwargs.{name}"] = value
        if self.reasoning_effort is not None:
            asked["reasoning_effort"] = self.reasoning_effort != "none"
        if len(set(asked.values())) > 1:
            raise bad_request(
                f"these fields contradict each other: {', '.join(asked)}", next(iter(asked))
            )
        return any(asked.values())

    def token_limit(self) -> int | None:
        """max_completion_tokens, or its older name max_tokens."""
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise bad_request(
                "max_tokens and max_completion_tokens differ; give one", "max_completion_tokens"
            )
        return next(iter(both), None)

    def offered_tools(self) -> list[dict[str, Any]]:
        """Function schemas to put into the prompt; empty when tool_choice is "none"."""
        tools = self.tools or []
        choice = "auto" if self.tool_choice is None else self.tool_choice
        if choice not in ("auto", "none"):
            raise bad_request(
                f"tool_choice {_shown(json.dumps(choice))} is not supported: a call can't be "
                'forced; use "auto" or "none"',
                "tool_choice",
            )
        for index, tool in enumerate(tools):
            if not _FUNCTION_NAME.fullmatch(tool.function.name):
                raise bad_request(
                    f"{_shown(tool.function.name)!r} is no function name: expected letters, "
                    "digits, _ and -, at most 64",
                    f"tools[{index}].function.name",
                )
        if choice == "none":
            return []
        return [tool.function.model_dump(exclude_none=True) for tool in tools]

    def conversation(self) -> list[Message]:
        """The messages, checked one by one."""
        return [_message(item, f"messages[{i}]") for i, item in enumerate(self.messages)]


class CompletionRequest(SamplingFields):
    """POST /v1/completions."""

    prompt: str | _List[int] | _List[str] | _List[_List[int]]
    echo: bool | None = None

    def single_prompt(self) -> str | list[int]:
        """The one prompt of the request, as text or as token ids."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return prompt
        if not prompt:
            raise bad_request("prompt is an empty list", "prompt")
        first = prompt[0]
        if isinstance(first, int):
            return [item for item in prompt if isinstance(item, int)]
        if len(prompt) > 1:
            raise bad_request(
                f"prompt has {len(prompt)} entries; one prompt per request is supported", "prompt"
            )
        if not first:
            raise bad_request("prompt[0] is empty", "prompt")
        return first


def _message(item: MessageIn, where: str) -> Message:
    content = item.content
    if isinstance(content, list):
        content = "".join(part.text for part in content)
    if content is None and item.role != "assistant":
        raise bad_request(f"{where}.content is missing ({item.role})", f"{where}.content")
    if item.role == "developer" and not content:
        raise bad_request(f"{where}.content is empty (developer)", f"{where}.content")
    for field, role in (
        ("tool_calls", "assistant"),
        ("reasoning_content", "assistant"),
        ("tool_call_id", "tool"),
    ):
        if getattr(item, field) and item.role != role:
            raise bad_request(f"{where}.{field} belongs to role {role}", f"{where}.{field}")
    if item.role == "tool" and not item.tool_call_id:
        raise bad_request(f"{where}.tool_call_id is missing (tool)", f"{where}.tool_call_id")
    calls = [
        _tool_call(call, f"{where}.tool_calls[{index}]")
        for index, call in enumerate(item.tool_calls or [])
    ]
    if len({call.call_id for call in calls}) != len(calls):
        raise bad_request(f"{where}.tool_calls has an id twice", f"{where}.tool_calls")
    return Message(
        role=item.role,
        content=content or "",
        reasoning=item.reasoning_content or "",
        tool_calls=tuple(calls),
        tool_call_id=item.tool_call_id or "",
    )


def _tool_call(call: ToolCallIn, where: str) -> ToolCall:
    try:
        arguments = strict_json(call.function.arguments)
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise bad_request(
            f"{where}.function.arguments must be a JSON object", f"{where}.function.arguments"
        )
    if not _FUNCTION_NAME.fullmatch(call.function.name):
        raise bad_request(
            f"{where}.function.name {_shown(call.function.name)!r} is no function name",
            f"{where}.function.name",
        )
    return ToolCall(call.id, call.function.name, arguments)


RequestModel = TypeVar("RequestModel", bound=SamplingFields)


def parse_request(body: bytes, model: type[RequestModel]) -> RequestModel:
    """The validated request, or ApiError (400) that names the field."""
    document = _load_object(body)
    known = set(model.model_fields)
    for field in list(document):
        if field in known:
            continue
        if field in WITHOUT_EFFECT:
            del document[field]
        elif field in UNSUPPORTED:
            _check_neutral(field, document.pop(field))
        else:
            field = _shown(field)
            choices = [*known, *UNSUPPORTED]
            near = difflib.get_close_matches(field, choices, n=1, cutoff=0.6)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise bad_request(f"unknown field {field!r}{meant}", field, "unknown_parameter")
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise _as_bad_request(error) from None


def _check_neutral(field: str, value: Any) -> None:
    if value is None or any(
        type(value) in (type(n), float) and value == n for n in UNSUPPORTED[field]
    ):
        return
    raise bad_request(
        f"{field} = {_shown(json.dumps(value))} is not supported by this server; leave it out",
        field,
        "unsupported_parameter",
    )


def _load_object(body: bytes) -> dict[str, Any]:
    try:
        document = strict_json(body)
    except UnicodeError:
        raise bad_request("the request body is not valid UTF-8 text", code="invalid_json") from None
    except ValueError as error:
        raise bad_request(
            f"the request body is not valid JSON: {str(error)[:200]}", code="invalid_json"
        ) from None
    if not isinstance(document, dict):
        raise bad_request("the request body must be a JSON object", code="invalid_json")
    return document


def _shown(text: str) -> str:
    """The beginning of what a client wrote: it may be megabytes long."""
    return text[:SHOWN_CHARACTERS_MAX]


_BRANCHES = frozenset({"str", "int", "float", "bool"})
"""Pydantic names the branch of a union in an error's location; clients don't know these names."""


def _as_bad_request(error: ValidationError) -> Exception:
    errors = error.errors(include_url=False)
    # A union reports every branch: the one that got furthest is what the client meant.
    same_field = [entry for entry in errors if entry["loc"][:1] == errors[0]["loc"][:1]]
    first = max(same_field, key=lambda entry: len(entry["loc"]))
    path = ""
    for part in first["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif re.fullmatch(r"[a-z_]+", part) and part not in _BRANCHES:
            path += ("." if path else "") + _shown(part)
    if first["type"] == "missing":
        return bad_request(f"you must give {path}", path, "missing_required_parameter")
    return bad_request(f"{path}: {first['msg']}", path)
