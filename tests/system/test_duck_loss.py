"""A duck killed in mid-answer is named, the server lives, and the duck's return heals."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from duckctl.chat_client import ChatClient, ChatPart, ServerError
from duckctl.lab import ducks as lab
from duckctl.lab.state import LabFolder, LabShape
from duckctl.process import read_ready_line, wait_until

READY_S_MAX = 120.0
ERROR_S_MAX = 5.0  # from the kill to the end of the request: the bound
HEAL_S_MAX = 30.0
QUESTION = [{"role": "user", "content": "104857601是质数吗"}]
FIELDS = {"model": "ducklet", "temperature": 0, "thinking": True, "return_token_ids": True}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[LabFolder]:
    state = LabFolder(tmp_path / "lab")
    lab.up(state, LabShape(4, 1, 1, 1500, "block"), tied=True)
    yield state
    lab.down(state)


@pytest.fixture
def url(folder: LabFolder, tmp_path: Path) -> Iterator[str]:
    """The address of a running `duckctl serve`."""
    command = [sys.executable, "-P", "-m", "duckctl", "serve", "ducklet", "--shard", "--port", "0"]
    command += ["--inventory", str(folder.inventory), "--cache-dir", str(tmp_path / "cache")]
    with (tmp_path / "serve.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env={**os.environ})
    assert process.stdout is not None
    try:
        line = read_ready_line(process.stdout, READY_S_MAX)
        assert line is not None, (tmp_path / "serve.log").read_text()
        yield line.removeprefix("ready ")
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def answer_tokens(client: ChatClient, count: int) -> list[int]:
    tokens: list[int] = []
    for part in client.stream(QUESTION, max_tokens=count, **FIELDS):
        if isinstance(part, ChatPart):
            tokens += part.token_ids
    return tokens


@pytest.mark.slow
def test_a_killed_duck_is_named_and_its_return_heals(folder: LabFolder, url: str) -> None:
    with ChatClient(url) as client:
        undisturbed = answer_tokens(client, 48)
        killed_at = 0.0
        with pytest.raises(ServerError, match="d02") as failure:
            for part in client.stream(QUESTION, max_tokens=1500, **FIELDS):
                if isinstance(part, ChatPart) and not killed_at:
                    lab.kill(folder, ["d02"])
                    killed_at = time.monotonic()
        assert killed_at, "the answer did not begin"
        took_s = time.monotonic() - killed_at
        assert took_s <= ERROR_S_MAX, failure.value
        assert httpx.get(f"{url}/health").status_code == 200
        ready = httpx.get(f"{url}/ready")
        assert ready.status_code == 503
        assert "d02" in ready.text
        refused = httpx.post(
            f"{url}/v1/chat/completions", json={"model": "ducklet", "messages": QUESTION}
        )
        assert refused.status_code == 503
        assert "d02" in refused.json()["error"]["message"]

        lab.restart(folder, ["d02"])
        healed = wait_until(lambda: httpx.get(f"{url}/ready").status_code == 200, HEAL_S_MAX)
        assert healed, httpx.get(f"{url}/ready").text
        assert answer_tokens(client, 48) == undisturbed
