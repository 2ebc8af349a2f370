"""Router: which routed experts a token goes to, and with what weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from host_runtime.config import ModelConfig
from host_runtime.ops.router import choose_experts
from host_runtime.weights import WeightSource


class Router:
    """Sigmoid scores in float32, choice by noaux_tc with groups."""

    def __init__(self, source: WeightSource, prefix: str, config: ModelConfig) -> None:
        self.config = config
        experts = config.n_routed_experts
        self.weight = source.matrix(f"{prefix}weight", experts, config.hidden_size)
        self.bias = source.vector(f"{prefix}e_score_correction_bias", experts)

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x [n, D] -> expert ids int64 [n, k], routing weights float32 [n, k]."""
        return choose_experts(
            F.linear(x, self.weight).sigmoid(),  # [n, X]
            self.bias,
            group_count=self.config.n_group,
            chosen_groups=self.config.topk_group,
            top_k=self.config.num_experts_per_tok,
            normalise=self.config.norm_topk_prob,
            scaling_factor=self.config.routed_scaling_factor,
        )
