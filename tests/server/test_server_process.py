"""Proves that the server process starts, serves ducklet, refuses and stops as documented."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from server_kit import (
    CHAT,
    COMPLETIONS,
    DEADLINE_S,
    DUCKLET,
    ROOT,
    finish_reason,
    joined,
    sse_documents,
    wait_until,
)
from server_process import (
    START_S_MAX,
    ServerProcess,
    read_line,
    run_to_its_end,
    running_server,
    server_command,
    write_run_file,
)

PRIME = {"role": "user", "content": "Is 143 prime?"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("server")) as process:
        yield process


def post(server: ServerProcess, path: str, **fields: Any) -> httpx.Response:
    body = {"model": "ducklet", "temperature": 0, **fields}
    response = httpx.post(server.url + path, json=body, timeout=DEADLINE_S)
    assert response.status_code == 200, response.text
    return response


def test_only_the_ready_line_goes_to_stdout_and_it_is_loopback(server: ServerProcess) -> None:
    assert httpx.get(f"{server.url}/ready").json()["ready"] is True
    post(server, CHAT, messages=[PRIME], max_tokens=3)
    assert server.process.stdout is not None
    with pytest.raises(BlockingIOError):  # nothing more in the pipe
        os.read(server.process.stdout.fileno(), 1)
    log = server.log.read_text()
    assert "loading ducklet" in log
    assert "prime" not in log  # prompts are nobody's business


def reference_prompts() -> list[dict[str, Any]]:
    prompts: list[dict[str, Any]] = json.loads((DUCKLET / "reference.json").read_text())["prompts"]
    return [prompt for prompt in prompts if len(prompt["prompt_ids"]) < 100]


@pytest.mark.parametrize("prompt", reference_prompts(), ids=lambda p: p["name"])
def test_greedy_tokens_and_draft_counts_through_the_api_are_the_references(
    server: ServerProcess, prompt: dict[str, Any]
) -> None:
    fields: dict[str, Any] = {
        "prompt": prompt["prompt_ids"],
        "max_tokens": len(prompt["greedy_ids"]),
        "ignore_eos": True,
        "return_token_ids": True,
    }
    document = post(server, COMPLETIONS, **fields).json()
    (choice,) = document["choices"]
    assert choice["token_ids"] == prompt["greedy_ids"]
    assert choice["finish_reason"] == "length"
    counts = document["usage"]["completion_tokens_details"]
    accepted, proposed = prompt["mtp1_accepted"], prompt["mtp1_proposed"]
    assert counts["accepted_prediction_tokens"] == accepted
    assert counts["rejected_prediction_tokens"] == proposed - accepted


def test_a_streamed_completion_equals_the_whole_one(server: ServerProcess) -> None:
    (prompt,) = [p for p in reference_prompts() if p["name"] == "zh-prime-221"]
    fields: dict[str, Any] = {"prompt": prompt["prompt_ids"], "max_tokens": 40}
    whole = post(server, COMPLETIONS, **fields).json()["choices"][0]["text"]
    documents = sse_documents(post(server, COMPLETIONS, **fields, stream=True).text)
    assert joined(documents, "text") == whole
    assert "\ufffd" not in whole


QUESTIONS: list[dict[str, Any]] = [
    {"messages": [PRIME], "thinking": True},
    {"messages": [PRIME]},
    {"messages": [{"role": "user", "content": "104857601是质数吗"}], "thinking": True},
    {"messages": [{"role": "user", "content": "你好"}], "temperature": 1.0, "seed": 11},
    {"messages": [PRIME], "stop": ["11 ×", "zzz"]},
    {"messages": [PRIME], "max_tokens": 7},
]


@pytest.mark.slow
@pytest.mark.parametrize("fields", QUESTIONS, ids=lambda f: str(f)[-40:])
def test_streamed_and_whole_answers_are_equal(
    server: ServerProcess, fields: dict[str, Any]
) -> None:
    whole = post(server, CHAT, **{"max_tokens": 80, **fields}).json()
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    text = post(server, CHAT, **{"max_tokens": 80, **fields, **streamed}).text
    documents = sse_documents(text)
    (choice,) = whole["choices"]
    assert joined(documents) == choice["message"]["content"]
    assert joined(documents, "reasoning_content") == choice["message"].get("reasoning_content", "")
    assert finish_reason(documents) == choice["finish_reason"]
    usages = [documents[-1]["usage"], whole["usage"]]
    if "stop" in fields:  # the engine may verify another draft before it hears of the stop string
        for usage in usages:
            del usage["completion_tokens_details"]["accepted_prediction_tokens"]
            del usage["completion_tokens_details"]["rejected_prediction_tokens"]
    assert usages[0] == usages[1]


@pytest.mark.slow
def test_ducklet_knows_that_143_is_not_prime_and_stop_strings_cut_its_answer(
    server: ServerProcess,
) -> None:
    answer = post(server, CHAT, messages=[PRIME], thinking=True).json()
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == "No, 143 is not prime: 143 = 11 × 13."
    assert choice["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] > 20
    cut = post(server, CHAT, messages=[PRIME], thinking=True, stop=["is not pr", "×"]).json()
    assert cut["choices"][0]["message"]["content"] == "No, 143 "
    assert cut["usage"]["completion_tokens"] < answer["usage"]["completion_tokens"]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_answer_and_concurrency_does_not_change_it(
    server: ServerProcess,
) -> None:
    def ask(seed: int) -> str:
        fields = {"temperature": 1.0, "seed": seed, "max_tokens": 24}
        document = post(server, CHAT, messages=[PRIME], **fields).json()
        return str(document["choices"][0]["message"]["content"])

    alone = [ask(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == alone


def test_the_official_openai_client_works(server: ServerProcess) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == ["ducklet"]
    question: Any = [{"role": "user", "content": "Is 143 prime?"}]
    whole = client.chat.completions.create(model="ducklet", messages=question, temperature=0)
    assert whole.usage is not None
    assert whole.usage.completion_tokens_details is not None
    assert whole.usage.completion_tokens_details.accepted_prediction_tokens is not None
    text, usage = "", None
    stream = client.chat.completions.create(
        model="ducklet",
        messages=question,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        usage = chunk.usage or usage
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert usage == whole.usage
    follow_up: Any = [question[0], whole.choices[0].message, {"role": "user", "content": "Sure?"}]
    client.chat.completions.create(model="ducklet", messages=follow_up, max_tokens=3)
    completion = client.completions.create(model="ducklet", prompt="They are", temperature=0)
    assert completion.choices[0].finish_reason == "length"
    with pytest.raises(openai.BadRequestError, match="n = 3 is not supported"):
        client.chat.completions.create(model="ducklet", messages=question, n=3)
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=question)


def test_a_client_that_leaves_frees_the_engine(server: ServerProcess) -> None:
    body = {"model": "ducklet", "messages": [PRIME], "ignore_eos": True, "stream": True}
    with httpx.stream("POST", server.url + CHAT, json=body, timeout=DEADLINE_S) as response:
        assert next(response.iter_lines())
    wait_until(lambda: httpx.get(f"{server.url}/ready").json()["active"] == 0, "the engine is idle")


def test_a_taken_port_is_named_with_its_owner_before_the_model_is_loaded(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run_to_its_end(write_run_file(tmp_path, port=port))
    assert result.returncode == 1
    assert f"error: port {port} on 127.0.0.1 is in use by " in result.stderr
    assert f"(process {os.getpid()})" in result.stderr
    assert "  hint: " in result.stderr
    assert "loading" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"model_dir": "/nonexistent"}, "/nonexistent is not a folder"),
        ({"tread": 1}, 'unknown key "tread", did you mean "threads"?'),
        ({"max_context": 99999}, "max_context is 99999, expected 2 to 2048"),
        ({"host": "203.0.113.1"}, "can't bind 203.0.113.1"),
    ],
)
def test_mistakes_in_the_run_file_end_with_code_1(
    tmp_path: Path, changes: dict[str, Any], text: str
) -> None:
    result = run_to_its_end(write_run_file(tmp_path, **changes))
    assert result.returncode == 1
    assert "error: " in result.stderr
    assert text in result.stderr
    assert "loading" not in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGTERM, id="SIGTERM"),
        pytest.param(signal.SIGINT, id="SIGINT", marks=pytest.mark.slow),
    ],
)
def test_a_signal_lets_a_running_answer_finish_and_ends_with_code_0(
    tmp_path: Path, number: signal.Signals
) -> None:
    with running_server(tmp_path) as server:
        body = {"model": "ducklet", "messages": [PRIME], "stream": True, "max_tokens": 40}
        with httpx.stream("POST", server.url + CHAT, json=body, timeout=DEADLINE_S) as response:
            lines = response.iter_lines()
            assert next(lines)
            server.process.send_signal(number)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert '"finish_reason":"error"' not in "".join(rest)
        assert server.process.wait(DEADLINE_S) == 0


@pytest.mark.slow
def test_an_answer_that_takes_too_long_is_ended_with_an_error_at_shutdown(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        body = {"model": "ducklet", "messages": [PRIME], "stream": True, "ignore_eos": True}
        with httpx.stream("POST", server.url + CHAT, json=body, timeout=DEADLINE_S) as response:
            lines = response.iter_lines()
            assert next(lines)
            begin = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            rest = "".join(lines)
        assert '"finish_reason":"error"' in rest
        assert '"code":"server_stopping"' in rest
        assert server.process.wait(DEADLINE_S) == 0
        assert time.monotonic() - begin < DEADLINE_S


@pytest.mark.slow
def test_a_signal_during_the_start_ends_with_code_0(tmp_path: Path) -> None:
    command = server_command(write_run_file(tmp_path))
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("loading ducklet")
    process.terminate()
    output, errors = process.communicate(timeout=START_S_MAX)
    assert (process.returncode, output) == (0, "")
    assert "Traceback" not in errors


@pytest.mark.slow
def test_the_server_does_not_outlive_its_parent(tmp_path: Path) -> None:
    command = server_command(write_run_file(tmp_path))
    script = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen({command!r}, stdout=subprocess.PIPE, text=True)\n"
        "sys.stdout.write(f'{child.pid} {child.stdout.readline()}'); sys.stdout.flush()\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    pid, word, _ = read_line(parent, START_S_MAX).split()
    assert word == "ready"
    assert Path(f"/proc/{pid}").exists()
    parent.kill()
    parent.wait()
    wait_until(lambda: not is_running(pid), "the server ends with its parent")


def is_running(pid: str) -> bool:
    """Whether a process is there and not a zombie that nobody has waited for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except FileNotFoundError:
        return False
    return state != "Z"
