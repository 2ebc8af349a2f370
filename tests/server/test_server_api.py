"""Proves the API's behaviour around an answer: documents, errors, readiness, limits, books."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from server_kit import (
    CHAT,
    COMPLETIONS,
    Api,
    ScriptedEngine,
    ScriptedHandle,
    ducklet_tokenizer,
    finish_reason,
    joined,
    says,
    scripted_api,
    scripted_service,
    sse_documents,
)

from host_runtime.experts.base import DuckStatus
from host_runtime.server import sending
from host_runtime.server.limits import BODY_BYTES_MAX
from host_runtime.server.output import AnswerReader, Delta
from host_runtime.server.sending import KEEP_ALIVE
from host_runtime.server.tokens import ChatTokenizer

GOOD_DUCK = DuckStatus(
    "d01", True, "serving", "", {"calls": 12, "sent_bytes": 3.5e9, "round_trip_ns": 90}
)
LOST_DUCK = DuckStatus("d02", False, "lost", "no packet for 3.0 s")


def test_a_chat_answer_has_openais_form() -> None:
    api, engine = scripted_api(says("Quack."))
    document = api.chat("Hi").json()
    prompt = len(engine.handles[0].prompt_ids)
    tokens = engine.handles[0].token_count
    assert document.pop("id").startswith("chatcmpl-")
    assert isinstance(document.pop("created"), int)
    assert document == {
        "object": "chat.completion",
        "model": "ducklet",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Quack.", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": tokens,
            "total_tokens": prompt + tokens,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "accepted_prediction_tokens": 3,
                "rejected_prediction_tokens": 2,
            },
        },
        "duckctl": {
            "queue_s": 0.25,
            "ttft_s": 0.5,
            "decode_s": 2.0,
            "tpot_s": round(2.0 / (tokens - 1), 6),
            "drafts_proposed": 5,
            "drafts_accepted": 3,
        },
    }


@pytest.mark.parametrize("include_usage", [False, True])
def test_a_streamed_chat_answer_has_openais_form(include_usage: bool) -> None:
    api, _ = scripted_api(says("Hm.", 8189, "Quack 🦆!"))
    options = {"stream_options": {"include_usage": True}} if include_usage else {}
    response = api.chat("Hi", stream=True, thinking=True, **options)
    assert response.headers["content-type"].startswith("text/event-stream")
    documents = sse_documents(response.text)
    assert {d["object"] for d in documents} == {"chat.completion.chunk"}
    assert len({d["id"] for d in documents}) == 1
    assert documents[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert joined(documents) == "Quack 🦆!"
    assert joined(documents, "reasoning_content") == "Hm."
    assert finish_reason(documents) == "stop"
    assert ("usage" in documents[-1]) == include_usage
    if include_usage:
        assert documents[-1]["choices"] == []
        whole = api.chat("Hi", thinking=True).json()
        assert documents[-1]["usage"] == whole["usage"]
        thought = len(ducklet_tokenizer().encode_text("Hm.")) + 1  # and the end of thinking
        assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == thought


def test_a_stop_string_across_tokens_ends_the_answer_and_cancels_the_rest() -> None:
    def script(handle: ScriptedHandle) -> None:
        handle.tokens(ducklet_tokenizer().encode_text("one two STOPPED three"))

    for stream in (False, True):
        api, engine = scripted_api(script)
        response = api.chat(stop=["OPPE", "nothing"], stream=stream)
        if stream:
            documents = sse_documents(response.text)
            text, reason = joined(documents), finish_reason(documents)
        else:
            (choice,) = response.json()["choices"]
            text, reason = choice["message"]["content"], choice["finish_reason"]
        assert (text, reason) == ("one two ST", "stop")
        assert engine.handles[0].cancelled.is_set()


def test_held_back_text_is_shown_when_no_stop_string_came() -> None:
    api, _ = scripted_api(says("ends with STO", reason="length"))
    (choice,) = api.chat(stop="STOP").json()["choices"]
    assert choice["message"]["content"] == "ends with STO"
    assert choice["finish_reason"] == "length"


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {}}}
CALL = (
    'Look.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
    '<｜DSML｜parameter name="city" string="true">Ulm</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
)


def test_tool_calls_are_returned_whole_and_streamed() -> None:
    api, _ = scripted_api(says(CALL))
    (choice,) = api.chat(tools=[WEATHER]).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Look."
    (call,) = choice["message"]["tool_calls"]
    assert re.fullmatch(r"call_[0-9a-f]{24}", call["id"])
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Ulm"}'}
    documents = sse_documents(api.chat(tools=[WEATHER], stream=True).text)
    assert joined(documents) == "Look."
    assert finish_reason(documents) == "tool_calls"
    deltas = [d["choices"][0]["delta"] for d in documents if d["choices"]]
    ((streamed,),) = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
    assert (streamed["index"], streamed["function"]) == (0, call["function"])


def test_a_stream_shows_signs_of_life_while_a_tool_call_is_held_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine is not silent, but the client hears nothing of what it says."""
    api, engine = scripted_api(says(CALL))
    assert KEEP_ALIVE not in api.chat(tools=[WEATHER], stream=True).content
    monkeypatch.setattr(sending, "KEEP_ALIVE_S", 0.0)
    events = api.chat(tools=[WEATHER], stream=True).content.split(b"\n\n")
    signs = [event.startswith(b":") for event in events]
    call = next(place for place, event in enumerate(events) if b'"tool_calls":[' in event)
    token_count = engine.handles[1].token_count
    assert token_count > 50
    assert signs[call - 40 : call] == [True] * 40
    assert sum(signs) < token_count, "what the client sees needs no sign besides"


