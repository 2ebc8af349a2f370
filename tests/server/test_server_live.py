"""Proves over real sockets that clients who leave cancel their requests, and that many share."""

from __future__ import annotations

import http.client
import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest
from server_kit import (
    CHAT,
    ScriptedEngine,
    ScriptedHandle,
    ducklet_tokenizer,
    live_server,
    scripted_service,
    wait_until,
)

BODY: dict[str, Any] = {"model": "ducklet", "messages": [{"role": "user", "content": "Hi"}]}


def begin_request(url: str, *, stream: bool) -> http.client.HTTPConnection:
    """A request on its way; closing the connection is leaving."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
    connection.request("POST", CHAT, json.dumps({**BODY, "stream": stream}))
    return connection


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels_its_request(stream: bool) -> None:
    engine = ScriptedEngine(script=lambda handle: handle.tokens([100]))
    service = scripted_service(engine)
    with live_server(service) as url:
        connection = begin_request(url, stream=stream)
        wait_until(lambda: bool(engine.handles), "the request arrives")
        if stream:
            assert connection.getresponse().status == 200
        connection.close()
        wait_until(engine.handles[0].cancelled.is_set, "the request is cancelled")
        wait_until(lambda: not service.running, "the books are closed")
        assert dict(service.metrics.requests) == {(CHAT, "disconnected"): 1}
        # The server goes on.
        engine.script = lambda handle: handle.finish()
        assert httpx.post(url + CHAT, json=BODY).status_code == 200


def test_tokens_are_sent_when_they_come_not_at_the_end() -> None:
    engine = ScriptedEngine(script=lambda handle: None)
    request = {**BODY, "stream": True}
    with (
        live_server(scripted_service(engine)) as url,
        httpx.stream("POST", url + CHAT, json=request, timeout=30) as response,
    ):
        lines = (line for line in response.iter_lines() if line)
        assert '"role":"assistant"' in next(lines)
        for word in ("one", " two", " three"):
            engine.handles[0].tokens(ducklet_tokenizer().encode_text(word))
            shown = ""
            while shown != word:
                assert word.startswith(shown)
                document = json.loads(next(lines).removeprefix("data: "))
                shown += document["choices"][0]["delta"]["content"]
        engine.handles[0].finish()
        assert list(lines)[-1] == "data: [DONE]"


def test_the_openai_client_raises_what_happens_in_the_middle_of_a_stream() -> None:
    def script(handle: ScriptedHandle) -> None:
        handle.tokens(ducklet_tokenizer().encode_text("Hello"))
        handle.finish("error", "d02 does not answer")

    with live_server(scripted_service(ScriptedEngine(script=script))) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        question: Any = BODY["messages"]
        chunks = client.chat.completions.create(model="ducklet", messages=question, stream=True)
        shown, reason = "", None
        with pytest.raises(openai.APIError, match="d02 does not answer"):
            for chunk in chunks:
                shown += chunk.choices[0].delta.content or ""
                reason = chunk.choices[0].finish_reason
        assert (shown, reason) == ("Hello", "error")


@pytest.mark.parametrize("seed", [7])
def test_many_clients_get_their_own_answers(seed: int) -> None:
    rng = random.Random(seed)
    texts = [" ".join(rng.choices(["duck", "鸭子", "🦆", "quack"], k=30)) for _ in range(24)]

    def script(handle: ScriptedHandle) -> None:
        # Answers with the question, from a thread of its own so that the requests interleave.
        def work() -> None:
            handle.tokens(handle.prompt_ids[2:-2])
            handle.finish()

        threading.Thread(target=work).start()

    with live_server(scripted_service(ScriptedEngine(script=script))) as url:

        def ask(index: int) -> str:
            message = {"role": "user", "content": texts[index]}
            body = {"model": "ducklet", "messages": [message], "stream": index % 2 == 0}
            response = httpx.post(url + CHAT, json=body, timeout=30)
            if not body["stream"]:
                return str(response.json()["choices"][0]["message"]["content"])
            lines = [line for line in response.text.splitlines() if line.startswith("data: {")]
            deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines]
            return "".join(delta.get("content", "") for delta in deltas)

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(ask, range(len(texts)))) == texts
