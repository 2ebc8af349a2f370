"""The experts kernel is right against float64 and bit-equal over bodies, cores and token counts."""

from __future__ import annotations

import numpy as np
import packing
import pytest
import running
from packing import FP7, FP8, FP9, Q4, Q6
from running import BF16, F32, NONE

from duckctl.bench.harness import scratch_bytes

SEED = 20260102
FORMATS = [FP7, FP8, FP9]  # float32 activations
ALL_FORMATS = [Q4, Q6, *FORMATS]
SHAPES = [  # hidden, moe, first_row, rows
    (128, 32, 0, 32),
    (256, 256, 96, 96),
    (640, 192, 32, 160),
    (256, 320, 96, 64),
    (384, 512, 32, 128),
]
TOKENS = [1, 2, 3, 4, 5, 6, 7, 16, 33, 64]
EXPERTS = 6
TOP_K = 4

Ids = np.ndarray[tuple[int, ...], np.dtype[np.uint16]]


def as_bits(values: packing.F32) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
    """Bits with all NaN made alike."""
    bits = values.view(np.uint32).copy()
    bits[np.isnan(values)] = 0x7FC00000
    return bits


def run(
    layer: running.Layer,
    body: str,
    x: packing.F32 | packing.U16,
    ids: Ids,
    weights: packing.F32,
    *,
    cores: int = 1,
    result: int = F32,
) -> packing.F32:
    tokens, top_k = ids.shape
    scratch = scratch_bytes(layer.hidden, layer.rows, tokens, top_k, cores)
    with running.Kernel(
        layer.region, body=body, fmt=layer.fmt, cores=cores, scratch=scratch
    ) as kernel:
        return kernel.experts(layer.layer, x, ids, weights, result)


def in_float64(
    layer: running.Layer, x: packing.F32, ids: Ids, weights: packing.F32
) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.float64]], ...]:
    """(y, bound): float64 result and the bound on its error.

    An inner product in float32 is allowed 5e-7 of sum |w x|. Through SiLU and the product with `up`
    the errors of gate and up grow by at most |d silu| <= 1.1 and the other factor.
    """
    y = np.zeros((len(x), layer.hidden))
    bound = np.zeros_like(y)
    slices = [[w.astype(np.float64) for w in layer.slice_weights(e)] for e in range(EXPERTS)]
    for t, place in np.argwhere(ids != NONE):
        gate, up, down = slices[ids[t, place]]
        xt = x[t].astype(np.float64)
        g, u = gate @ xt, up @ xt
        g_error, u_error = 5e-7 * (np.abs(gate) @ np.abs(xt)), 5e-7 * (np.abs(up) @ np.abs(xt))
        silu = g / (1 + np.exp(-g))
        h_error = 1.1 * g_error * np.abs(u) + np.abs(silu) * u_error + 5e-7 * np.abs(silu * u)
        weight = float(weights[t, place])
        y[t] += weight * (down @ (silu * u))
        bound[t] += weight * (np.abs(down) @ (h_error + 5e-7 * np.abs(silu * u)))
    return y, bound


@pytest.mark.slow
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(("hidden", "moe", "first_row", "rows"), SHAPES)
def test_scalar_against_float64_and_bodies_against_scalar(
    fmt: int, hidden: int, moe: int, first_row: int, rows: int
) -> None:
    rng = np.random.default_rng(SEED + hidden)
    layer = running.make_layer(
        rng, fmt, hidden=hidden, moe=moe, first_row=first_row, rows=rows, experts=EXPERTS
    )
    for tokens in TOKENS:
        x, ids, weights = running.random_call(rng, hidden, tokens, TOP_K, EXPERTS)
        wanted, bound = in_float64(layer, x, ids, weights)
        scalar = run(layer, "scalar", x, ids, weights)
        error = np.abs(scalar.astype(np.float64) - wanted)
        assert np.all(error <= bound), f"{tokens} tokens: {np.max(error / bound)} x the bound"
        for body in running.BODIES_OF[fmt][1:]:
            cores = 1 + (tokens + len(body)) % 4
            got = run(layer, body, x, ids, weights, cores=cores)
            assert np.array_equal(as_bits(got), as_bits(scalar)), f"{body}, {tokens} tokens"


