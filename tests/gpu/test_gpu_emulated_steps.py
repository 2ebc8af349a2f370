"""Whole decode steps of ducklet without a card: CUDA C++ kernels emulated, Triton's interpreted.

Steps run launch by launch where a card replays a graph; everything else is what a card runs: lanes,
mailboxes and the threads that answer them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated import EMULATED, emulator, replace_compiled
from gpu_kit import HAS_CUDA, HAS_TRITON, relative_error

pytestmark = [
    pytest.mark.skipif(not HAS_TRITON, reason="the package triton is not installed"),
    pytest.mark.skipif(HAS_CUDA, reason="a card is there, which runs the steps itself"),
    pytest.mark.slow,
]
DUCKLET = Path(__file__).resolve().parents[2] / "duckctl" / "models" / "ducklet"
POSITIONS = 256
F32_TOLERANCE = 2e-5
ANSWER_TOKENS = 6


class Replayed:
    """In the place of a captured graph."""

    def __init__(self, run: Any) -> None:
        self.replay = run


def plain_attend(
    state: torch.Tensor,
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    selected: torch.Tensor | None,
    scale: float,
    parts: torch.Tensor,
    sums: torch.Tensor,
    latent: int,
) -> None:
    """ops.gpu.attend in plain torch, all positions in the first part: the interpreter cannot loop
    up to a number that it has loaded."""
    base, count = int(state[0]), int(state[1]) + 1
    rows = kv_cache[base : base + count]
    if selected is not None:
        rows = rows[selected[: min(count, len(selected))].long()]
    scores = query @ rows.T * scale
    best = scores.amax(1)
    weights = (scores - best[:, None]).exp()
    parts.zero_()
    sums[..., 0], sums[..., 1] = -torch.inf, 0.0
    parts[0] = weights @ rows[:, :latent]
    sums[0, :, 0], sums[0, :, 1] = best, weights.sum(1)


def plain_route(
    logits: torch.Tensor,
    bias: torch.Tensor,
    config: Any,
    ids: torch.Tensor,
    weights: torch.Tensor,
    hidden: torch.Tensor,
    payload: torch.Tensor,
    call: Any = None,
) -> None:
    """ops.gpu.route in plain torch: the interpreter has no flags."""
    from host_runtime.ops.router import choose_experts

    chosen, their = choose_experts(
        logits.sigmoid()[None], bias, group_count=config.n_group, chosen_groups=config.topk_group,
        top_k=config.num_experts_per_tok, normalise=config.norm_topk_prob,
        scaling_factor=config.routed_scaling_factor,
    )  # fmt: skip
    ids.copy_(chosen[0])
    weights.copy_(their[0])
    payload.copy_(hidden)
    if call is not None:
        call.sequence[0] += 1
        call.flags[1] = call.layer
        call.flags[0] = call.sequence[0]


@contextmanager
def emulated_model(kernels: Any, *, router: torch.dtype = torch.bfloat16) -> Iterator[Any]:
    """The model on the emulated card, its routers stored in that type."""
    from host_runtime.config import load_config, load_generation_config
    from host_runtime.cuda.model import GpuModel
    from host_runtime.cuda.weights import CheckpointWeights
    from host_runtime.weights import Checkpoint

    class Stored(CheckpointWeights):
        def _stored(self, name: str) -> torch.Tensor:
            stored = super()._stored(name)
            return stored.to(router) if name.endswith("mlp.gate.weight") else stored

    config = load_config(DUCKLET)
    source = Stored(Checkpoint(DUCKLET), torch.device("cpu"), fp8=config.fp8)
    with pytest.MonkeyPatch.context() as patch:
        replace_compiled(patch, kernels)
        patch.setattr(torch.cuda, "Stream", lambda device: None)
        patch.setattr("host_runtime.cuda.layer.attend", plain_attend)
        patch.setattr("host_runtime.cuda.layer.route", plain_route)
        model = GpuModel(
            config, load_generation_config(DUCKLET, config), source,
            positions=POSITIONS, cache_dtype=torch.float32,
        )  # fmt: skip
        patch.setattr(model, "graph", lambda kind: Replayed(lambda: model.launch_step(kind)))
        try:
            yield model
        finally:
            model.close()


@pytest.fixture(scope="module")
def plain() -> tuple[Any, Any]:
    """(model on the CPU, experts)"""
    from host_runtime.models import load_model

    loaded = load_model(DUCKLET, routed_experts="local")
    return loaded.model, loaded.local_experts


@pytest.fixture(scope="module", params=list(EMULATED))
def steps(
    request: pytest.FixtureRequest, emulators: dict[str, Any], plain: tuple[Any, Any]
) -> Iterator[tuple[Any, Any, Any]]:
    """(model on the emulated card, model on the CPU, experts)"""
    with emulated_model(emulator(emulators, request.param)) as model:
        yield model, *plain


def ids_of(count: int) -> torch.Tensor:
    prompt = json.loads((DUCKLET / "reference.json").read_text())["prompts"][0]
    return torch.tensor([*prompt["prompt_ids"], *prompt["greedy_ids"]][:count])


def test_hidden_states_equal_those_of_the_cpu(steps: Any) -> None:
    """One token at a time, then a token and a draft in two lanes; and the bits of one at a time."""
    model, cpu, experts = steps
    ids, cache = ids_of(5), model.new_cache(64)
    one_by_one = [model.forward(ids[i : i + 1], cache, experts).clone() for i in range(5)]
    cache.length = 3
    together = model.forward(ids[3:5], cache, experts)
    assert torch.equal(together, torch.cat(one_by_one[3:]))
    wanted = cpu.forward(ids, cpu.new_cache(64), experts)
    found = torch.cat(one_by_one)
    assert relative_error(found, wanted) < F32_TOLERANCE
    assert relative_error(model.logits(found[3:]), cpu.logits(wanted[3:])) < F32_TOLERANCE


@pytest.mark.parametrize("reason", ["float32 router", "more groups than lanes of a warp"])
def test_experts_that_no_product_chooses_get_this_layers_hidden_state(
    emulators: dict[str, Any], plain: tuple[Any, Any], reason: str
) -> None:
    """The choice is then a launch of its own, whose message is the norm that products make; for a
    lane alone and in two."""
    cpu, experts = plain
    router = torch.float32 if reason == "float32 router" else torch.bfloat16
    with (
        pytest.MonkeyPatch.context() as patch,
        emulated_model(emulator(emulators, "emulated"), router=router) as model,
    ):
        if router == torch.bfloat16:
            patch.setattr("host_runtime.cuda.layer.route_beside", lambda *_: None)
        assert model.layers[-1].gate_up.plain.dtype == router
        ids, cache = ids_of(3), model.new_cache(32)
        found = torch.cat([
            model.forward(ids[:1], cache, experts).clone(), model.forward(ids[1:], cache, experts)
        ])  # fmt: skip
        assert relative_error(found, cpu.forward(ids, cpu.new_cache(32), experts)) < F32_TOLERANCE


def test_two_lanes_read_the_weights_of_a_dense_layer_once(steps: Any) -> None:
    """Its five products take both rows; where experts are waited for, each lane has its own."""
    from host_runtime.cuda.model import StepKind
    from host_runtime.ops.gpu import product

    model, _, _ = steps
    kernels: Any = vars(product)["compiled"](torch.device("cpu"))
    seen: list[str] = []
    run = kernels.launch

    def noted(source: str, name: str, *rest: Any) -> None:
        seen.append(name)
        run(source, name, *rest)

    dense = model.config.first_k_dense_replace
    sparse = model.config.num_hidden_layers - dense
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "launch", noted)
        model.launch_step(StepKind(2, 0, head=True, calls=False))
    both = [name for name in seen if name.startswith("product_2_")]
    alone = [name for name in seen if name.startswith("product_1_")]
    assert (len(both), len(alone)) == (5 * dense + 1, 2 * 5 * sparse)


def test_two_sequences_have_the_bits_of_each_alone(steps: Any) -> None:
    model, _, experts = steps
    ids, caches = ids_of(4), [model.new_cache(32), model.new_cache(32)]
    model.forward(ids[:2], caches[0], experts)
    alone = [model.forward(ids[i : i + 1], caches[i - 2], experts).clone() for i in (2, 3)]
    caches[0].length, caches[1].length = 2, 0
    assert torch.equal(model.decode(ids[2:], caches, experts), torch.cat(alone))


def test_drafts_equal_those_of_the_cpu(steps: Any) -> None:
    model, cpu, experts = steps
    ids = ids_of(3)
    hidden = torch.randn(2, model.config.hidden_size, generator=torch.Generator().manual_seed(1))
    found = model.mtp_forward(hidden, ids[1:], model.new_cache(32), experts)
    wanted = cpu.mtp_forward(hidden, ids[1:], cpu.new_cache(32), experts)
    assert relative_error(found, wanted) < F32_TOLERANCE


def test_a_chunk_of_two_tokens_is_one_step_of_the_lanes(steps: Any) -> None:
    model, _, experts = steps
    caches = [model.new_cache(32), model.new_cache(32)]
    found = model.start_chunk(ids_of(2), caches[0], experts).advance()
    assert torch.equal(found, model.forward(ids_of(2), caches[1], experts))
    assert caches[0].length == 2


@pytest.mark.parametrize("mtp", [True, False], ids=["mtp", "plain"])
def test_an_answer_equals_the_reference(steps: Any, mtp: bool) -> None:
    """A prompt in chunks of two tokens, then tokens and drafts, through the engine."""
    from host_runtime.engine import Engine, FinishedEvent, SamplingParams, TokenEvent

    model, _, experts = steps
    prompt = json.loads((DUCKLET / "reference.json").read_text())["prompts"][6]
    engine = Engine(model, experts, mtp=mtp, prefill_chunk=2, max_context=64)
    params = SamplingParams(max_tokens=ANSWER_TOKENS, ignore_eos=True)
    handle = engine.submit(prompt["prompt_ids"], params)
    while engine.step():
        pass
    *events, last = list(handle.events())
    assert isinstance(last, FinishedEvent)
    assert last.reason == "length", last.error
    found = [event.token_id for event in events if isinstance(event, TokenEvent)]
    assert found == prompt["greedy_ids"][:ANSWER_TOKENS]
