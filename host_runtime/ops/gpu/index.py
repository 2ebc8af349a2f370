"""Indexer scores and the choice of positions for one row. Reference: ops/index.py.

Shapes: G index heads, E index head size, T positions, K = index_topk.
"""

from __future__ import annotations

import ctypes

import torch
import triton
import triton.language as tl

from host_runtime.ops.gpu.compiled import compiled
from host_runtime.ops.gpu.support import follow, launch_options, power_of_two, require

_KEYS = 128  # positions per program
_FRESH = 8  # last positions that a step may write; at least its number of lanes
# Scores that one multiprocessor holds in registers; longer rows are read again for every bit.
_TILE_MAX = 32768
# As in choose.cu: scores per program, its threads, programs at most, words before the keys.
_CHOICE_KEYS, _CHOICE_THREADS, _CHOICE_PROGRAMS_MAX = 2048, 256, 512
_CHOICE_WORDS = 16 + 2048 + 2 * _CHOICE_PROGRAMS_MAX


def index_scores(
    state: torch.Tensor,
    query: torch.Tensor,
    weights: torch.Tensor,
    weight_factor: float,
    key_cache: torch.Tensor,
    scores: torch.Tensor,
) -> None:
    """scores[t] = sum over heads of weight * relu(query . key) for the lane's positions.

    query float32 [G, E], weights float32 [G] (times weight_factor), key_cache [P, E] bf16 or
    float32, scores float32 [at least T]; entries beyond T are left alone.
    """
    heads, size = query.shape
    require(key_cache.shape[1] == size, "index_scores", f"key size {key_cache.shape[1]}")
    exact = key_cache.dtype == torch.float32
    keys = 32 if exact else _KEYS
    _scores_kernel[(-(-scores.shape[0] // keys),)](
        state, query, weights, weight_factor, key_cache, scores,
        G=heads, G2=power_of_two(heads, 16), E=size, BT=keys, EXACT=exact, FRESH=_FRESH,
        num_warps=4, **launch_options(query.device),
    )  # fmt: skip


class Choice(ctypes.Structure):
    """See choose.cu."""

    _fields_ = (
        ("state", ctypes.c_void_p), ("scores", ctypes.c_void_p), ("selected", ctypes.c_void_p),
        ("work", ctypes.c_void_p), ("wanted_max", ctypes.c_int),
    )  # fmt: skip


def choice_workspace(positions: int, device: torch.device) -> torch.Tensor:
    """Memory of `top_positions` for up to `positions` scores; must not be shared by streams."""
    keys = -(-positions // _CHOICE_KEYS) * _CHOICE_KEYS
    return torch.zeros(_CHOICE_WORDS + keys, dtype=torch.int32, device=device)


def top_positions(
    state: torch.Tensor, scores: torch.Tensor, selected: torch.Tensor, workspace: torch.Tensor
) -> None:
    """selected int32 [K]: positions of the K largest scores, ascending, lower ones win ties.

    With T <= K positions it holds all T. Many programs count digits (choose.cu); without it one
    finds the K-th largest score bit by bit.
    """
    programs = -(-scores.shape[0] // _CHOICE_KEYS)
    require(
        workspace.shape[0] >= _CHOICE_WORDS + programs * _CHOICE_KEYS, "top_positions", "workspace"
    )
    kernels = compiled(scores.device)
    aligned = scores.data_ptr() % 16 == 0
    # two fit on a multiprocessor beside whatever runs before them
    if kernels and aligned and programs <= min(2 * kernels.multiprocessors, _CHOICE_PROGRAMS_MAX):
        choice = Choice(
            state.data_ptr(), scores.data_ptr(), selected.data_ptr(), workspace.data_ptr(),
            selected.shape[0],
        )  # fmt: skip
        kernels.launch("choose.cu", "choose_positions", programs, _CHOICE_THREADS, 0, [choice])
    else:
        _launch_top(state, scores, selected)


def _launch_top(state: torch.Tensor, scores: torch.Tensor, selected: torch.Tensor) -> None:
    size = power_of_two(scores.shape[0], 1024)
    tile = min(size, _TILE_MAX)
    _top_kernel[(1,)](
        state, scores, selected, K=selected.shape[0], BLOCK=tile, TILES=size // tile,
        num_warps=min(32, tile // 256), **launch_options(scores.device),
    )  # fmt: skip


@triton.jit
def _scores_kernel(
    state_ptr, query_ptr, weights_ptr, weight_factor, key_ptr, scores_ptr,
    G: tl.constexpr, G2: tl.constexpr, E: tl.constexpr, BT: tl.constexpr, EXACT: tl.constexpr,
    FRESH: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    # the host writes the state, before the step begins
    count = tl.load(state_ptr + 1) + 1
    first = tl.program_id(0) * BT
    t = first + tl.arange(0, BT)
    e = tl.arange(0, E)
    rows = (tl.load(state_ptr) + t).to(tl.int64)[:, None] * E
    # keys that this step may still be writing are read after the wait
    old = t < count - FRESH
    keys = tl.load(key_ptr + rows + e[None, :], mask=old[:, None], other=0.0)  # [BT, E]
    follow(EARLY)
    if first >= count:
        return
    if first + BT > count - FRESH:
        fresh = (t >= count - FRESH) & (t < count)
        keys += tl.load(key_ptr + rows + e[None, :], mask=fresh[:, None], other=0.0)
    head = tl.arange(0, G2)
    element: tl.constexpr = key_ptr.dtype.element_ty
    q_at = query_ptr + head[:, None] * E + e[None, :]
    query = tl.load(q_at, mask=(head < G)[:, None], other=0.0).to(element)  # [G, E]
    weights = tl.load(weights_ptr + head, mask=head < G, other=0.0) * weight_factor
    precision: tl.constexpr = "ieee" if EXACT else "tf32"
    products = tl.dot(query, tl.trans(keys), input_precision=precision)  # [G, BT]
    products = tl.maximum(products, 0.0) * weights[:, None]
    tl.store(scores_ptr + t, tl.sum(products, 0), mask=t < count)


@triton.jit
def _ordered(scores_ptr, tile, count, BLOCK: tl.constexpr):
    """uint32 keys of a tile of scores that compare as the scores do; NaN and beyond T: 0."""
    t = tile * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(scores_ptr + t, mask=t < count, other=-float("inf"))
    score = tl.where(score == score, score, -float("inf")) + 0.0  # no -0
    bits = score.to(tl.uint32, bitcast=True)
    key = tl.where(bits >> 31 != 0, bits ^ 0xFFFFFFFF, bits | 0x80000000)
    return tl.where(t < count, key, 0), t


@triton.jit
def _top_kernel(
    state_ptr, scores_ptr, selected_ptr,
    K: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    follow(EARLY)
    count = tl.load(state_ptr + 1) + 1
    wanted = tl.minimum(count, K)
    threshold = tl.zeros((), tl.uint32)
    if TILES == 1:
        key, t = _ordered(scores_ptr, 0, count, BLOCK)
    for bit in range(32):
        shift = (31 - bit).to(tl.uint32)  # type: ignore[attr-defined]
        candidate = threshold | (tl.full((), 1, tl.uint32) << shift)
        above = tl.zeros((), tl.int32)
        for tile in range(TILES):
            if TILES > 1:
                key, t = _ordered(scores_ptr, tile, count, BLOCK)
            above += tl.sum((key >= candidate).to(tl.int32), 0)
        threshold = tl.where(above >= wanted, candidate, threshold)
    # now exactly the keys above the threshold are in, and the first of the equal ones
    above = tl.zeros((), tl.int32)
    for tile in range(TILES):
        if TILES > 1:
            key, t = _ordered(scores_ptr, tile, count, BLOCK)
        above += tl.sum((key > threshold).to(tl.int32), 0)
    places = wanted - above
    equals_before = tl.zeros((), tl.int32)
    written = tl.zeros((), tl.int32)
    for tile in range(TILES):
        if TILES > 1:
            key, t = _ordered(scores_ptr, tile, count, BLOCK)
        equal = ((key == threshold) & (t < count)).to(tl.int32)
        rank = equals_before + tl.cumsum(equal, 0)
        chosen = (key > threshold) | ((equal != 0) & (rank <= places))
        ones = chosen.to(tl.int32)
        at = written + tl.cumsum(ones, 0) - 1
        tl.store(selected_ptr + at, t, mask=chosen)
        equals_before += tl.sum(equal, 0)
        written += tl.sum(ones, 0)