@pytest.mark.slow
@pytest.mark.parametrize("fmt", [Q4, Q6])
@pytest.mark.parametrize(("hidden", "moe", "first_row", "rows"), SHAPES)
def test_int8_activations(fmt: int, hidden: int, moe: int, first_row: int, rows: int) -> None:
    """Bit-equal over bodies, and within what rounding activations to int8 costs of float64.

    Rounding x and h to 127 steps per 32 values costs about 0.6 % each, and gate and up both see x.
    """
    rng = np.random.default_rng(SEED + rows)
    layer = running.make_layer(
        rng, fmt, hidden=hidden, moe=moe, first_row=first_row, rows=rows, experts=EXPERTS
    )
    for tokens in TOKENS:
        x, ids, weights = running.random_call(rng, hidden, tokens, TOP_K, EXPERTS)
        wanted, _ = in_float64(layer, x, ids, weights)
        scalar = run(layer, "scalar", x, ids, weights)
        error = np.linalg.norm(scalar - wanted) / np.linalg.norm(wanted)
        assert error < 0.025
        got = run(layer, "madd", x, ids, weights, cores=1 + tokens % 3)
        assert np.array_equal(as_bits(got), as_bits(scalar)), f"{tokens} tokens"


@pytest.mark.slow
@pytest.mark.parametrize("fmt", FORMATS)
def test_wide_model_shape(fmt: int) -> None:
    """Hidden 7168 and 64 rows, DeepSeek-V3.2 on 32 ducks."""
    rng = np.random.default_rng(SEED)
    layer = running.make_layer(
        rng, fmt, hidden=7168, moe=192, first_row=96, rows=64, experts=EXPERTS
    )
    for tokens in (1, 3, 9):
        x, ids, weights = running.random_call(rng, 7168, tokens, TOP_K, EXPERTS)
        wanted, bound = in_float64(layer, x, ids, weights)
        scalar = run(layer, "scalar", x, ids, weights)
        assert np.all(np.abs(scalar - wanted) <= bound)
        for body in running.BODIES_OF[fmt][1:]:
            got = run(layer, body, x, ids, weights, cores=2)
            assert np.array_equal(as_bits(got), as_bits(scalar)), body


@pytest.mark.parametrize("fmt", ALL_FORMATS)
@pytest.mark.parametrize("tokens", [1, 2, 5, 33])
def test_any_core_count_gives_the_same_bits(fmt: int, tokens: int) -> None:
    rng = np.random.default_rng(SEED + tokens)
    layer = running.make_layer(rng, fmt, hidden=384, moe=128, first_row=32, rows=96, experts=6)
    x, ids, weights = running.random_call(rng, 384, tokens, TOP_K, EXPERTS)
    body = running.BODIES_OF[fmt][1]
    results = [run(layer, body, x, ids, weights, cores=c) for c in (1, 2, 3, 4)]
    for result in results[1:]:
        assert np.array_equal(as_bits(result), as_bits(results[0]))


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(("rows", "experts"), [(160, 1), (224, 2), (288, 3)])
def test_products_of_many_tokens_in_units_of_several_panels(
    fmt: int, rows: int, experts: int
) -> None:
    """Whole units and a rest of gate and up panels, chunks of 256 tokens, cut column groups."""
    rng = np.random.default_rng(SEED + rows)
    layer = running.make_layer(
        rng, fmt, hidden=384, moe=512, first_row=32, rows=rows, experts=experts
    )
    x, ids, weights = running.random_call(rng, 384, 300, 1, experts)
    scalar = run(layer, "scalar", x, ids, weights)
    for body in running.BODIES_OF[fmt][1:]:
        for cores in (1, 3):
            got = run(layer, body, x, ids, weights, cores=cores)
            assert np.array_equal(as_bits(got), as_bits(scalar)), f"{body}, {cores} cores"


@pytest.mark.parametrize(
    ("fmt", "body"), [(fmt, body) for fmt in ALL_FORMATS for body in running.BODIES_OF[fmt]]
)
def test_a_token_does_not_depend_on_the_others(fmt: int, body: str) -> None:
    """512 tokens at once, in tens, in pairs and one by one: the same bits per token."""
    rng = np.random.default_rng(SEED)
    layer = running.make_layer(rng, fmt, hidden=128, moe=64, first_row=0, rows=32, experts=6)
    x, ids, weights = running.random_call(rng, 128, 512, TOP_K, EXPERTS)
    together = run(layer, body, x, ids, weights, cores=2)
    scratch = scratch_bytes(128, 32, 512, TOP_K, 1)
    with running.Kernel(layer.region, body=body, fmt=fmt, scratch=scratch) as kernel:
        for step, count in ((1, 40), (2, 60), (10, 512)):
            for t in range(0, count, step):
                part = slice(t, t + step)
                alone = kernel.experts(layer.layer, x[part], ids[part], weights[part])
                assert np.array_equal(as_bits(alone), as_bits(together[part]))


