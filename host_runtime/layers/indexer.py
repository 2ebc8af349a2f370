"""DSA lightning indexer: picks the positions that attention may look at (DeepSeek-V3.2).

Shapes: n rows, T cached positions, G index heads, E index head size, R rope size, Q query latent
size, D hidden size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from host_runtime.config import ModelConfig
from host_runtime.ops.index import hadamard_matrix, index_scores, top_k_lower_position
from host_runtime.ops.rope import rope_half_split
from host_runtime.weights import WeightSource

_NORM_EPS = 1e-6
# Scores of all heads for one block of rows: what a long prefill may hold at once.
_SCORE_BYTES_MAX = 64 * 1024 * 1024


class Indexer:
    """Layout [rope | rest] with half-split RoPE, the opposite of MLA's in both."""

    def __init__(self, source: WeightSource, prefix: str, config: ModelConfig) -> None:
        self.heads, self.size = config.index_n_heads, config.index_head_dim
        self.rope, self.top_k = config.qk_rope_head_dim, config.index_topk
        hidden, size = config.hidden_size, self.size
        self.wq_b = source.matrix(f"{prefix}wq_b.weight", self.heads * size, config.q_lora_rank)
        self.wk = source.matrix(f"{prefix}wk.weight", size, hidden)
        self.k_norm_weight = source.vector(f"{prefix}k_norm.weight", size)
        self.k_norm_bias = source.vector(f"{prefix}k_norm.bias", size)
        self.weights_proj = source.matrix(f"{prefix}weights_proj.weight", self.heads, hidden)
        self.hadamard = hadamard_matrix(size, source.device)

    def keys(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Index keys of the rows x [n, D] for the cache: [n, E]."""
        key = F.linear(x, self.wk)  # [n, E]
        key = F.layer_norm(key, (self.size,), self.k_norm_weight, self.k_norm_bias, _NORM_EPS)
        return self._rotate(key[:, None], cos, sin)[:, 0]

    def select(
        self,
        x: torch.Tensor,
        query_latent: torch.Tensor,
        keys: torch.Tensor,
        first_position: int,
        cos: torch.Tensor,
        sin: torch.Tensor,
    ) -> torch.Tensor:
        """Positions for each row, ascending: int64 [n, min(top_k, T)].

        x [n, D], query_latent [n, Q] (normed), keys [T, E] of all positions, the rows' own too.
        A row with fewer than top_k positions gets some beyond its own; attention masks those.
        """
        rows, positions = x.shape[0], keys.shape[0]
        query = F.linear(query_latent, self.wq_b).view(rows, self.heads, self.size)  # [n, G, E]
        query = self._rotate(query, cos, sin)
        weights = F.linear(x, self.weights_proj) * (self.heads**-0.5 * self.size**-0.5)  # [n, G]
        block = max(1, _SCORE_BYTES_MAX // (4 * self.heads * positions))
        chosen = []
        for begin in range(0, rows, block):
            end = min(begin + block, rows)
            scores = index_scores(query[begin:end], keys, weights[begin:end])  # [rows, T]
            own = first_position + torch.arange(begin, end, device=x.device)  # [rows]
            later = torch.arange(positions, device=x.device)[None] > own[:, None]
            scores.masked_fill_(later, -torch.inf)
            chosen.append(top_k_lower_position(scores, min(self.top_k, positions)))
        return torch.cat(chosen)

    def _rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """RoPE on the first R elements, then Hadamard over all, queries and keys alike."""
        rotated = rope_half_split(x[..., : self.rope], cos, sin)
        return torch.cat((rotated, x[..., self.rope :]), -1) @ self.hadamard
