"""Proves that every field of a request works, is known to have no effect, or is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from server_kit import CHAT, COMPLETIONS, Api, ducklet_tokenizer, says, scripted_api

from host_runtime.server.encoding import encode_conversation
from host_runtime.server.errors import ApiError
from host_runtime.server.schemas import (
    UNSUPPORTED,
    WITHOUT_EFFECT,
    ChatRequest,
    CompletionRequest,
    MessageIn,
    parse_request,
)

USER = {"role": "user", "content": "Hi"}


def refused(api: Api, path: str, body: dict[str, Any], status: int = 400) -> dict[str, Any]:
    """The error object of a request that must be refused."""
    response = api.post(path, body)
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"tempereture": 1}, "tempereture", "did you mean temperature?"),
    ({"nonsense_xyz": 1}, "nonsense_xyz", "unknown field"),
    ({"n": 2}, "n", "n = 2 is not supported"),
    ({"logprobs": True}, "logprobs", "not supported"),
    ({"logprobs": 0}, "logprobs", "not supported"),
    ({"top_logprobs": 3}, "top_logprobs", "not supported"),
    ({"presence_penalty": 0.5}, "presence_penalty", "not supported"),
    ({"logit_bias": {"5": 1}}, "logit_bias", "not supported"),
    ({"response_format": {"type": "json_object"}}, "response_format", "not supported"),
    ({"functions": [{"name": "f"}]}, "functions", "not supported"),
    ({"parallel_tool_calls": False}, "parallel_tool_calls", "not supported"),
    ({"temperature": -0.1}, "temperature", "greater than or equal to 0"),
    ({"temperature": "0"}, "temperature", "valid number"),
    ({"top_p": 0}, "top_p", "greater than 0"),
    ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens", "differ"),
    ({"seed": 2**63}, "seed", "less than"),
    ({"seed": -(2**63) - 1}, "seed", "greater than"),
    ({"stop": [""]}, "stop", "0 characters"),
    ({"stop": ["x"] * 17}, "stop", "17 strings"),
    ({"stop_token_ids": [9999]}, "stop_token_ids", "stop_token_ids[0] is 9999"),
    ({"stop_token_ids": [1] * 1025}, "stop_token_ids", "at most 1024 items"),
    ({"x" * 100_000: 1}, "x" * 80, "unknown field 'xxx"),
    ({"messages": [{**USER, "x" * 100_000: 1}]}, "messages[0]." + "x" * 80, "not permitted"),
    ({"tool_choice": "x" * 100_000}, "tool_choice", "can't be forced"),
    ({"stream_options": {"include_usge": True}}, "stream_options.include_usge", "not permitted"),
    ({"tool_choice": "required"}, "tool_choice", "can't be forced"),
    ({"thinking": True, "reasoning_effort": "none"}, "thinking", "contradict"),
    ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs.x", "not permitted"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", ""),
    ({"messages": []}, "messages", "at least 1 item"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "'system'"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing (user)"),
    ({"messages": [{**USER, "tool_call_id": "x"}]}, "messages[0].tool_call_id", "belongs to"),
    ({"messages": [{**USER, "audio": {"id": "x"}}]}, "messages[0].audio", ""),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].type",
        "'text'",
    ),
    ({"messages": [{**USER, "content": 5}]}, "messages[0].content", ""),
]


@pytest.mark.parametrize(("fields", "param", "text"), REFUSED, ids=lambda v: str(v)[:50])
def test_a_chat_field_that_cannot_be_honoured_is_refused_by_name(
    fields: dict[str, Any], param: str, text: str
) -> None:
    api, engine = scripted_api()
    error = refused(api, CHAT, {"messages": [USER], **fields})
    assert error["param"] == param
    assert text in error["message"]
    assert len(error["message"]) < 500
    assert error["type"] == "invalid_request_error"
    assert engine.handles == []


REFUSED_COMPLETIONS: list[tuple[dict[str, Any], str, str]] = [
    ({}, "prompt", "you must give prompt"),
    ({"prompt": ["a", "b"]}, "prompt", "2 entries"),
    ({"prompt": []}, "prompt", "empty list"),
    ({"prompt": [[]]}, "prompt", "empty"),
    ({"prompt": [1, 8192]}, "prompt", "prompt[1] is 8192"),
    ({"prompt": "a", "best_of": 3}, "best_of", "not supported"),
    ({"prompt": "a", "suffix": "b"}, "suffix", "not supported"),
    ({"prompt": "a", "messages": []}, "messages", "unknown field"),
]


@pytest.mark.parametrize(("body", "param", "text"), REFUSED_COMPLETIONS, ids=lambda v: str(v)[:50])
def test_a_completion_field_that_cannot_be_honoured_is_refused_by_name(
    body: dict[str, Any], param: str, text: str
) -> None:
    api, _ = scripted_api()
    error = refused(api, COMPLETIONS, body)
    assert error["param"] == param
    assert text in error["message"]


MANY = 2000
ONE_MISTAKE_MANY_TIMES: list[dict[str, Any]] = [
    {"prompt": [0] * MANY + [None]},
    {"prompt": [{}] * MANY},
    {"prompt": [["a"] * MANY]},
    {"prompt": [["a"]] * MANY},
    {"prompt": "a", "stop": [1] * MANY},
    {"prompt": "a", "stop_token_ids": ["a"] * MANY},
    {"messages": [1] * MANY},
    {"messages": [{"role": "user", "content": [1] * MANY}]},
    {"messages": [{"role": "user", "content": [{"type": 1}]}] * MANY},
    {"messages": [{"role": "assistant", "tool_calls": [1] * MANY}, USER]},
    {"messages": [{**USER, "annotations": [1] * MANY}]},
    {"messages": [{**USER, **{f"a{i}": 1 for i in range(MANY)}}]},
    {"messages": [USER], "tools": [1] * MANY},
    {"messages": [USER], "stream_options": {f"a{i}": 1 for i in range(MANY)}},
]


@pytest.mark.parametrize("fields", ONE_MISTAKE_MANY_TIMES, ids=lambda v: str(v)[:50])
def test_a_mistake_that_is_made_many_times_is_noted_a_few_times(fields: dict[str, Any]) -> None:
    """Every noted error costs time on the event loop: 11 s for the megabyte of one prompt."""
    model = CompletionRequest if "prompt" in fields else ChatRequest
    with pytest.raises(ValidationError) as caught:
        model.model_validate({"model": "ducklet", **fields})
    assert caught.value.error_count() < 20
    with pytest.raises(ApiError):
        parse_request(json.dumps({"model": "ducklet", **fields}).encode(), model)


def test_a_wrong_item_of_a_long_list_is_named() -> None:
    api, _ = scripted_api()
    error = refused(api, COMPLETIONS, {"prompt": [0, 1, None, 2, None]})
    assert error["param"] == "prompt[2]"
    error = refused(api, CHAT, {"messages": [USER, {**USER, "a": 1, "b": 2}]})
    assert error["param"] == "messages[1].a"


NEUTRAL: list[dict[str, Any]] = [
    {"n": 1, "logprobs": False, "top_logprobs": None, "presence_penalty": 0.0},
    {"frequency_penalty": 0, "logit_bias": {}, "response_format": {"type": "text"}},
    {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
    {"parallel_tool_calls": True, "tool_choice": "none", "tools": []},
    {"messages": [{**USER, "name": "Ann"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
]


@pytest.mark.parametrize("fields", NEUTRAL, ids=lambda v: str(v)[:50])
def test_fields_that_ask_for_nothing_special_are_accepted(fields: dict[str, Any]) -> None:
    api, engine = scripted_api(says("Hello"))
    response = api.post(CHAT, {"messages": [USER], **fields})
    assert response.status_code == 200, response.text
    hi = api.service.tokenizer.encode_text("Hi")
    assert engine.handles[0].prompt_ids == [0, 8190, *hi, 8191, 8189]


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest])
def test_null_is_the_default_of_every_optional_field(
    model: type[ChatRequest] | type[CompletionRequest],
) -> None:
    optional = [name for name, field in model.model_fields.items() if not field.is_required()]
    assert {"ignore_eos", "return_token_ids"} <= set(optional)
    body = {"model": "ducklet", "messages": [USER]}
    if model is CompletionRequest:
        body = {"model": "ducklet", "prompt": "a"}
    nulls = dict.fromkeys(optional)
    assert parse_request(json.dumps({**body, **nulls}).encode(), model) == parse_request(
        json.dumps(body).encode(), model
    )


SWITCHES: list[tuple[dict[str, Any], bool]] = [
    ({}, False),
    ({"thinking": True}, True),
    ({"thinking": {"type": "enabled"}}, True),
    ({"thinking": {"type": "disabled"}}, False),
    ({"chat_template_kwargs": {"thinking": True}}, True),
    ({"chat_template_kwargs": {"enable_thinking": True}}, True),
    ({"chat_template_kwargs": {"enable_thinking": False}}, False),
    ({"reasoning_effort": "low"}, True),
    ({"reasoning_effort": "none"}, False),
]


@pytest.mark.parametrize(("fields", "thinking"), SWITCHES, ids=lambda v: str(v))
def test_thinking_is_off_unless_asked_for(fields: dict[str, Any], thinking: bool) -> None:
    api, engine = scripted_api(says("Hm", 8189, "Yes"))
    message = api.chat(**fields).json()["choices"][0]["message"]
    assert engine.handles[0].prompt_ids[-1] == (8188 if thinking else 8189)
    assert message["content"] == ("Yes" if thinking else "HmYes")
    assert message.get("reasoning_content") == ("Hm" if thinking else None)


def test_sampling_fields_reach_the_engine_and_defaults_are_the_models() -> None:
    api, engine = scripted_api()
    api.chat()
    prompt = engine.handles[0].prompt_ids
    params = engine.handles[0].params
    assert (params.temperature, params.top_p, params.top_k, params.seed) == (0.6, 0.95, 0, None)
    assert (params.max_tokens, params.ignore_eos) == (2048 - len(prompt), False)
    api.chat(
        temperature=0,
        top_p=0.5,
        top_k=-1,
        seed=-7,
        max_completion_tokens=9,
        stop_token_ids=[7],
        ignore_eos=True,
    )
    params = engine.handles[1].params
    assert (params.temperature, params.top_p, params.top_k, params.seed) == (0, 0.5, 0, -7)
    assert (params.max_tokens, params.stop_token_ids, params.ignore_eos) == (9, (7,), True)
    api.post(COMPLETIONS, {"prompt": "a"})
    assert engine.handles[2].params.max_tokens == 16


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
FIELDS = [*ChatRequest.model_fields, *UNSUPPORTED, *WITHOUT_EFFECT]
NAMES = [*MessageIn.model_fields, "type", "function", "arguments", "text", "id"]
OBJECTS = st.dictionaries(st.sampled_from(NAMES), JSON, max_size=5)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4), st.lists(OBJECTS, max_size=3))
def test_no_request_whatever_it_holds_is_an_internal_error(
    fields: dict[str, Any], messages: list[dict[str, Any]]
) -> None:
    base = {"model": "ducklet", "messages": messages or [USER]}
    try:
        request = parse_request(json.dumps({**base, **fields}).encode(), ChatRequest)
        request.stops()
        request.token_limit()
        thinking, tools = request.wants_thinking(), request.offered_tools()
        prompt = encode_conversation(request.conversation(), tools=tools, thinking=thinking)
        ducklet_tokenizer().encode(prompt.pieces)
    except ApiError as error:
        assert error.status == 400
        assert error.message


BAD_BODIES = [
    (b"", "not valid JSON"),
    (b'{"model": ', "not valid JSON"),
    (b"[1]", "must be a JSON object"),
    (b'{"model": NaN}', "NaN is not JSON"),
    (b'{"temperature": 1e999}', "not JSON compliant"),
    (b'{"metadata": ' + b"[" * 300 + b"]" * 300 + b"}", "nested deeper than 256 levels"),
    (b"\xff\xfe", "not valid"),
    (b'{"model": "\\ud800"}', "not valid UTF-8"),
    (b"[" * 200_000, "not valid JSON"),
    (b"{}", "you must give"),
]


@pytest.mark.parametrize(("body", "text"), BAD_BODIES, ids=lambda v: str(v)[:30])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_bodies_that_are_no_request_are_refused(path: str, body: bytes, text: str) -> None:
    api, _ = scripted_api()
    response = api.request("POST", path, content=body)
    assert response.status_code == 400
    assert text in response.json()["error"]["message"]


DEEP = '{"x": ' + "[" * 500 + "]" * 500 + "}"


def test_a_tool_call_of_the_history_must_hold_a_json_object() -> None:
    api, _ = scripted_api()
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "[1"}}
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "x", "tool_call_id": "a"},
    ]
    for arguments in ("[1", "[]", '{"x": NaN}', '{"x": 1e999}', '{"x": "\\ud83d"}', DEEP):
        call["function"] = {"name": "f", "arguments": arguments}
        error = refused(api, CHAT, {"messages": messages})
        assert error["param"] == "messages[1].tool_calls[0].function.arguments"
    call["function"] = {"name": "f", "arguments": json.dumps({"x": 1})}
    assert api.post(CHAT, {"messages": messages}).status_code == 200