@pytest.mark.parametrize("fmt", ALL_FORMATS)
def test_the_largest_call(fmt: int) -> None:
    rng = np.random.default_rng(SEED)
    layer = running.make_layer(rng, fmt, hidden=256, moe=64, first_row=32, rows=32, experts=40)
    x, ids, weights = running.random_call(rng, 256, 512, 16, 40)
    scratch = scratch_bytes(256, 32, 512, 16, 3)
    results = []
    for body in running.BODIES_OF[fmt]:
        with running.Kernel(
            layer.region, body=body, fmt=fmt, cores=3, scratch=scratch, input_bytes_max=1 << 20
        ) as kernel:
            results.append(kernel.experts(layer.layer, x, ids, weights))
    for result in results[1:]:
        assert np.array_equal(as_bits(result), as_bits(results[0]))


@pytest.mark.parametrize(
    ("fmt", "body"), [(fmt, body) for fmt in (FP8, FP9) for body in running.BODIES_OF[fmt]]
)
def test_every_code_through_every_body_with_one_hot_activations(fmt: int, body: str) -> None:
    """gate = 1 for every row and x a unit vector: h is silu(1) * up code, so down = identity shows
    the exact value of each of the 254 codes in every row of a panel."""
    hidden, rows = 256, 32
    one = np.uint8(0x38)
    codes = np.resize(packing.FINITE_CODES, (rows, hidden)).copy()
    for row in range(rows):
        codes[row] = np.roll(codes[row], row * 37)
    gate = np.full((rows, hidden), one)
    down = np.zeros((hidden, rows), np.uint8)
    down[np.arange(rows), np.arange(rows)] = one
    grid, down_grid = np.ones((1, 2), np.float32), np.ones((2, 1), np.float32)
    expert = packing.Expert((gate, codes, down), (grid, grid, down_grid), packing.SOURCE_E4M3)
    layer = running.pack_layer(fmt, [expert], 0, rows)
    x = np.eye(hidden, dtype=np.float32)
    ids, weights = np.zeros((hidden, 1), np.uint16), np.ones((hidden, 1), np.float32)
    many = run(layer, body, x, ids, weights)
    silu_one = many[0, 0] / packing.E4M3[codes[0, 0]] if codes[0, 0] & 0x7F else None
    gold = np.float32(1.0) / (np.float32(1.0) + np.exp(np.float32(-1.0)))
    scratch = scratch_bytes(hidden, rows, 2, 1, 1)
    with running.Kernel(layer.region, body=body, fmt=fmt, scratch=scratch) as kernel:
        one_by_one = np.concatenate(
            [kernel.experts(layer.layer, x[t : t + 1], ids[:1], weights[:1]) for t in range(hidden)]
        )
        pairs = np.concatenate(
            [
                kernel.experts(layer.layer, x[t : t + 2], ids[:2], weights[:2])
                for t in range(0, hidden, 2)
            ]
        )
    for result in (many, one_by_one, pairs):
        silu = result[np.argmax(codes[0] == one), 0]  # the factor that all share
        assert abs(silu - gold) < 2e-7
        assert np.array_equal(result[:, :rows], silu * packing.E4M3[codes].T)
        assert not result[:, rows:].any()
    assert silu_one is None or abs(silu_one - gold) < 2e-7


def test_unused_places_repeated_experts_and_order_of_places() -> None:
    rng = np.random.default_rng(SEED)
    layer = running.make_layer(rng, FP8, hidden=256, moe=64, first_row=0, rows=64, experts=4)
    x = rng.normal(0, 1, (1, 256)).astype(np.float32)

    def call(ids: list[int], weights: list[float]) -> packing.F32:
        return run(
            layer, "int", x, np.array([ids], np.uint16), np.array([weights], np.float32), cores=2
        )

    assert not call([NONE, NONE], [1.0, 1.0]).any()
    one = call([2], [0.5])
    assert np.array_equal(call([NONE, 2, NONE], [np.nan, 0.5, 7.0]), one)
    assert np.array_equal(call([2, 2], [0.5, 0.5]), np.float32(0.5) * call([2], [1.0]) + one)
    down = [call([e], [1.0]).astype(np.float64) for e in range(4)]
    first = np.float32(0.3) * down[3].astype(np.float32)
    second = (np.float64(np.float32(0.7)) * down[0] + first).astype(np.float32)
    assert np.allclose(call([3, 0], [0.3, 0.7]), second, rtol=0, atol=0)