def test_a_malformed_call_is_text_with_a_flag() -> None:
    broken = CALL.replace("</｜DSML｜invoke>", "")
    api, _ = scripted_api(says(broken))
    document = api.chat(tools=[WEATHER]).json()
    assert document["choices"][0]["message"]["content"] == broken.replace("Look.\n\n", "Look.")
    assert document["choices"][0]["finish_reason"] == "stop"
    assert document["duckctl"]["malformed_tool_call"] is True


def test_completions_whole_streamed_and_echoed() -> None:
    api, engine = scripted_api(says(" swim<think>", 8188, reason="length"))
    body = {"prompt": "Ducks <｜User｜>", "echo": True, "return_token_ids": True}
    document = api.post(COMPLETIONS, body).json()
    (choice,) = document["choices"]
    assert document["object"] == "text_completion"
    assert choice["text"] == "Ducks <｜User｜> swim<think><think>"
    assert choice["prompt_token_ids"] == engine.handles[0].prompt_ids
    assert 8190 not in choice["prompt_token_ids"]
    assert choice["token_ids"][-1] == 8188
    documents = sse_documents(api.post(COMPLETIONS, {**body, "stream": True}).text)
    assert joined(documents, "text") == choice["text"]
    assert finish_reason(documents) == choice["finish_reason"] == "length"
    streamed_ids = [i for d in documents for i in d["choices"][0].get("token_ids", [])]
    assert streamed_ids == choice["token_ids"]


def test_a_duck_that_fails_before_the_first_token_is_a_503_that_names_it() -> None:
    engine = ScriptedEngine(ducks=[GOOD_DUCK, GOOD_DUCK])

    def script(handle: ScriptedHandle) -> None:
        engine.ducks = [GOOD_DUCK, LOST_DUCK]
        handle.finish("error", "d02 does not answer: no packet for 3.0 s (layer 3)")

    engine.script = script
    response = Api(scripted_service(engine)).chat()
    assert response.status_code == 503
    assert response.headers["retry-after"] == "5"
    error = response.json()["error"]
    assert error["code"] == "duck_unavailable"
    assert "d02 does not answer" in error["message"]


def test_a_duck_that_fails_mid_stream_ends_it_with_reason_error_and_an_error_event() -> None:
    engine = ScriptedEngine(ducks=[GOOD_DUCK])

    def script(handle: ScriptedHandle) -> None:
        handle.tokens(ducklet_tokenizer().encode_text("Hello wor"))
        engine.ducks = [LOST_DUCK]
        handle.finish("error", "no packet for 3.0 s during call 812 (layer 3)")

    engine.script = script
    api = Api(scripted_service(engine))
    documents = sse_documents(api.chat(stream=True).text)
    assert joined(documents) == "Hello wor"
    assert finish_reason(documents) == "error"
    assert documents[-1]["error"]["code"] == "duck_unavailable"
    assert "d02" in documents[-1]["error"]["message"]
    assert "during call 812" in documents[-1]["error"]["message"]
    # Refused at once while the duck is away; served again when it is back.
    refused = api.chat()
    assert refused.status_code == 503
    assert "d02 is lost: no packet for 3.0 s" in refused.json()["error"]["message"]
    assert len(engine.handles) == 1
    engine.ducks, engine.script = [GOOD_DUCK], says("back")
    assert api.chat().json()["choices"][0]["message"]["content"] == "back"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("logits at position 17 are not finite", "logits at position 17 are not finite"),
        ("internal error: KeyError: '/secret/path'", "internal error of the engine"),
    ],
)
def test_a_failure_of_the_engine_is_a_500_without_its_insides(message: str, shown: str) -> None:
    api, _ = scripted_api(lambda handle: handle.finish("error", message))
    response = api.chat()
    assert response.status_code == 500
    assert shown in response.json()["error"]["message"]
    assert "secret" not in response.text


