"""Attention over the latent cache, in the absorbed form: keys and values are never expanded.

Shapes: n query rows, T cached positions, K selected positions, H heads, L latent size, R rope size.
With k_nope = latent . W_uk and v = latent . W_uv, the score q_nope . k_nope equals
(q_nope . W_uk^T) . latent, and the output is (softmax . latent) . W_uv; so only [T, L + R] is read.
"""

from __future__ import annotations

import torch


def attend_prefix(
    query: torch.Tensor,
    latent: torch.Tensor,
    rope_key: torch.Tensor,
    first_position: int,
    scale: float,
) -> torch.Tensor:
    """Each query at position first_position + i attends to all positions up to its own: [n, H, L].

    query [n, H, L + R] (absorbed part, then rotated part), latent [T, L], rope_key [T, R].
    """
    rows, heads, width = query.shape
    keys = torch.cat((latent, rope_key), -1)  # [T, L + R]
    scores = (query.reshape(rows * heads, width) @ keys.T).view(rows, heads, -1)  # [n, H, T]
    scores *= scale
    if rows > 1:
        positions = torch.arange(keys.shape[0], device=query.device)  # [T]
        own = first_position + torch.arange(rows, device=query.device)  # [n]
        scores.masked_fill_((positions[None] > own[:, None])[:, None], -torch.inf)
    weights = scores.softmax(-1)  # [n, H, T]
    return (weights.view(rows * heads, -1) @ latent).view(rows, heads, -1)


def attend_selected(
    query: torch.Tensor,
    latent: torch.Tensor,
    rope_key: torch.Tensor,
    selected: torch.Tensor,
    first_position: int,
    scale: float,
) -> torch.Tensor:
    """The same over selected positions only: [n, H, L].

    selected int64 [n, K]; positions beyond the query's own (if it has fewer than K) are masked.
    """
    rows = query.shape[0]
    chosen = latent[selected]  # [n, K, L]
    keys = torch.cat((chosen, rope_key[selected]), -1)  # [n, K, L + R]
    scores = torch.bmm(query, keys.transpose(1, 2)) * scale  # [n, H, K]
    own = first_position + torch.arange(rows, device=query.device)  # [n]
    scores.masked_fill_((selected > own[:, None])[:, None], -torch.inf)
    return torch.bmm(scores.softmax(-1), chosen)  # [n, H, L]
