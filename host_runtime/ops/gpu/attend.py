"""MLA decode over the latent cache, split along the positions. Reference: ops/attention.py.

Shapes: H heads, L latent, R rope, V value size, S splits, K selected positions.

Each program attends a block of heads to one part of the positions; a second launch merges the parts
in order and applies W_uv. bf16 caches of V3.2's width are attended in CUDA C++ (attend.cu),
all others in Triton. What a part covers depends on the number of positions alone, and the
gathered form cuts the list of positions the same way: where all positions are selected, both forms
give the same bits.
"""

from __future__ import annotations

import ctypes

import torch
import triton
import triton.language as tl

from host_runtime.ops.gpu.compiled import Kernels, compiled
from host_runtime.ops.gpu.split import NO_SPLIT, SPLIT_FIELDS, SplitRows
from host_runtime.ops.gpu.support import (
    decode_e4m3,
    follow,
    launch_options,
    native_fp8,
    power_of_two,
    require,
)
from host_runtime.ops.matrix import Matrix

SPLITS = 16
_HEADS, _POSITIONS = 16, 64  # per program, and of these at once in bf16
_LATENT, _WIDTH, _THREADS = 512, 576, 256  # as in attend.cu
_ROWS = (128, 64)  # positions at once
_MERGE_THREADS, _LATENT_MAX, _VALUE_MAX = 512, 512, 128  # as in merge.cu


class Attend(ctypes.Structure):
    """See attend.cu."""

    _fields_ = (
        ("state", ctypes.c_void_p), ("query", ctypes.c_void_p), ("kv", ctypes.c_void_p),
        ("selected", ctypes.c_void_p), ("parts", ctypes.c_void_p), ("sums", ctypes.c_void_p),
        ("heads", ctypes.c_int), ("splits", ctypes.c_int), ("selected_size", ctypes.c_int),
        ("scale", ctypes.c_float),
    )  # fmt: skip


class Merge(ctypes.Structure):
    """See merge.cu."""

    _fields_ = (
        ("parts", ctypes.c_void_p), ("sums", ctypes.c_void_p), ("codes", ctypes.c_void_p),
        ("scale", ctypes.c_void_p), ("out", ctypes.c_void_p), *SPLIT_FIELDS[:2],
        ("heads", ctypes.c_int), ("nope", ctypes.c_int), ("value", ctypes.c_int),
        ("latent", ctypes.c_int),
    )  # fmt: skip


