"""The server's machinery on the card: four users at once, memory told, too much refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gpu_kit import needs_cuda

from host_runtime.config import ModelConfig
from host_runtime.cuda.capability import GpuUnavailableError
from host_runtime.cuda.memory_plan import MemoryPlan, plan_memory
from host_runtime.engine import FinishedEvent, SamplingParams, TokenEvent
from host_runtime.server.run_config import RunConfig
from host_runtime.server.startup import start_machinery

pytestmark = needs_cuda
DUCKLET = Path(__file__).resolve().parents[2] / "duckctl" / "models" / "ducklet"


def run_config(**changes: object) -> RunConfig:
    base = RunConfig(
        schema_version=1,
        model_dir=DUCKLET,
        model_name="ducklet",
        experts="local",
        device="cuda",
        max_context=2048,
    )
    return base.model_copy(update=changes)


@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_six_users_get_the_reference_answers(
    device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = json.loads((DUCKLET / "reference.json").read_text())["prompts"][:6]
    machinery = start_machinery(run_config(device=device))
    try:
        assert "4 sequences of up to 2048 positions" in capsys.readouterr().err
        handles = [
            machinery.engine.submit(
                prompt["prompt_ids"],
                SamplingParams(max_tokens=len(prompt["greedy_ids"]), ignore_eos=True),
            )
            for prompt in prompts
        ]
        for prompt, handle in zip(prompts, handles, strict=True):
            *tokens, last = list(handle.events())
            assert isinstance(last, FinishedEvent)
            assert last.reason == "length", last.error
            ids = [event.token_id for event in tokens if isinstance(event, TokenEvent)]
            assert ids == prompt["greedy_ids"], prompt["name"]
    finally:
        machinery.close()


def test_more_context_than_the_card_holds_is_refused_with_what_would_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from host_runtime.server import host_part

    def plan(
        config: ModelConfig, positions: int, each: int, weights_bytes: int | None
    ) -> MemoryPlan:
        return plan_memory(config, positions * 1_000_000, each, weights_bytes)

    monkeypatch.setattr(host_part, "plan_memory", plan)
    with pytest.raises(GpuUnavailableError, match="does not fit") as caught:
        start_machinery(run_config())
    assert "positions would fit" in caught.value.hint