def test_a_defect_of_the_server_is_a_500_without_traceback() -> None:
    def script(handle: ScriptedHandle) -> None:
        raise ZeroDivisionError("/secret/path")

    api, _ = scripted_api(script)
    response = api.chat()
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "secret" not in response.text
    assert "Traceback" not in response.text


def test_a_full_queue_is_a_429_with_retry_after() -> None:
    api, _ = scripted_api(full=True)
    for stream in (False, True):
        response = api.chat(stream=stream)
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) > 0
        assert response.json()["error"]["code"] == "queue_full"


def test_a_context_that_is_too_long_is_refused_with_the_numbers() -> None:
    api, engine = scripted_api()
    response = api.chat("word " * 3000)
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert re.search(
        r"context of this server is 2048 tokens; the prompt has \d{4}", error["message"]
    )
    error = api.post(COMPLETIONS, {"prompt": "a", "max_tokens": 2047}).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert "the prompt has 2 and max_tokens is 2047" in error["message"]
    assert engine.handles == []


def test_an_answer_that_outlasts_the_deadline_is_cancelled() -> None:
    for stream in (False, True):
        engine = ScriptedEngine(script=lambda handle: handle.tokens([100]))
        response = Api(scripted_service(engine, request_deadline_s=0.05)).chat(stream=stream)
        body = sse_documents(response.text)[-1] if stream else response.json()
        assert body["error"]["code"] == "request_deadline_exceeded"
        assert response.status_code == (200 if stream else 504)
        assert engine.handles[0].cancelled.is_set()


def test_an_engine_that_has_ended_does_not_let_requests_wait() -> None:
    api, _ = scripted_api(running=False)
    assert api.chat().status_code == 503
    assert api.get("/ready").json()["reason"] == "the engine is not running"


def test_unknown_models_paths_and_methods_are_named() -> None:
    api, _ = scripted_api()
    response = api.request(
        "POST", CHAT, json={"model": "gpt-5", "messages": [{"role": "user", "content": "x"}]}
    )
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert "'gpt-5'" in response.json()["error"]["message"]
    assert api.get("/v1/models/gpt-5").status_code == 404
    assert api.get("/v1/embeddings").status_code == 404
    assert "/v1/embeddings" in api.get("/v1/embeddings").json()["error"]["message"]
    assert api.get(CHAT).status_code == 405
    assert api.get("/docs").status_code == 404


