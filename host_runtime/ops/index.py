"""Arithmetic of the DSA lightning indexer: which keys a query may attend to.

Shapes: n query rows, T cached positions, G index heads, E index head size.
"""

from __future__ import annotations

import math

import torch


def hadamard_matrix(size: int, device: torch.device) -> torch.Tensor:
    """Orthonormal Hadamard matrix [size, size], size a power of two (Sylvester's construction)."""
    matrix: torch.Tensor = torch.ones(1, 1, device=device)
    while matrix.shape[0] < size:
        top, bottom = torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)
        matrix = torch.cat((top, bottom))
    return matrix / math.sqrt(size)


def index_scores(query: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """score[n, t] = sum over heads of weight * relu(query . key): [n, T].

    query [n, G, E], keys [T, E], weights [n, G]. ReLU comes before the weight, which may be
    negative.
    """
    rows, heads, size = query.shape
    products = (query.reshape(rows * heads, size) @ keys.T).relu_()  # [n * G, T]
    return torch.bmm(weights[:, None], products.view(rows, heads, -1))[:, 0]  # [n, T]


def top_k_lower_position(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Positions of the `count` largest scores of each row, ascending: int64 [n, count].

    Among equal scores the lower position wins, which torch.topk leaves open. NaN counts as -inf:
    the choice stays well-formed and the NaN itself is found in the logits.
    """
    scores = scores.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)  # [n, T]
    smallest = scores.topk(count, dim=-1).values[:, -1:]  # [n, 1]: the last score to get in
    above = scores > smallest
    equal = scores == smallest
    places = count - above.sum(-1, keepdim=True)  # [n, 1]: left for the equal ones
    chosen = above | (equal & (equal.cumsum(-1) <= places))
    return chosen.nonzero()[:, 1].view(scores.shape[0], count)
