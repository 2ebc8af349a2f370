"""Between the query projections and attention: everything that is small, in one launch.

    y1 [q_a | wk | kv_a | ... | weights_proj] of a lane's row,  y2 [q_b | wq_b]
    -> query [H, L + R]: absorbed part and rotated part         (ops/attention.py, ops/rope.py)
    -> index query [G, E]: rotated, then Hadamard               (layers/indexer.py)
    -> one row of the caches: normed latent and rotated key, rotated index key

Shapes: H heads, N nope, R rope, V value, L latent size, G index heads, E index head size. The
position and the first cache row come from the lane's state, so that a captured graph serves all
positions.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from host_runtime.ops.gpu.compiled import Kernels, compiled
from host_runtime.ops.gpu.support import (
    decode_e4m3,
    follow,
    launch_options,
    native_fp8,
    power_of_two,
    split_bf16,
)
from host_runtime.ops.matrix import Matrix

_INDEX_HEADS = 16  # per program: the least rows of a matrix unit
# As in prepare.cu.
_THREADS, _WARPS, _TURN_HEADS, _ROWS_AT_ONCE = 128, 4, 16, 16
_NOPE_MAX, _ROPE_MAX, _LATENT_MAX, _INDEX_SIZES = 256, 128, 1024, (32, 64, 128)


class Prepare(ctypes.Structure):
    """See prepare.cu."""

    _fields_ = (
        ("state", ctypes.c_void_p), ("y1", ctypes.c_void_p), ("y2", ctypes.c_void_p),
        ("rotation", ctypes.c_void_p), ("codes", ctypes.c_void_p), ("scale", ctypes.c_void_p),
        ("latent_gain", ctypes.c_void_p), ("key_gain", ctypes.c_void_p),
        ("key_bias", ctypes.c_void_p), ("query", ctypes.c_void_p),
        ("index_query", ctypes.c_void_p), ("kv", ctypes.c_void_p), ("key", ctypes.c_void_p),
        ("heads", ctypes.c_int), ("nope", ctypes.c_int), ("rope", ctypes.c_int),
        ("value", ctypes.c_int), ("latent", ctypes.c_int), ("index_heads", ctypes.c_int),
        ("index_size", ctypes.c_int), ("key_at", ctypes.c_int), ("latent_at", ctypes.c_int),
        ("index_at", ctypes.c_int), ("cache_bf16", ctypes.c_int), ("eps", ctypes.c_float),
        ("key_eps", ctypes.c_float),
    )  # fmt: skip


@dataclass(frozen=True)
class PrepareSizes:
    """Sizes and where the parts of y1 and y2 begin."""

    heads: int
    nope: int
    rope: int
    value: int
    latent: int
    index_heads: int
    index_size: int
    key_at: int  # of wk in y1
    latent_at: int  # of kv_a in y1
    index_query_at: int  # of wq_b in y2


@dataclass(frozen=True)
class PrepareWeights:
    """kv_b [H (N + V), L], gains of the two key norms, Hadamard signs bf16 [E, E]."""

    kv_b: Matrix
    latent_gain: torch.Tensor
    key_gain: torch.Tensor
    key_bias: torch.Tensor
    hadamard: torch.Tensor


def prepare(
    sizes: PrepareSizes,
    weights: PrepareWeights,
    state: torch.Tensor,
    y1: torch.Tensor,
    y2: torch.Tensor,
    rotation: torch.Tensor,
    query: torch.Tensor,
    index_query: torch.Tensor,
    kv_cache: torch.Tensor,
    key_cache: torch.Tensor,
    eps: float,
    key_eps: float,
) -> None:
    """See the top. rotation float32 [positions, 2, R/2]: cos, then sin.

    query [H, L + R] and index_query [G, E] float32, kv_cache [P, L + R], key_cache [P, E].
    """
    kernels = compiled(y1.device)
    arguments = (
        sizes, weights, state, y1, y2, rotation, query, index_query, kv_cache, key_cache, eps,
        key_eps,
    )  # fmt: skip
    s = sizes
    fits = s.nope <= _NOPE_MAX and s.rope <= _ROPE_MAX and s.latent <= _LATENT_MAX
    fits = fits and s.index_size in _INDEX_SIZES and (s.nope | s.rope | s.index_query_at) % 4 == 0
    aligned = weights.kv_b.codes.data_ptr() % 16 == 0 and s.latent % 16 == 0
    if kernels is not None and fits and aligned:
        _launch_compiled(kernels, *arguments)
    else:
        _launch_triton(*arguments)


def _launch_compiled(
    kernels: Kernels,
    sizes: PrepareSizes,
    weights: PrepareWeights,
    state: torch.Tensor,
    y1: torch.Tensor,
    y2: torch.Tensor,
    rotation: torch.Tensor,
    query: torch.Tensor,
    index_query: torch.Tensor,
    kv_cache: torch.Tensor,
    key_cache: torch.Tensor,
    eps: float,
    key_eps: float,
) -> None:
    s, w = sizes, weights
    blocks = 2 + -(-s.index_heads // _WARPS) + -(-s.heads // _TURN_HEADS)
    blocks += s.heads * -(-s.latent // 128)
    whole_rows = -(-s.nope // _ROWS_AT_ONCE) * _ROWS_AT_ONCE
    shared = _ROWS_AT_ONCE * 128 * 4 + whole_rows * 128  # more than the small blocks need
    argument = Prepare(
        state.data_ptr(), y1.data_ptr(), y2.data_ptr(), rotation.data_ptr(),
        w.kv_b.codes.data_ptr(), w.kv_b.scale.data_ptr(), w.latent_gain.data_ptr(),
        w.key_gain.data_ptr(), w.key_bias.data_ptr(), query.data_ptr(), index_query.data_ptr(),
        kv_cache.data_ptr(), key_cache.data_ptr(), s.heads, s.nope, s.rope, s.value, s.latent,
        s.index_heads, s.index_size, s.key_at, s.latent_at, s.index_query_at,
        kv_cache.dtype == torch.bfloat16, eps, key_eps,
    )  # fmt: skip
    kernels.launch("prepare.cu", "prepare_attention", blocks, _THREADS, shared, [argument])


def _launch_triton(
    sizes: PrepareSizes,
    weights: PrepareWeights,
    state: torch.Tensor,
    y1: torch.Tensor,
    y2: torch.Tensor,
    rotation: torch.Tensor,
    query: torch.Tensor,
    index_query: torch.Tensor,
    kv_cache: torch.Tensor,
    key_cache: torch.Tensor,
    eps: float,
    key_eps: float,
) -> None:
    s = sizes
    latent_blocks = -(-s.latent // 128)
    index_programs = -(-s.index_heads // _INDEX_HEADS)
    grid = (s.heads * latent_blocks + index_programs + 2,)
    _prepare_kernel[grid](
        state, y1, y2, rotation, weights.kv_b.codes, weights.kv_b.scale, weights.latent_gain,
        weights.key_gain, weights.key_bias, weights.hadamard, query, index_query, kv_cache,
        key_cache, eps, key_eps,
        HEADS=s.heads, HEADS2=power_of_two(s.heads), N=s.nope, N2=power_of_two(s.nope), R=s.rope,
        V=s.value, L=s.latent, L2=power_of_two(s.latent), LB=latent_blocks, G=s.index_heads,
        E=s.index_size, KEY_AT=s.key_at, LATENT_AT=s.latent_at, INDEX_AT=s.index_query_at,
        INDEX_PROGRAMS=index_programs, BG=_INDEX_HEADS, NATIVE=native_fp8(y1.device), num_warps=4,
        **launch_options(y1.device),
    )  # fmt: skip


@triton.jit
def _absorb(
    y2_ptr, codes_ptr, scale_ptr, query_ptr, head, block,
    N: tl.constexpr, N2: tl.constexpr, R: tl.constexpr, V: tl.constexpr, L: tl.constexpr,
    LB: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """query[head, block of 128] = sum over n of q_nope[head, n] * W_uk[head, n, block]."""
    n = tl.arange(0, N2)
    row = head * (N + V) + n
    column = block * 128 + tl.arange(0, 128)
    at = row.to(tl.int64)[:, None] * L + column[None, :]
    codes = tl.load(codes_ptr + at, mask=(n < N)[:, None] & (column < L)[None, :], other=0)
    scale = tl.load(scale_ptr + (row // 128) * LB + block, mask=n < N, other=0.0)
    q = tl.load(y2_ptr + head * (N + R) + n, mask=n < N, other=0.0) * scale
    absorbed = tl.sum(decode_e4m3(codes, NATIVE) * q[:, None], 0)  # [128]
    tl.store(query_ptr + head * (L + R) + column, absorbed, mask=column < L)


@triton.jit
def _rotate_interleaved(x_ptr, rotation_ptr, at, R: tl.constexpr):
    """Elements `at` (0 to R - 1) of a row of x, rotated in pairs (2i, 2i + 1)."""
    pair = at // 2
    cos = tl.load(rotation_ptr + pair)
    sin = tl.load(rotation_ptr + R // 2 + pair)
    x = tl.load(x_ptr + at)
    other = tl.load(x_ptr + (at ^ 1))
    return x * cos + other * tl.where(at % 2 == 0, -sin, sin)


@triton.jit
def _half_split(at, rotation_ptr, R: tl.constexpr):
    """Partner, cos and signed sin of elements `at` under pairs (i, i + R/2); beyond R: no turn."""
    HALF: tl.constexpr = R // 2
    inside = at < R
    pair = at % HALF
    cos = tl.load(rotation_ptr + pair, mask=inside, other=1.0)
    sin = tl.load(rotation_ptr + HALF + pair, mask=inside, other=0.0)
    partner = tl.where(inside, tl.where(at < HALF, at + HALF, at - HALF), at)
    return partner, cos, tl.where(at < HALF, -sin, sin)


@triton.jit
def _index_query(
    y2_ptr, rotation_ptr, hadamard_ptr, out_ptr, program,
    R: tl.constexpr, G: tl.constexpr, E: tl.constexpr, BG: tl.constexpr,
):  # fmt: skip
    """BG heads of the index query: half-split RoPE on the first R elements, then Hadamard."""
    head = program * BG + tl.arange(0, BG)
    at = tl.arange(0, E)
    partner, cos, sin = _half_split(at, rotation_ptr, R)
    inside = (head < G)[:, None]
    x = tl.load(y2_ptr + head[:, None] * E + at[None, :], mask=inside, other=0.0)
    other = tl.load(y2_ptr + head[:, None] * E + partner[None, :], mask=inside, other=0.0)
    x = x * cos[None, :] + other * sin[None, :]
    signs = tl.load(hadamard_ptr + at[:, None] * E + at[None, :])
    high, middle, low = split_bf16(x)
    turned = tl.dot(low, signs)
    turned = tl.dot(middle, signs, turned)
    turned = tl.dot(high, signs, turned)
    out_at = out_ptr + head[:, None] * E + at[None, :]
    tl.store(out_at, turned / tl.sqrt(E * 1.0), mask=inside)


@triton.jit
def _cache_row(
    y1_ptr, rotation_ptr, latent_gain_ptr, key_gain_ptr, key_bias_ptr, hadamard_ptr,
    kv_ptr, key_ptr, eps, key_eps,
    R: tl.constexpr, L: tl.constexpr, L2: tl.constexpr, E: tl.constexpr,
    KEY_AT: tl.constexpr, LATENT_AT: tl.constexpr,
):  # fmt: skip
    """Latent (RMSNorm), rotated key, and index key (LayerNorm, RoPE, Hadamard) of this position."""
    at = tl.arange(0, L2)
    inside = at < L
    latent = tl.load(y1_ptr + LATENT_AT + at, mask=inside, other=0.0)
    latent = latent * tl.rsqrt(tl.sum(latent * latent, 0) / L + eps)
    latent = latent * tl.load(latent_gain_ptr + at, mask=inside, other=0.0)
    tl.store(kv_ptr + at, latent.to(kv_ptr.dtype.element_ty), mask=inside)
    turn = tl.arange(0, R)
    rotated = _rotate_interleaved(y1_ptr + LATENT_AT + L, rotation_ptr, turn, R)
    tl.store(kv_ptr + L + turn, rotated.to(kv_ptr.dtype.element_ty))

    e = tl.arange(0, E)
    partner, cos, sin = _half_split(e, rotation_ptr, R)
    key = tl.load(y1_ptr + KEY_AT + e)
    mean = tl.sum(key, 0) / E
    centred = key - mean
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / E + key_eps)
    key = centred * scale * tl.load(key_gain_ptr + e) + tl.load(key_bias_ptr + e)
    other = (tl.load(y1_ptr + KEY_AT + partner) - mean) * scale
    other = other * tl.load(key_gain_ptr + partner) + tl.load(key_bias_ptr + partner)
    key = key * cos + other * sin
    signs = tl.load(hadamard_ptr + e[:, None] * E + e[None, :]).to(tl.float32)
    turned = tl.sum(key[:, None] * signs, 0) / tl.sqrt(E * 1.0)
    tl.store(key_ptr + e, turned.to(key_ptr.dtype.element_ty))


@triton.jit
def _prepare_kernel(
    state_ptr, y1_ptr, y2_ptr, rotation_ptr, codes_ptr, scale_ptr, latent_gain_ptr, key_gain_ptr,
    key_bias_ptr, hadamard_ptr, query_ptr, index_query_ptr, kv_ptr, key_ptr, eps, key_eps,
    HEADS: tl.constexpr, HEADS2: tl.constexpr, N: tl.constexpr, N2: tl.constexpr, R: tl.constexpr,
    V: tl.constexpr, L: tl.constexpr, L2: tl.constexpr, LB: tl.constexpr, G: tl.constexpr,
    E: tl.constexpr, KEY_AT: tl.constexpr, LATENT_AT: tl.constexpr, INDEX_AT: tl.constexpr,
    INDEX_PROGRAMS: tl.constexpr, BG: tl.constexpr, NATIVE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    follow(EARLY)
    program = tl.program_id(0)
    position = tl.load(state_ptr + 1)
    row = (tl.load(state_ptr) + position).to(tl.int64)
    rotation_ptr += position * R
    # the longest programs first
    if program == 0:
        _cache_row(
            y1_ptr, rotation_ptr, latent_gain_ptr, key_gain_ptr, key_bias_ptr, hadamard_ptr,
            kv_ptr + row * (L + R), key_ptr + row * E, eps, key_eps,
            R, L, L2, E, KEY_AT, LATENT_AT,
        )  # fmt: skip
    elif program <= INDEX_PROGRAMS:
        _index_query(
            y2_ptr + INDEX_AT, rotation_ptr, hadamard_ptr, index_query_ptr, program - 1, R, G, E, BG
        )
    elif program == INDEX_PROGRAMS + 1:
        head = tl.arange(0, HEADS2)
        turn = tl.arange(0, R)
        pair = turn // 2
        cos = tl.load(rotation_ptr + pair)[None, :]
        sin = tl.load(rotation_ptr + R // 2 + pair)
        sin = tl.where(turn % 2 == 0, -sin, sin)[None, :]
        at = y2_ptr + head[:, None] * (N + R) + N
        inside = (head < HEADS)[:, None]
        x = tl.load(at + turn[None, :], mask=inside, other=0.0)
        other = tl.load(at + (turn ^ 1)[None, :], mask=inside, other=0.0)
        out_at = query_ptr + head[:, None] * (L + R) + L + turn[None, :]
        tl.store(out_at, x * cos + other * sin, mask=inside)
    else:
        part = program - INDEX_PROGRAMS - 2
        _absorb(
            y2_ptr, codes_ptr, scale_ptr, query_ptr, part // LB, part % LB,
            N, N2, R, V, L, LB, NATIVE,
        )  # fmt: skip
