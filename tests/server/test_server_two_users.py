"""Two clients at once get, over real sockets, the answers that each gets alone."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import torch
from server_kit import CHAT, ducklet_tokenizer, live_server

from duckctl.model_dir import resolve_model_dir
from host_runtime.server.run_config import RunConfig
from host_runtime.server.startup import build_service, start_machinery

QUESTIONS = ("Is 97 a prime number?", "What is 17 + 25?")


def body(question: str, seed: int | None) -> dict[str, Any]:
    sampling = {"temperature": 0} if seed is None else {"temperature": 1.2, "seed": seed}
    message = {"role": "user", "content": question}
    more = {"max_tokens": 150, "ignore_eos": True}
    return {"model": "ducklet", "messages": [message], **more, **sampling}


def ask(url: str, request: dict[str, Any]) -> str:
    answer = httpx.post(url + CHAT, json=request, timeout=60)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def shared_steps(url: str) -> int:
    found = re.search(r"^duckctl_shared_steps_total (\d+)$", httpx.get(url + "/metrics").text, re.M)
    assert found is not None
    return int(found[1])


@pytest.mark.slow
@pytest.mark.parametrize("mtp", [True, False], ids=["mtp", "plain"])
def test_two_clients_share_steps_and_get_their_own_answers(mtp: bool) -> None:
    """Greedy and seeded sampling."""
    torch.set_num_threads(1)
    config = RunConfig(
        schema_version=1,
        model_dir=resolve_model_dir("ducklet"),
        model_name="ducklet",
        experts="local",
        mtp=mtp,
    )
    machinery = start_machinery(config)
    try:
        service = build_service(config, machinery, ducklet_tokenizer())
        with live_server(service) as url, ThreadPoolExecutor(2) as clients:
            for seeds in ((None, None), (11, 12)):
                requests = [body(*pair) for pair in zip(QUESTIONS, seeds, strict=True)]
                expected = [ask(url, request) for request in requests]
                before = shared_steps(url)
                assert list(clients.map(lambda each: ask(url, each), requests)) == expected
                assert shared_steps(url) > before
    finally:
        machinery.close()