def test_models_are_listed_and_shown() -> None:
    api, _ = scripted_api()
    document = api.get("/v1/models").json()
    assert document["object"] == "list"
    (model,) = document["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == ("ducklet", "model", 2048)
    assert api.get("/v1/models/ducklet").json() == model


def test_readiness_reflects_every_duck_while_health_only_tells_that_the_process_lives() -> None:
    api, engine = scripted_api(ducks=[GOOD_DUCK, LOST_DUCK])
    assert api.get("/health").status_code == 200
    response = api.get("/ready")
    assert response.status_code == 503
    document = response.json()
    assert document["ready"] is False
    assert "d02: no packet for 3.0 s" in document["reason"]
    assert [(d["name"], d["ready"], d["state"]) for d in document["ducks"]] == [
        ("d01", True, "serving"),
        ("d02", False, "lost"),
    ]
    engine.ducks = [GOOD_DUCK]
    assert api.get("/ready").status_code == 200
    api.service.stopping = True
    assert api.get("/ready").status_code == 503
    assert api.get("/health").status_code == 200
    assert api.chat().json()["error"]["code"] == "server_stopping"


@pytest.mark.parametrize("failure", [ZeroDivisionError("/secret/path"), None])
def test_a_defect_in_mid_answer_ends_it_as_any_failure_does(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failure: Exception | None
) -> None:
    def feed(*_: object) -> Delta:
        if failure is not None:
            raise failure
        return Delta("\ud83d")  # can't be encoded

    monkeypatch.setattr(AnswerReader, "feed", feed)
    api, engine = scripted_api(lambda handle: handle.tokens([100]))
    documents = sse_documents(api.chat(stream=True).text)
    assert finish_reason(documents) == "error"
    assert documents[-1]["error"]["code"] == "internal_error"
    assert "secret" not in json.dumps(documents)
    assert "Traceback" in caplog.text
    assert engine.handles[0].cancelled.is_set()
    engine.script = says("x")
    assert api.chat().json()["error"]["code"] == "internal_error"
    assert dict(api.service.metrics.requests) == {(CHAT, "internal_error"): 2}


def test_a_defect_at_the_beginning_of_a_stream_ends_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(*_: object) -> str:
        raise ZeroDivisionError("/secret/path")

    monkeypatch.setattr(ChatTokenizer, "decode", decode)
    api, engine = scripted_api(lambda handle: handle.tokens([100]))
    response = api.post(COMPLETIONS, {"prompt": "a", "echo": True, "stream": True})
    assert sse_documents(response.text)[-1]["error"]["code"] == "internal_error"
    assert engine.handles[0].cancelled.is_set()


def test_a_token_without_text_adds_nothing_to_an_answer() -> None:
    api, _ = scripted_api(says("Qua", 9999, "ck"))
    assert api.chat().json()["choices"][0]["message"]["content"] == "Quack"
    assert joined(sse_documents(api.chat(stream=True).text)) == "Quack"


def test_metrics_count_refused_requests_by_their_code() -> None:
    api, engine = scripted_api(says("Hi"), full=True)
    question: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
    api.chat()
    api.chat(stream=True)
    engine.full, engine.ducks = False, [LOST_DUCK]
    api.chat()
    engine.ducks = []
    api.chat(n=2)
    api.chat(temperature=3)
    api.chat("word " * 3000)
    api.request("POST", CHAT, content="{")
    api.request("POST", CHAT, json={**question, "model": "gpt-5"})
    api.post(COMPLETIONS, {"prompt": []})
    api.service.stopping = True
    api.chat()
    counted = dict(api.service.metrics.requests)
    assert counted.pop((COMPLETIONS, "invalid_request")) == 1
    assert counted.pop((CHAT, "queue_full")) == 2
    codes = [
        *("duck_unavailable", "unsupported_parameter", "invalid_request", "invalid_json"),
        *("context_length_exceeded", "model_not_found", "server_stopping"),
    ]
    assert counted == {(CHAT, code): 1 for code in codes}
    assert 'outcome="queue_full"} 2' in api.get("/metrics").text


def metric(text: str, name: str) -> float:
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return float(line.rpartition(" ")[2])


def test_metrics_count_requests_tokens_drafts_times_and_ducks() -> None:
    api, engine = scripted_api(says("Quack."), ducks=[GOOD_DUCK])
    api.chat()
    api.chat(stream=True)
    engine.script = lambda handle: handle.finish("error", "bad")
    api.chat()
    text = api.get("/metrics").text
    labels = f'{{endpoint="{CHAT}",outcome='
    assert metric(text, f'duckctl_requests_total{labels}"stop"}}') == 2
    assert metric(text, f'duckctl_requests_total{labels}"generation_failed"}}') == 1
    tokens = sum(handle.token_count for handle in engine.handles)
    assert metric(text, "duckctl_completion_tokens_total") == tokens
    assert metric(text, "duckctl_mtp_drafts_total") == 15
    assert metric(text, "duckctl_mtp_accepted_total") == 9
    assert metric(text, "duckctl_shared_steps_total") == 7
    assert metric(text, 'duckctl_ttft_seconds_bucket{le="0.5"}') == 2
    assert metric(text, 'duckctl_ttft_seconds_bucket{le="0.25"}') == 0
    assert metric(text, "duckctl_tpot_seconds_count") == 2
    assert metric(text, 'duckctl_duck_ready{duck="d01"}') == 1
    assert metric(text, 'duckctl_duck_sent_bytes_total{duck="d01"}') == 3.5e9
    assert metric(text, 'duckctl_duck_round_trip_ns{duck="d01"}') == 90
    assert api.service.running == set()
    for line in text.splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) .+|[a-z_]+(\{[^}]*\})? [-+0-9.e]+", line), line


def test_with_an_api_key_the_api_wants_it_and_the_probes_do_not() -> None:
    service = scripted_service(ScriptedEngine(script=says("Hi")))
    api = Api(service, api_key="correct horse battery")
    assert api.get("/health").status_code == api.get("/ready").status_code == 200
    bad: list[dict[str, Any]] = [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic correct horse battery"},
        {"Authorization": "Bearer \u00fc"},
    ]
    for headers in bad:
        encoded = {k: v.encode("latin-1") for k, v in headers.items()}
        for path in ("/v1/models", "/metrics"):
            response = api.get(path, headers=encoded)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
    good = {"Authorization": "Bearer correct horse battery"}
    assert api.get("/v1/models", headers=good).status_code == 200


def test_web_pages_are_refused_unless_there_is_a_key() -> None:
    service = scripted_service(ScriptedEngine(script=says("Hi")))
    page = {"Origin": "http://evil.example"}
    body = {"prompt": "a"}
    response = Api(service).post(COMPLETIONS, body, headers=page)
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "web_page_refused"
    keyed = {**page, "Authorization": "Bearer correct horse battery"}
    with_key = Api(service, api_key="correct horse battery")
    assert with_key.post(COMPLETIONS, body, headers=keyed).status_code == 200
    assert "access-control-allow-origin" not in response.headers


def test_a_body_beyond_the_limit_is_refused() -> None:
    api, _ = scripted_api()
    content = json.dumps({"model": "ducklet", "prompt": "x" * BODY_BYTES_MAX})
    response = api.request("POST", COMPLETIONS, content=content)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"
