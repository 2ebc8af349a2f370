"""Decode attention, indexer, router and norms on Triton equal the plain-torch references."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gpu_kit import (
    DEVICE,
    HAS_CUDA,
    fp8,
    needs_cuda,
    needs_triton,
    normal,
    relative_error,
    state,
)

from host_runtime.ops.attention import attend_prefix, attend_selected
from host_runtime.ops.index import hadamard_matrix, index_scores, top_k_lower_position
from host_runtime.ops.norm import rms_norm
from host_runtime.ops.rope import rope_half_split, rope_interleaved
from host_runtime.ops.router import choose_experts

pytestmark = [needs_triton, pytest.mark.usefixtures("cpp_kernels")]

F32_TOLERANCE = 1e-5
BF16_TOLERANCE = 6e-3  # operands rounded to 8 bits, results accumulated in float32
CONTEXTS = (1, 63, 64, 2047, 2048, 2049, 16384, 65536) if HAS_CUDA else (1, 2, 63, 64, 300, 2100)
DTYPES = [torch.float32, torch.bfloat16] if HAS_CUDA else [torch.bfloat16]
HEADS, LATENT, ROPE, NOPE, VALUE = (128, 512, 64, 128, 128) if HAS_CUDA else (20, 512, 64, 32, 32)
BASE = 5


def attention_case(context: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    query = normal(context, HEADS, LATENT + ROPE) * 0.3
    cache = normal(context + 1, BASE + context + 3, LATENT + ROPE).to(dtype)
    cache[BASE + context :] = torch.nan  # what lies behind the sequence must not be looked at
    return query, cache


def run_attention(
    query: torch.Tensor, cache: torch.Tensor, context: int, selected: torch.Tensor | None
) -> torch.Tensor:
    from host_runtime.ops.gpu.attend import SPLITS, attend, merge_values
    from host_runtime.ops.matrix import Matrix

    parts = torch.full((SPLITS, HEADS, LATENT), torch.nan, device=DEVICE)
    sums = torch.full((SPLITS, HEADS, 2), torch.nan, device=DEVICE)
    attend(state(BASE, context - 1), query, cache, selected, 0.1352, parts, sums, LATENT)
    codes, scale, _ = fp8(3, HEADS * (NOPE + VALUE), LATENT)
    matrix = Matrix(codes, scale, torch.empty(0, LATENT, dtype=torch.bfloat16, device=DEVICE))
    out = torch.full((HEADS, VALUE), torch.nan, device=DEVICE)
    merge_values(parts, sums, matrix, NOPE, out)
    return out


def values_of(mixed: torch.Tensor) -> torch.Tensor:
    """mixed [1, H, L] times W_uv."""
    _, _, meant = fp8(3, HEADS * (NOPE + VALUE), LATENT)
    w_uv = meant.view(HEADS, NOPE + VALUE, LATENT)[:, NOPE:]
    return torch.einsum("hl,hvl->hv", mixed[0].double(), w_uv)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("context", CONTEXTS)
def test_prefix_attention(context: int, dtype: torch.dtype) -> None:
    query, cache = attention_case(context, dtype)
    rows = cache[BASE : BASE + context].double()
    latent, rope_key = rows[:, :LATENT], rows[:, LATENT:]
    mixed = attend_prefix(query.double()[None], latent, rope_key, context - 1, 0.1352)
    found = run_attention(query, cache, context, None)
    limit = F32_TOLERANCE if dtype == torch.float32 else BF16_TOLERANCE
    assert relative_error(found, values_of(mixed)) < limit


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("context", CONTEXTS)
def test_gathered_attention(context: int, dtype: torch.dtype) -> None:
    top_k = 2048 if HAS_CUDA else 64
    query, cache = attention_case(context, dtype)
    order = torch.randperm(context, generator=torch.Generator().manual_seed(context))
    chosen = order[:top_k].sort().values.to(DEVICE)
    selected = torch.full((top_k,), 1 << 30, dtype=torch.int32, device=DEVICE)
    selected[: len(chosen)] = chosen
    found = run_attention(query, cache, context, selected)
    rows = cache[BASE : BASE + context].double()
    mixed = attend_selected(
        query.double()[None], rows[:, :LATENT], rows[:, LATENT:], chosen[None], context - 1, 0.1352
    )
    limit = F32_TOLERANCE if dtype == torch.float32 else BF16_TOLERANCE
    assert relative_error(found, values_of(mixed)) < limit
    if context <= top_k:  # everything is selected: the two forms agree bit by bit
        assert torch.equal(found, run_attention(query, cache, context, None))


@needs_cuda
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("context", CONTEXTS)
def test_index_scores_and_choice(context: int, dtype: torch.dtype) -> None:
    from host_runtime.ops.gpu.index import choice_workspace, top_positions
    from host_runtime.ops.gpu.index import index_scores as gpu_scores

    heads, size, top_k = (64, 128, 2048) if HAS_CUDA else (4, 128, 64)
    query, weights = normal(context, heads, size), normal(context + 1, heads)
    keys = normal(context + 2, BASE + context + 3, size)
    scores = torch.full((context + 7,), torch.nan, device=DEVICE)
    gpu_scores(state(BASE, context - 1), query, weights, 0.125, keys.to(dtype), scores)
    expected = index_scores(
        query.double()[None], keys[BASE : BASE + context].double(), weights.double()[None] * 0.125
    )
    limit = F32_TOLERANCE if dtype == torch.float32 else BF16_TOLERANCE
    assert relative_error(scores[:context], expected[0]) < limit

    count = min(top_k, context)
    selected = torch.full((top_k,), -1, dtype=torch.int32, device=DEVICE)
    work = choice_workspace(len(scores), DEVICE)
    top_positions(state(BASE, context - 1), scores, selected, work)
    own = top_k_lower_position(scores[None, :context], count)[0]
    assert torch.equal(selected[:count].long(), own)  # exactly the reference's choice
    best = set(top_k_lower_position(expected, count)[0].tolist())
    assert len(best & set(selected[:count].tolist())) >= 0.98 * count


@needs_cuda
@pytest.mark.parametrize("context", [3000, 32768, 163840])
@pytest.mark.parametrize("kind", ["rounded", "equal", "nan"])
def test_choice_of_many_positions(context: int, kind: str) -> None:
    """Ties over many programs, all keys equal, NaN and -0; the workspace serves twice."""
    from host_runtime.ops.gpu.index import choice_workspace, top_positions

    scores = (normal(context, context + 5) * 3).round()
    if kind == "equal":
        scores.fill_(1.5)
    elif kind == "nan":
        scores[::3], scores[1::3], scores[5] = torch.nan, -0.0, -torch.inf
    wanted = top_k_lower_position(scores[None, :context], 2048)[0]
    work = choice_workspace(len(scores), DEVICE)
    for _ in range(2):
        selected = torch.full((2048,), -1, dtype=torch.int32, device=DEVICE)
        top_positions(state(0, context - 1), scores, selected, work)
        assert torch.equal(selected.long(), wanted)


def test_choice_with_equal_scores() -> None:
    from host_runtime.ops.gpu.index import choice_workspace, top_positions

    scores = (normal(5, 700) * 3).round().float()
    scores[10] = torch.nan
    scores[11], scores[12] = -torch.inf, -0.0
    work = choice_workspace(700, DEVICE)
    for count in (1, 37, 256):
        selected = torch.empty(count, dtype=torch.int32, device=DEVICE)
        top_positions(state(0, 699), scores, selected, work)
        assert torch.equal(selected.long(), top_k_lower_position(scores[None], count)[0])


def test_prepare_equals_reference() -> None:
    from host_runtime.ops.gpu.prepare import PrepareSizes, PrepareWeights, prepare
    from host_runtime.ops.matrix import Matrix

    index_heads, size, position = 20, 128, 6
    sizes = PrepareSizes(
        HEADS, NOPE, ROPE, VALUE, LATENT, index_heads, size, 128, 256, HEADS * (NOPE + ROPE)
    )
    codes, scale, meant = fp8(41, HEADS * (NOPE + VALUE), LATENT)
    empty = torch.empty(0, LATENT, dtype=torch.bfloat16, device=DEVICE)
    turn = hadamard_matrix(size, DEVICE)
    weights = PrepareWeights(
        Matrix(codes, scale, empty), normal(42, LATENT), normal(43, size), normal(44, size),
        turn.sign().to(torch.bfloat16),
    )  # fmt: skip
    y1 = normal(45, 256 + LATENT + ROPE)
    y2 = normal(46, HEADS * (NOPE + ROPE) + index_heads * size)
    angle = normal(47, 10, ROPE // 2)
    rotation = torch.stack((angle.cos(), angle.sin()), 1).contiguous()
    cos, sin = rotation[position : position + 1, 0], rotation[position : position + 1, 1]
    query = torch.full((HEADS, LATENT + ROPE), torch.nan, device=DEVICE)
    index_query = torch.full((index_heads, size), torch.nan, device=DEVICE)
    kv_cache = torch.full((20, LATENT + ROPE), torch.nan, device=DEVICE)
    key_cache = torch.full((20, size), torch.nan, device=DEVICE)
    prepare(
        sizes, weights, state(BASE, position), y1, y2, rotation, query, index_query, kv_cache,
        key_cache, 1e-6, 1e-6,
    )  # fmt: skip

    q = y2[: HEADS * (NOPE + ROPE)].view(HEADS, NOPE + ROPE)
    w_uk = meant.view(HEADS, NOPE + VALUE, LATENT)[:, :NOPE]
    absorbed = torch.einsum("hn,hnl->hl", q[:, :NOPE].double(), w_uk)
    assert relative_error(query[:, :LATENT], absorbed) < F32_TOLERANCE
    rotated = rope_interleaved(q[None, :, NOPE:], cos, sin)[0]
    assert relative_error(query[:, LATENT:], rotated) < F32_TOLERANCE

    def turned(x: torch.Tensor) -> torch.Tensor:
        first = rope_half_split(x[None, :, :ROPE], cos, sin)[0]
        return torch.cat((first, x[:, ROPE:]), -1) @ turn

    wanted = turned(y2[HEADS * (NOPE + ROPE) :].view(index_heads, size))
    assert relative_error(index_query, wanted) < F32_TOLERANCE
    row = BASE + position
    latent = rms_norm(y1[256 : 256 + LATENT], weights.latent_gain, 1e-6)
    assert relative_error(kv_cache[row, :LATENT], latent) < F32_TOLERANCE
    rope_key = rope_interleaved(y1[None, None, 256 + LATENT :], cos, sin)[0, 0]
    assert relative_error(kv_cache[row, LATENT:], rope_key) < F32_TOLERANCE
    key = torch.nn.functional.layer_norm(
        y1[128:256], (size,), weights.key_gain, weights.key_bias, 1e-6
    )
    assert relative_error(key_cache[row], turned(key[None])[0]) < F32_TOLERANCE
    touched = torch.zeros(20, dtype=torch.bool, device=DEVICE)
    touched[row] = True
    assert torch.equal(kv_cache.isfinite().all(1), touched)
    assert torch.equal(key_cache.isfinite().all(1), touched)


@needs_cuda
@pytest.mark.parametrize("seed", range(8))
def test_router_equals_reference(seed: int) -> None:
    from host_runtime.ops.gpu.router import route

    experts, groups = (256, 8) if seed % 2 else (16, 4)
    top_k = 8 if seed % 2 else 4
    config: Any = SimpleNamespace(
        n_routed_experts=experts, n_group=groups, topk_group=groups // 2,
        num_experts_per_tok=top_k, norm_topk_prob=True, routed_scaling_factor=2.5,
    )  # fmt: skip
    logits, bias = normal(seed, experts), normal(seed + 100, experts) * 0.1 - 0.7
    ids = torch.full((top_k,), -1, dtype=torch.int16, device=DEVICE)
    weights = torch.full((top_k,), torch.nan, device=DEVICE)
    hidden = normal(seed + 200, 1500)
    payload = torch.full((1500,), torch.nan, device=DEVICE)
    route(logits, bias, config, ids, weights, hidden, payload)
    wanted, wanted_weights = choose_experts(
        logits.sigmoid()[None], bias, group_count=groups, chosen_groups=groups // 2, top_k=top_k,
        normalise=True, scaling_factor=2.5,
    )  # fmt: skip
    assert torch.equal(ids.long(), wanted[0])
    assert relative_error(weights, wanted_weights[0]) < F32_TOLERANCE
    assert torch.equal(payload, hidden)


@needs_cuda
def test_norms_equal_reference() -> None:
    from host_runtime.ops.gpu.norm import add_norm, embed_norm

    size = 7168 if HAS_CUDA else 300
    x, added, gain = normal(1, 3, size), normal(2, 3, size), normal(3, size)
    expected = x + added
    out = torch.full_like(x, torch.nan)
    add_norm(x, added, gain, 1e-6, out)
    assert torch.equal(x, expected)
    assert relative_error(out, rms_norm(expected, gain, 1e-6)) < F32_TOLERANCE
    embedding = normal(4, 9, size).to(torch.bfloat16)
    embed_norm(state(0, 0, token=7), embedding, gain, 1e-6, x[:1], out[:1])
    assert torch.equal(x[0], embedding[7].float())
    assert relative_error(out[0], rms_norm(x[0], gain, 1e-6)) < F32_TOLERANCE


@needs_cuda
@pytest.mark.parametrize("vocabulary", [384, 129280 if HAS_CUDA else 5000])
def test_greedy_choice(vocabulary: int) -> None:
    from host_runtime.ops.gpu.sample import greedy, greedy_parts

    logits = normal(vocabulary, vocabulary)
    logits[vocabulary // 2] = logits[vocabulary // 3] = 9.0  # a tie: the lower one wins
    parts = torch.empty(greedy_parts(vocabulary), 4, dtype=torch.float64, device=DEVICE)
    out = torch.empty(3, dtype=torch.float64, device=DEVICE)
    greedy(logits, parts, out)
    expected = float(9.0 - logits.double().logsumexp(0))
    assert int(out[0]) == vocabulary // 3
    assert abs(float(out[1]) - expected) < 1e-5
    assert float(out[2]) == 1
    for wrong in (torch.nan, torch.inf):
        logits[1] = wrong
        greedy(logits, parts, out)
        assert float(out[2]) == 0