@pytest.mark.parametrize("fmt", ALL_FORMATS)
def test_bf16_activations_and_results(fmt: int) -> None:
    rng = np.random.default_rng(SEED)
    layer = running.make_layer(rng, fmt, hidden=384, moe=96, first_row=0, rows=96, experts=6)
    for tokens in (1, 3, 17):
        x, ids, weights = running.random_call(rng, 384, tokens, TOP_K, EXPERTS)
        x_bits = (x.view(np.uint32) >> 16).astype(np.uint16)
        widened = (x_bits.astype(np.uint32) << 16).view(np.float32)
        body = running.BODIES_OF[fmt][-1]
        wide = run(layer, body, widened, ids, weights)
        assert np.array_equal(as_bits(run(layer, body, x_bits, ids, weights)), as_bits(wide))
        bits = wide.view(np.uint32)
        rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)
        short = run(layer, body, x_bits, ids, weights, result=BF16)
        assert np.array_equal(as_bits(short), as_bits(rounded))


@pytest.mark.parametrize("fmt", FORMATS)
def test_unusual_activations_pass_through_all_bodies_alike(fmt: int) -> None:
    """NaN and infinity make results of their token NaN or infinite, tiny and huge ones follow the
    documented limits, and no other token changes."""
    rng = np.random.default_rng(SEED)
    layer = running.make_layer(rng, fmt, hidden=256, moe=96, first_row=32, rows=64, experts=6)
    x, ids, weights = running.random_call(rng, 256, 12, TOP_K, EXPERTS)
    ids[:, 0] = 1
    clean = run(layer, "scalar", x, ids, weights)
    x[1, 7] = np.nan
    x[3, 200] = np.inf
    x[4, 5], x[4, 6] = np.inf, -np.inf
    x[6] *= np.float32(2.0**-59)
    x[7] *= np.float32(2.0**-70)
    x[8] *= np.float32(2.0**39)
    x[9] *= np.float32(2.0**45)
    x[10] = 0.0
    x[11] *= np.float32(1e-42)  # subnormal
    scalar = run(layer, "scalar", x, ids, weights)
    untouched = [0, 2, 5]
    assert np.array_equal(scalar[untouched], clean[untouched])
    assert np.isnan(scalar[1]).all()
    assert not np.isfinite(scalar[3]).any()
    assert not np.isfinite(scalar[9]).any()
    assert not scalar[[7, 10, 11]].any()
    for body in running.BODIES_OF[fmt][1:]:
        for rows in (slice(0, 12), slice(1, 2), slice(3, 5), slice(6, 12), slice(8, 10)):
            got = run(layer, body, x[rows], ids[rows], weights[rows], cores=2)
            assert np.array_equal(as_bits(got), as_bits(scalar[rows])), body


@pytest.mark.slow
def test_silu_against_float64() -> None:
    """Its relative error stays below 5e-7 where it is not tiny: exp is good to 2^-22.5."""
    hidden, rows = 128, 32
    expert_gate = np.zeros((rows, hidden), np.uint8)
    expert_gate[:, 0] = 0x38  # gate = x[0]
    up = np.zeros((rows, hidden), np.uint8)
    up[:, 1] = 0x38  # up = x[1]
    down = np.zeros((hidden, rows), np.uint8)
    down[:, 0] = 0x38
    grid = np.ones((1, 1), np.float32)
    expert = packing.Expert((expert_gate, up, down), (grid,) * 3, packing.SOURCE_E4M3)
    layer = running.pack_layer(FP8, [expert], 0, rows)
    values = np.linspace(-80, 90, 512 * 40).astype(np.float32)
    results = {}
    for body in ("scalar", "int"):
        scratch = scratch_bytes(hidden, rows, 512, 1, 1)
        with running.Kernel(layer.region, body=body, fmt=FP8, scratch=scratch) as kernel:
            parts = []
            for begin in range(0, len(values), 512):
                x = np.zeros((512, hidden), np.float32)
                x[:, 0] = values[begin : begin + 512]
                x[:, 1] = 2.0**34
                ids, weights = np.zeros((512, 1), np.uint16), np.ones((512, 1), np.float32)
                parts.append(kernel.experts(layer.layer, x, ids, weights)[:, 0])
            results[body] = np.concatenate(parts)
    assert np.array_equal(results["scalar"], results["int"])
    wide = values.astype(np.float64)
    wanted = wide / (1 + np.exp(-wide)) * 2.0**34
    # Near the limit of h (2^-60) either side is right.
    good = (np.abs(wanted) < 0.999 * 2.0**-60) | (np.abs(wanted) > 1.001 * 2.0**-60)
    wanted[np.abs(wanted) < 2.0**-60] = 0
    error = np.abs(results["scalar"].astype(np.float64) - wanted)[good]
    assert np.all(error <= 5e-7 * np.abs(wanted[good]))
