"""Choice of experts for one row, and its CALL message. Reference: ops/router.py.

Shapes: X experts, k experts per token, D hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from host_runtime.config import ModelConfig
from host_runtime.ops.gpu.mailbox import post_call
from host_runtime.ops.gpu.product import Route
from host_runtime.ops.gpu.support import follow, launch_options, power_of_two, require

_WARPS = 4
_LANES = 32  # of the warp that chooses in route.cuh


@dataclass(frozen=True)
class RouteCall:
    """The mailbox to post to: sequence int32 [2] on the card, flags in pinned host memory."""

    sequence: torch.Tensor
    flags: torch.Tensor
    layer: int


def route(
    logits: torch.Tensor,
    bias: torch.Tensor,
    config: ModelConfig,
    ids: torch.Tensor,
    weights: torch.Tensor,
    hidden: torch.Tensor,
    payload: torch.Tensor,
    call: RouteCall | None = None,
) -> None:
    """ids int16 [k], weights float32 [k]; payload [D] (float32 or bf16) = hidden [D].

    With `call` the mailbox's flag is raised when all three are written.

    ids, weights and payload may lie in mapped host memory. logits and bias float32 [X].
    """
    experts, groups = config.n_routed_experts, config.n_group
    require(experts == power_of_two(experts), "route", f"{experts} experts are no power of two")
    require(groups == power_of_two(groups), "route", f"{groups} groups are no power of two")
    _route_kernel[(1,)](
        logits, bias, ids, weights, hidden, payload,
        call.sequence if call else logits, call.flags if call else logits,
        call.layer if call else 0, config.routed_scaling_factor,
        X=experts, GROUPS=groups, CHOSEN=config.topk_group, TOP_K=config.num_experts_per_tok,
        K2=power_of_two(config.num_experts_per_tok), NORMALISE=config.norm_topk_prob,
        D=hidden.shape[-1], BLOCK=1024, POST=call is not None, num_warps=_WARPS,
        **launch_options(logits.device),
    )  # fmt: skip


def route_beside(
    logits: torch.Tensor,
    bias: torch.Tensor,
    config: ModelConfig,
    ids: torch.Tensor,
    weights: torch.Tensor,
    call: RouteCall | None = None,
) -> Route | None:
    """`route` but for the payload, as one more block of a product's launch (route.cuh).

    None if it does not fit.
    """
    c = config
    if c.n_group > _LANES or c.num_experts_per_tok > _LANES:
        return None
    return Route(
        logits=logits.data_ptr(), bias=bias.data_ptr(), ids=ids.data_ptr(),
        weights=weights.data_ptr(), sequence=call.sequence.data_ptr() if call else None,
        flags=call.flags.data_ptr() if call else None, layer=call.layer if call else 0,
        experts=c.n_routed_experts, groups=c.n_group, chosen=c.topk_group,
        top_k=c.num_experts_per_tok, normalise=c.norm_topk_prob, scaling=c.routed_scaling_factor,
    )  # fmt: skip


def route_payload(
    x: torch.Tensor, gain: torch.Tensor, eps: float, payload: torch.Tensor
) -> Route | None:
    """payload [D] = rms_norm(x [D]) * gain as one more block of a product's launch.

    In the launch before the choice of experts: writes over the bus take their time. None if it
    does not fit.
    """
    pointers = x.data_ptr() | gain.data_ptr() | payload.data_ptr()
    if pointers % 16 or x.shape[-1] % 4:
        return None
    return Route(
        x=x.data_ptr(), gain=gain.data_ptr(), payload=payload.data_ptr(), size=x.shape[-1],
        payload_bf16=payload.dtype == torch.bfloat16, eps=eps,
    )  # fmt: skip


@triton.jit
def _route_kernel(
    logits_ptr, bias_ptr, ids_ptr, weights_ptr, hidden_ptr, payload_ptr,
    sequence_ptr, flags_ptr, layer, scaling,
    X: tl.constexpr, GROUPS: tl.constexpr, CHOSEN: tl.constexpr, TOP_K: tl.constexpr,
    K2: tl.constexpr, NORMALISE: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
    POST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    follow(EARLY)
    for start in range(0, D, BLOCK):
        at = start + tl.arange(0, BLOCK)
        row = tl.load(hidden_ptr + at, mask=at < D, other=0.0)
        tl.store(payload_ptr + at, row.to(payload_ptr.dtype.element_ty), mask=at < D)
    SIZE: tl.constexpr = X // GROUPS
    LOW: tl.constexpr = -float("inf")
    x = tl.arange(0, X)
    score = 1.0 / (1.0 + tl.exp(-tl.load(logits_ptr + x)))
    biased = score + tl.load(bias_ptr + x)
    # a group's score: the sum of its two best
    grouped = tl.reshape(biased, (GROUPS, SIZE))
    place = tl.arange(0, SIZE)[None, :]
    first = tl.max(grouped, 1)
    second = tl.max(tl.where(place == tl.argmax(grouped, 1)[:, None], LOW, grouped), 1)
    group = tl.arange(0, GROUPS)
    left = first + second
    inside = tl.zeros((GROUPS,), tl.int32)
    for _ in tl.static_range(CHOSEN):
        best = tl.argmax(left, 0)
        inside = tl.where(group == best, 1, inside)
        left = tl.where(group == best, LOW, left)
    grouped = tl.where((inside != 0)[:, None], grouped, LOW)
    left_experts = tl.reshape(grouped, (X,))
    j = tl.arange(0, K2)
    ids = tl.zeros((K2,), tl.int32)
    weights = tl.zeros((K2,), tl.float32)
    for place_j in tl.static_range(TOP_K):
        best = tl.argmax(left_experts, 0)
        ids = tl.where(j == place_j, best, ids)
        weights = tl.where(j == place_j, tl.sum(tl.where(x == best, score, 0.0), 0), weights)
        left_experts = tl.where(x == best, LOW, left_experts)
    if NORMALISE:
        weights = weights / (tl.sum(weights, 0) + 1e-20)
    tl.store(ids_ptr + j, ids.to(tl.int16), mask=j < TOP_K)
    tl.store(weights_ptr + j, weights * scaling, mask=j < TOP_K)
    if POST:
        post_call(sequence_ptr, flags_ptr, layer)
