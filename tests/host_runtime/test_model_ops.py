"""Router, RoPE, indexer and attention agree with brute force written from their definitions."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tiny_v32 import TINY, TinyCheckpoint, write_tiny

from host_runtime.config import load_config
from host_runtime.layers import attention as attention_module
from host_runtime.layers import indexer as indexer_module
from host_runtime.layers.indexer import Indexer
from host_runtime.models import load_model
from host_runtime.ops.attention import attend_prefix, attend_selected
from host_runtime.ops.index import hadamard_matrix, index_scores, top_k_lower_position
from host_runtime.ops.rope import rope_frequencies, rope_half_split, rope_interleaved
from host_runtime.ops.router import choose_experts
from host_runtime.weights import Checkpoint, WeightSource

SEED = 3
# float32 sums of some hundred products of order one against float64
CLOSE = 1e-4


@pytest.fixture(scope="module")
def tiny_files(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoint:
    torch.set_num_threads(1)
    return write_tiny(tmp_path_factory.mktemp("tiny"), SEED)


def _generator(seed: int = SEED) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---------------------------------------------------------------- router
def _route(
    scores: list[float], bias: list[float], groups: int, chosen: int, top_k: int
) -> tuple[list[int], list[float]]:
    size = len(scores) // groups
    biased = [score + offset for score, offset in zip(scores, bias, strict=True)]
    sums = [sum(sorted(biased[group * size : (group + 1) * size])[-2:]) for group in range(groups)]
    best = sorted(range(groups), key=lambda group: (-sums[group], group))[:chosen]
    candidates = [expert for expert in range(len(scores)) if expert // size in best]
    ids = sorted(candidates, key=lambda expert: (-biased[expert], expert))[:top_k]
    total = sum(scores[expert] for expert in ids)
    return ids, [2.5 * scores[expert] / total for expert in ids]


@pytest.mark.parametrize("shift", [0.0, -0.5, -3.0, 1.0])
@pytest.mark.parametrize(
    ("experts", "groups", "chosen", "top_k"),
    [(16, 4, 2, 4), (16, 4, 1, 4), (16, 1, 1, 3), (64, 8, 4, 8), (16, 8, 3, 6)],
)
def test_router(experts: int, groups: int, chosen: int, top_k: int, shift: float) -> None:
    generator = _generator()
    scores = torch.randn(40, experts, generator=generator).sigmoid()
    bias = 0.3 * torch.randn(experts, generator=generator) + shift
    ids, weights = choose_experts(
        scores,
        bias,
        group_count=groups,
        chosen_groups=chosen,
        top_k=top_k,
        normalise=True,
        scaling_factor=2.5,
    )
    for row in range(len(scores)):
        expected_ids, expected_weights = _route(
            scores[row].tolist(), bias.tolist(), groups, chosen, top_k
        )
        assert ids[row].tolist() == expected_ids
        assert weights[row].tolist() == pytest.approx(expected_weights, rel=1e-5)


def test_router_gives_ties_to_the_lower_index() -> None:
    ids, weights = choose_experts(
        torch.full((3, 16), 0.5),
        torch.zeros(16),
        group_count=4,
        chosen_groups=2,
        top_k=4,
        normalise=False,
        scaling_factor=1.0,
    )
    assert ids.tolist() == [[0, 1, 2, 3]] * 3
    assert weights.tolist() == [[0.5] * 4] * 3


# ---------------------------------------------------------------- RoPE
@pytest.mark.parametrize("interleaved", [True, False])
def test_rope_rotates_the_right_pairs(interleaved: bool) -> None:
    size, rows = 8, 5
    x = torch.randn(rows, 3, size, generator=_generator(), dtype=torch.float64)
    angle = torch.rand(rows, size // 2, generator=_generator(), dtype=torch.float64) * 7
    rotate = rope_interleaved if interleaved else rope_half_split
    actual = rotate(x, angle.cos(), angle.sin())
    for row in range(rows):
        for pair in range(size // 2):
            first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + size // 2)
            turn = complex(math.cos(angle[row, pair]), math.sin(angle[row, pair]))
            for head in range(3):
                number = complex(x[row, head, first], x[row, head, second]) * turn
                assert float(actual[row, head, first]) == pytest.approx(number.real)
                assert float(actual[row, head, second]) == pytest.approx(number.imag)


def test_yarn_frequencies_of_the_real_configuration(tmp_path: Path) -> None:
    rope = TINY["rope_scaling"] | {"factor": 40, "original_max_position_embeddings": 4096}
    checkpoint = write_tiny(tmp_path, SEED, rope_scaling=rope)
    frequencies = rope_frequencies(load_config(checkpoint.path))
    plain = [10000 ** (-pair / 32) for pair in range(32)]
    for pair, frequency in enumerate(plain):
        share = min(max((pair - 10) / (23 - 10), 0.0), 1.0)  # correction range [10, 23]
        expected = frequency / 40 * share + frequency * (1 - share)
        assert float(frequencies[pair]) == pytest.approx(expected, rel=1e-6)


# ---------------------------------------------------------------- indexer
def test_hadamard_is_orthonormal_and_symmetric() -> None:
    matrix = hadamard_matrix(128, torch.device("cpu"))
    assert torch.allclose(matrix @ matrix.T, torch.eye(128), atol=1e-6)
    assert torch.equal(matrix, matrix.T)
    assert len(set(matrix.abs().flatten().tolist())) == 1


def test_index_scores_apply_relu_before_a_negative_weight() -> None:
    query = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])  # one row, two heads
    keys = torch.tensor([[2.0, 3.0], [-2.0, 3.0], [2.0, -3.0]])
    weights = torch.tensor([[1.0, -1.0]])
    assert index_scores(query, keys, weights).tolist() == [[-1.0, -3.0, 2.0]]


@pytest.mark.parametrize("count", [1, 7, 16, 40])
def test_top_k_gives_ties_to_the_lower_position(count: int) -> None:
    scores = torch.randint(-2, 3, (30, 40), generator=_generator()).float()
    scores[3] = -torch.inf
    scores[4, 10:] = -torch.inf
    scores[5, ::3] = torch.nan
    actual = top_k_lower_position(scores, count)
    values = scores.nan_to_num(nan=-torch.inf, neginf=-torch.inf).tolist()
    for row, line in enumerate(values):
        order = sorted(range(len(line)), key=lambda position: (-line[position], position))
        assert actual[row].tolist() == sorted(order[:count])


def _index_key(weights: dict[str, torch.Tensor], prefix: str, x: torch.Tensor) -> torch.Tensor:
    key = weights[f"{prefix}wk.weight"].double() @ x
    key = (key - key.mean()) / (key.var(correction=0) + 1e-6).sqrt()
    scale, offset = weights[f"{prefix}k_norm.weight"], weights[f"{prefix}k_norm.bias"]
    return key * scale.double() + offset.double()


def _turned(vector: torch.Tensor, position: int, frequencies: torch.Tensor) -> torch.Tensor:
    """Half-split RoPE on the first elements of one vector."""
    half = len(frequencies)
    first, second = vector[:half], vector[half : 2 * half]
    angle = position * frequencies.double()
    return torch.cat(
        (
            first * angle.cos() - second * angle.sin(),
            first * angle.sin() + second * angle.cos(),
            vector[2 * half :],
        )
    )


@pytest.mark.parametrize(
    "chunks", [[40], [1] * 40, [15, 1, 1, 1, 22], [17, 16, 7], [33, 2, 5]], ids=str
)
def test_indexer_selects_what_brute_force_selects(
    tiny_files: TinyCheckpoint, chunks: list[int]
) -> None:
    """In float64, without Hadamard: an orthonormal transform of both sides changes nothing."""
    config, prefix = load_config(tiny_files.path), "model.layers.0.self_attn.indexer."
    source = WeightSource(Checkpoint(tiny_files.path), torch.device("cpu"), fp8=True)
    indexer, weights = Indexer(source, prefix, config), tiny_files.weights
    frequencies, total = rope_frequencies(config), sum(chunks)
    x = torch.randn(total, config.hidden_size, generator=_generator())
    latent = torch.randn(total, config.q_lora_rank, generator=_generator(SEED + 1))
    angle = torch.arange(total)[:, None] * frequencies

    brute_keys = [
        _turned(_index_key(weights, prefix, x[t].double()), t, frequencies) for t in range(total)
    ]
    keys, first = torch.empty(0, config.index_head_dim), 0
    for size in chunks:
        rows = slice(first, first + size)
        cos, sin = angle[rows].cos(), angle[rows].sin()
        keys = torch.cat((keys, indexer.keys(x[rows], cos, sin)))
        selected = indexer.select(x[rows], latent[rows], keys, first, cos, sin)
        for row in range(size):
            own = first + row
            query = weights[f"{prefix}wq_b.weight"].double() @ latent[own].double()
            heads = [
                _turned(head, own, frequencies) for head in query.view(config.index_n_heads, -1)
            ]
            head_weights = weights[f"{prefix}weights_proj.weight"].double() @ x[own].double()
            scores = [
                sum(
                    float(head_weights[h]) * max(float(heads[h] @ brute_keys[t]), 0.0)
                    for h in range(config.index_n_heads)
                )
                for t in range(own + 1)
            ]
            order = sorted(range(own + 1), key=lambda t: (-scores[t], t))
            expected = sorted(order[: config.index_topk])
            actual = [position for position in selected[row].tolist() if position <= own]
            assert actual == expected
        first += size


def test_blocks_of_rows_change_nothing(
    tiny_files: TinyCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long prefill is cut into blocks to bound memory; the results are those of one block."""
    loaded = load_model(tiny_files.path, routed_experts="local")
    assert loaded.local_experts is not None
    tokens = torch.randint(2, TINY["vocab_size"], (60,), generator=_generator())
    whole = loaded.model.forward(tokens, loaded.model.new_cache(60), loaded.local_experts)
    monkeypatch.setattr(attention_module, "_GATHER_BYTES_MAX", 100_000)
    monkeypatch.setattr(indexer_module, "_SCORE_BYTES_MAX", 30_000)
    blocks = loaded.model.forward(tokens, loaded.model.new_cache(60), loaded.local_experts)
    assert torch.allclose(blocks, whole, atol=CLOSE)


