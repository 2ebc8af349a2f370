"""Choice of routed experts: `noaux_tc` with groups (DeepSeek-V3 report, section 2.1.2).

Shapes: n rows, X experts, k experts per token.
"""

from __future__ import annotations

import torch


def choose_experts(
    scores: torch.Tensor,
    bias: torch.Tensor,
    *,
    group_count: int,
    chosen_groups: int,
    top_k: int,
    normalise: bool,
    scaling_factor: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Expert ids int64 [n, k] and routing weights float32 [n, k] from sigmoid scores [n, X].

    The bias [X] takes part in the choice only, never in the weights. A group's score is the sum of
    its two best biased scores; experts outside the chosen groups can't win even against negative
    biased scores. Equal scores: the lower index wins (stable sort), so the order of the ids, and
    with it the order of the final sum, is defined.
    """
    rows = scores.shape[0]
    biased = (scores + bias).view(rows, group_count, -1)  # [n, groups, X / groups]
    group_scores = biased.topk(2, -1).values.sum(-1)  # [n, groups]
    best = group_scores.sort(dim=-1, descending=True, stable=True).indices[:, :chosen_groups]
    outside = torch.ones_like(group_scores, dtype=torch.bool).scatter_(1, best, False)
    biased = biased.masked_fill(outside[..., None], -torch.inf).view(rows, -1)  # [n, X]
    ids = biased.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]  # [n, k]
    weights = scores.gather(1, ids)  # [n, k], unbiased
    if normalise:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return ids, weights * scaling_factor
