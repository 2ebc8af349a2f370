"""One decoder layer: attention, then a dense MLP or the mixture of experts.

Shapes: n rows, D hidden size, k experts per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from host_runtime.config import ModelConfig
from host_runtime.experts.base import Experts
from host_runtime.layers.attention import Attention
from host_runtime.layers.cache import LayerCache
from host_runtime.layers.leapfrog import StartedLayer
from host_runtime.layers.mlp import Mlp
from host_runtime.layers.router import Router
from host_runtime.ops.norm import rms_norm
from host_runtime.ops.rows import by_rows, each_row
from host_runtime.weights import WeightSource


class DecoderLayer:
    """Layer `index` of the checkpoint; the MTP module's decoder layer is one too."""

    def __init__(self, source: WeightSource, index: int, config: ModelConfig) -> None:
        self.index, self.eps = index, config.rms_norm_eps
        prefix, hidden = f"model.layers.{index}.", config.hidden_size
        self.input_norm = source.vector(f"{prefix}input_layernorm.weight", hidden)
        self.attention = Attention(source, f"{prefix}self_attn.", config)
        self.post_norm = source.vector(f"{prefix}post_attention_layernorm.weight", hidden)
        self.router: Router | None = None
        if index < config.first_k_dense_replace:
            self.mlp = Mlp(source, f"{prefix}mlp.", hidden, config.intermediate_size)
        else:
            shared_size = config.n_shared_experts * config.moe_intermediate_size
            self.router = Router(source, f"{prefix}mlp.gate.", config)
            self.mlp = Mlp(source, f"{prefix}mlp.shared_experts.", hidden, shared_size)

    def __call__(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        cache: LayerCache,
        experts: Experts,
    ) -> torch.Tensor:
        """x [n, D] -> [n, D]; appends n positions to the cache."""
        return self.start(x, cos, sin, [cache], experts).finish()

    def start(
        self,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        caches: Sequence[LayerCache],
        experts: Experts,
    ) -> StartedLayer:
        """All but the routed experts, which are on their way when this returns.

        x [n, D] are n positions of one sequence (one cache), or one position each of n sequences
        (n caches); each cache gets its positions.
        """
        attend = [partial(self._attend, cache) for cache in caches]
        if len(caches) == 1:
            x, hidden = by_rows(attend[0], x, cos, sin)  # [n, D] each
        else:
            x, hidden = each_row(attend, x, cos, sin)  # [n, D] each
        if self.router is None:
            return StartedLayer(x, self._mlp_rows(hidden), None)
        ids, weights = by_rows(self.router, hidden)  # [n, k] each
        pending = experts.submit(self.index, hidden, ids, weights)
        return StartedLayer(x, self._mlp_rows(hidden), pending)

    def _attend(
        self, cache: LayerCache, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = x + self.attention(rms_norm(x, self.input_norm, self.eps), cos, sin, cache)
        return x, rms_norm(x, self.post_norm, self.eps)

    def _mlp_rows(self, hidden: torch.Tensor) -> torch.Tensor:
        return by_rows(lambda row: (self.mlp(row),), hidden)[0]