# ---------------------------------------------------------------- attention
@pytest.mark.parametrize(("rows", "first"), [(1, 0), (1, 30), (5, 0), (13, 20)])
def test_attention_over_the_latent_cache(rows: int, first: int) -> None:
    heads, nope, rope, value, size = 3, 8, 4, 6, 10
    generator, total = _generator(), first + rows
    latent = torch.randn(total, size, generator=generator, dtype=torch.float64)
    rope_key = torch.randn(total, rope, generator=generator, dtype=torch.float64)
    w_uk = torch.randn(heads, nope, size, generator=generator, dtype=torch.float64)
    w_uv = torch.randn(heads, size, value, generator=generator, dtype=torch.float64)
    q_nope = torch.randn(rows, heads, nope, generator=generator, dtype=torch.float64)
    q_rope = torch.randn(rows, heads, rope, generator=generator, dtype=torch.float64)
    allowed = torch.rand(rows, total, generator=generator) < 0.6
    allowed[:, 0] = True

    query = torch.cat((torch.einsum("nhd,hdl->nhl", q_nope, w_uk), q_rope), -1)
    prefix = attend_prefix(query, latent, rope_key, first, 0.3)
    count = int(allowed.sum(-1).max())
    wanted = top_k_lower_position(allowed.double(), count)
    sparse = attend_selected(query, latent, rope_key, wanted, first, 0.3)
    for row in range(rows):
        for head in range(heads):
            keys = latent @ w_uk[head].T  # expanded, as the definition has it
            scores = (keys @ q_nope[row, head] + rope_key @ q_rope[row, head]) * 0.3
            for mixed, positions in (
                (prefix, torch.arange(first + row + 1)),
                (sparse, wanted[row][wanted[row] <= first + row]),
            ):
                expected = scores[positions].softmax(0) @ (latent[positions] @ w_uv[head])
                assert torch.allclose(mixed[row, head] @ w_uv[head], expected)
