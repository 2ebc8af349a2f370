"""The call trace: switched on and read over HTTP, refused with a reason, guarded by the key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from server_kit import Api, ScriptedEngine, scripted_service

CALLS = [{"layer": 3, "tokens": 1, "ducks": []}]


@dataclass
class KeepsCalls:
    """Experts that note what is asked of their trace."""

    kept: list[int] = field(default_factory=list)

    def set_trace(self, calls: int) -> None:
        self.kept.append(calls)

    def trace(self) -> list[dict[str, Any]]:
        return CALLS if self.kept and self.kept[-1] else []


def test_a_trace_is_switched_on_read_and_switched_off() -> None:
    """PUT sets how many calls are kept, GET gives them."""
    experts = KeepsCalls()
    api = Api(scripted_service(ScriptedEngine(), tracer=experts))
    assert api.get("/trace").json() == {"calls": []}
    assert api.request("PUT", "/trace", json={"calls": 100}).json() == {"calls": 100}
    assert api.get("/trace").json() == {"calls": CALLS}
    assert api.request("PUT", "/trace", json={"calls": 0}).status_code == 200
    assert experts.kept == [100, 0]


@pytest.mark.parametrize(
    "body",
    [
        '{"calls": -1}',
        '{"calls": 65537}',
        '{"calls": true}',
        '{"calls": "9"}',
        "[]",
        "x",
        pytest.param("[" * 100_000, id="deep"),
    ],
)
def test_bad_numbers_are_named(body: str) -> None:
    """The message says what is expected; nothing is switched."""
    experts = KeepsCalls()
    api = Api(scripted_service(ScriptedEngine(), tracer=experts))
    response = api.request("PUT", "/trace", content=body)
    assert response.status_code == 400
    assert "calls" in response.json()["error"]["message"]
    assert experts.kept == []


def test_experts_on_the_host_have_no_calls() -> None:
    """404 with the reason, for both."""
    api = Api(scripted_service(ScriptedEngine()))
    for response in (api.get("/trace"), api.request("PUT", "/trace", json={"calls": 1})):
        assert response.status_code == 404
        assert "run on the host" in response.json()["error"]["message"]


def test_the_key_guards_the_trace() -> None:
    """As it does the API."""
    api = Api(scripted_service(ScriptedEngine(), tracer=KeepsCalls()), api_key="secret")
    assert api.get("/trace").status_code == 401
    assert api.request("PUT", "/trace", json={"calls": 1}).status_code == 401
