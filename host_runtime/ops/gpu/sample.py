"""Greedy choice on the GPU: argmax, its log probability and a finiteness check in two launches.

Shapes: V vocabulary. Reference: engine/sampling.py, `Sampler.choose` at temperature 0.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from host_runtime.ops.gpu.support import follow, launch_options, power_of_two

_BLOCK = 2048


def greedy_parts(vocabulary: int) -> int:
    """How many rows of four numbers `greedy` needs as workspace."""
    return -(-vocabulary // _BLOCK)


def greedy(logits: torch.Tensor, parts: torch.Tensor, out: torch.Tensor) -> None:
    """out float64 [3]: token (the lowest on ties), log probability, 1 if all logits are finite.

    logits float32 [V], parts float64 [greedy_parts(V), 4].
    """
    count, vocabulary = parts.shape[0], logits.shape[-1]
    options = launch_options(logits.device)
    _parts_kernel[(count,)](logits, parts, vocabulary, BLOCK=_BLOCK, num_warps=4, **options)
    _choose_kernel[(1,)](parts, out, count, BLOCK=power_of_two(count), num_warps=4, **options)


@triton.jit
def _parts_kernel(logits_ptr, parts_ptr, vocabulary, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    follow(EARLY)
    part = tl.program_id(0)
    at = part * BLOCK + tl.arange(0, BLOCK)
    inside = at < vocabulary
    x = tl.load(logits_ptr + at, mask=inside, other=-float("inf"))
    best = tl.max(x, 0)
    place = tl.min(tl.where((x == best) & inside, at, vocabulary), 0)
    total = tl.sum(tl.exp((x - best).to(tl.float64)), 0)
    wrong = tl.sum((inside & ~(tl.abs(x) < float("inf"))).to(tl.int32), 0)
    row = parts_ptr + part * 4
    tl.store(row, best.to(tl.float64))
    tl.store(row + 1, place.to(tl.float64))
    tl.store(row + 2, total)
    tl.store(row + 3, wrong.to(tl.float64))


@triton.jit
def _choose_kernel(parts_ptr, out_ptr, count, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    follow(EARLY)
    part = tl.arange(0, BLOCK)
    inside = part < count
    row = parts_ptr + part * 4
    best = tl.load(row, mask=inside, other=-float("inf"))
    place = tl.load(row + 1, mask=inside, other=0.0)
    top = tl.max(best, 0)
    token = tl.min(tl.where((best == top) & inside, place, float("inf")), 0)
    total = tl.sum(tl.load(row + 2, mask=inside, other=0.0) * tl.exp(best - top), 0)
    wrong = tl.sum(tl.load(row + 3, mask=inside, other=0.0), 0)
    tl.store(out_ptr, token)
    tl.store(out_ptr + 1, -tl.log(total))
    tl.store(out_ptr + 2, tl.where(wrong == 0.0, 1.0, 0.0))