def attend(
    state: torch.Tensor,
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    selected: torch.Tensor | None,
    scale: float,
    parts: torch.Tensor,
    sums: torch.Tensor,
    latent: int,
) -> None:
    """Partial softmax sums of a lane's query [H, L + R] over its cache rows.

    kv_cache [P, L + R] bf16 or float32 (then all products are float32); selected int32 [K] holds
    min(K, positions) valid entries. parts float32 [S, H, L]; sums [S, H, 2]: maximum, sum.
    """
    heads, width = query.shape
    require(kv_cache.shape[1] == width, "attend", f"cache width {kv_cache.shape[1]}, query {width}")
    require(parts.shape == (SPLITS, heads, latent), "attend", f"parts {list(parts.shape)}")
    kernels = compiled(query.device)
    rows = _rows_at_once(kernels) if kernels is not None else 0
    if kernels is not None and rows and _is_compiled_shape(query, kv_cache, latent):
        argument = Attend(
            state.data_ptr(), query.data_ptr(), kv_cache.data_ptr(),
            selected.data_ptr() if selected is not None else None, parts.data_ptr(),
            sums.data_ptr(), heads, SPLITS, selected.shape[0] if selected is not None else 0, scale,
        )  # fmt: skip
        kernels.launch(
            "attend.cu", f"attend_{rows}", -(-heads // _HEADS) * SPLITS, _THREADS,
            _shared_bytes(rows), [argument],
        )  # fmt: skip
        return
    exact = kv_cache.dtype == torch.float32
    _attend_kernel[(-(-heads // _HEADS), SPLITS)](
        state, query, kv_cache, selected if selected is not None else state, scale, parts, sums,
        HEADS=heads, L=latent, R=width - latent, K=0 if selected is None else selected.shape[0],
        BH=_HEADS, BT=16 if exact else _POSITIONS, SPLITS=SPLITS, EXACT=exact,
        num_warps=4 if exact else 8, num_stages=2,
        **launch_options(query.device),
    )  # fmt: skip


def merge_values(
    parts: torch.Tensor,
    sums: torch.Tensor,
    kv_b: Matrix,
    nope: int,
    out: torch.Tensor,
    split: SplitRows | None = None,
) -> SplitRows | None:
    """out [H, V] = (merged parts) . W_uv, whose rows follow each head's `nope` rows in kv_b.

    Returns `split` if it now holds `out` as one row, else None.
    """
    _, heads, latent = parts.shape
    value = out.shape[1]
    split = split if value == _VALUE_MAX else None
    kernels = compiled(parts.device)
    fits = latent <= _LATENT_MAX and value <= _VALUE_MAX and latent % 16 == 0
    if kernels is not None and fits and kv_b.codes.data_ptr() % 16 == 0:
        merge = Merge(
            parts.data_ptr(), sums.data_ptr(), kv_b.codes.data_ptr(), kv_b.scale.data_ptr(),
            out.data_ptr(), *(split.pointers() if split else NO_SPLIT)[:2], heads, nope, value,
            latent,
        )  # fmt: skip
        kernels.launch("merge.cu", "merge_values", heads, _MERGE_THREADS, 0, [merge])
        return split
    _merge_kernel[(heads,)](
        parts, sums, kv_b.codes, kv_b.scale, out,
        HEADS=heads, N=nope, V=value, L=latent, LB=-(-latent // 128), L2=power_of_two(latent),
        BV=min(32, power_of_two(value)), SPLITS=SPLITS, NATIVE=native_fp8(parts.device),
        num_warps=4, **launch_options(parts.device),
    )  # fmt: skip
    return None


def _is_compiled_shape(query: torch.Tensor, kv_cache: torch.Tensor, latent: int) -> bool:
    sizes = (query.shape[1], latent, kv_cache.dtype) == (_WIDTH, _LATENT, torch.bfloat16)
    return sizes and (query.data_ptr() | kv_cache.data_ptr()) % 16 == 0


def _rows_at_once(kernels: Kernels) -> int:
    """Positions whose cache rows a block's shared memory holds; 0 if none of the kernels fits."""
    return next((n for n in _ROWS if _shared_bytes(n) <= kernels.shared_per_block), 0)


def _shared_bytes(rows: int) -> int:
    """Of `Shared` in attend.cu: cache rows and queries, weights, scores, sums, positions."""
    wide = 2 * (rows + _HEADS) * (_WIDTH + 8)
    return wide + _HEADS * (2 * (rows + 8) + 4 * (rows + 4) + 12) + 4 * rows


@triton.jit
def _attend_kernel(
    state_ptr, query_ptr, kv_ptr, selected_ptr, scale, parts_ptr, sums_ptr,
    HEADS: tl.constexpr, L: tl.constexpr, R: tl.constexpr, K: tl.constexpr, BH: tl.constexpr,
    BT: tl.constexpr, SPLITS: tl.constexpr, EXACT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    follow(EARLY)
    split = tl.program_id(1)
    base = tl.load(state_ptr)
    count = tl.load(state_ptr + 1) + 1
    if K > 0:
        count = tl.minimum(count, K)
    part = tl.cdiv(tl.cdiv(count, SPLITS), BT) * BT
    begin = split * part
    end = tl.minimum(begin + part, count)

    head = tl.program_id(0) * BH + tl.arange(0, BH)
    head_inside = (head < HEADS)[:, None]
    l = tl.arange(0, L)
    r = tl.arange(0, R)
    q_at = query_ptr + head[:, None] * (L + R)
    element: tl.constexpr = kv_ptr.dtype.element_ty
    q_latent = tl.load(q_at + l[None, :], mask=head_inside, other=0.0).to(element)  # [BH, L]
    q_rope = tl.load(q_at + L + r[None, :], mask=head_inside, other=0.0).to(element)  # [BH, R]
    precision: tl.constexpr = "ieee" if EXACT else "tf32"

    best = tl.full((BH,), -float("inf"), tl.float32)
    total = tl.zeros((BH,), tl.float32)
    acc = tl.zeros((BH, L), tl.float32)
    for start in range(begin, end, BT):
        at = start + tl.arange(0, BT)
        valid = at < end
        position = at
        if K > 0:
            position = tl.load(selected_ptr + at, mask=valid, other=0)
        rows = (base + position).to(tl.int64)[:, None] * (L + R)
        latent = tl.load(kv_ptr + rows + l[None, :], mask=valid[:, None], other=0.0)  # [BT, L]
        rope = tl.load(kv_ptr + rows + L + r[None, :], mask=valid[:, None], other=0.0)  # [BT, R]
        scores = tl.dot(q_latent, tl.trans(latent), input_precision=precision)  # [BH, BT]
        scores = tl.dot(q_rope, tl.trans(rope), scores, input_precision=precision) * scale
        scores = tl.where(valid[None, :], scores, -float("inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp(scores - new_best[:, None])
        fade = tl.exp(best - new_best)
        total = total * fade + tl.sum(weights, 1)
        acc = acc * fade[:, None]
        acc = tl.dot(weights.to(element), latent, acc, input_precision=precision)
        best = new_best
    out_at = split * HEADS + head
    parts_at = parts_ptr + out_at[:, None] * L + l[None, :]
    tl.store(parts_at, acc, mask=head_inside)
    tl.store(sums_ptr + out_at * 2, best, mask=head < HEADS)
    tl.store(sums_ptr + out_at * 2 + 1, total, mask=head < HEADS)


@triton.jit
def _merge_kernel(
    parts_ptr, sums_ptr, codes_ptr, scale_ptr, out_ptr,
    HEADS: tl.constexpr, N: tl.constexpr, V: tl.constexpr, L: tl.constexpr, LB: tl.constexpr,
    L2: tl.constexpr, BV: tl.constexpr, SPLITS: tl.constexpr, NATIVE: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    follow(EARLY)
    head = tl.program_id(0)
    s = tl.arange(0, SPLITS)
    l = tl.arange(0, L2)
    best = tl.load(sums_ptr + (s * HEADS + head) * 2)
    # a part without positions has maximum -inf and sum 0; the first part never is one
    factor = tl.exp(best - tl.max(best, 0))
    total = tl.sum(factor * tl.load(sums_ptr + (s * HEADS + head) * 2 + 1), 0)
    at = (s * HEADS + head)[:, None] * L + l[None, :]
    parts = tl.load(parts_ptr + at, mask=(l < L)[None, :], other=0.0)  # [S, L]
    mixed = tl.sum(parts * factor[:, None], 0) / total  # [L]
    for first in tl.static_range(0, V, BV):
        v = first + tl.arange(0, BV)
        row = head * (N + V) + N + v
        w_at = row.to(tl.int64)[:, None] * L + l[None, :]
        inside = (v < V)[:, None] & (l < L)[None, :]
        w = decode_e4m3(tl.load(codes_ptr + w_at, mask=inside, other=0), NATIVE)  # [BV, L]
        scale_at = (row // 128)[:, None] * LB + (l // 128)[None, :]
        w = w * tl.load(scale_ptr + scale_at, mask=inside, other=0.0)
        tl.store(out_ptr + head * V + v, tl.sum(w * mixed[None, :], 1), mask=v < V)
