"""Routed experts on the host itself, in plain torch: for small models, tests and comparison.

All experts are dequantised to float32 once, at load: 4 bytes per parameter.

Shapes: T tokens, k experts per token, D hidden size, M MoE intermediate size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from host_runtime.config import ModelConfig
from host_runtime.experts.base import DuckStatus
from host_runtime.weights import WeightSource

# Decode rows: each token alone, so that its bits do not depend on the others of the call.
_TOKENS_ALONE_MAX = 8


@dataclass(frozen=True)
class _Expert:
    gate_up: torch.Tensor  # [2 M, D]: gate rows, then up rows
    down: torch.Tensor  # [D, M]

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        gate, up = F.linear(hidden, self.gate_up).chunk(2, -1)  # [T, M] each
        return F.linear(F.silu(gate) * up, self.down)  # [T, D]


@dataclass(frozen=True)
class _Done:
    result: torch.Tensor

    def wait(self) -> torch.Tensor:
        return self.result


class LocalExperts:
    """All routed experts of a checkpoint, in memory as float32."""

    def __init__(self, config: ModelConfig, source: WeightSource) -> None:
        self._layers = {
            layer: [
                _load_expert(source, config, f"model.layers.{layer}.mlp.experts.{expert}.")
                for expert in range(config.n_routed_experts)
            ]
            for layer in config.moe_layers
        }

    def submit(
        self,
        layer: int,
        hidden: torch.Tensor,
        expert_ids: torch.Tensor,
        expert_weights: torch.Tensor,
    ) -> _Done:
        """Computes at once; see host_runtime.experts.base.Experts."""
        experts = self._layers[layer]
        if hidden.shape[0] <= _TOKENS_ALONE_MAX:
            downs = _token_by_token(experts, hidden, expert_ids)  # [T, k, D]
        else:
            downs = _expert_by_expert(experts, hidden, expert_ids)  # [T, k, D]
        total = torch.zeros_like(hidden)  # [T, D]
        for j in range(expert_ids.shape[1]):  # the ducks' order of summation
            total += downs[:, j] * expert_weights[:, j, None]
        return _Done(total)

    def status(self) -> list[DuckStatus]:
        """No ducks."""
        return []

    def close(self) -> None:
        """Nothing to release before the garbage collector does."""


def _load_expert(source: WeightSource, config: ModelConfig, prefix: str) -> _Expert:
    hidden, inner = config.hidden_size, config.moe_intermediate_size
    gate = source.matrix(f"{prefix}gate_proj.weight", inner, hidden)
    up = source.matrix(f"{prefix}up_proj.weight", inner, hidden)
    down = source.matrix(f"{prefix}down_proj.weight", hidden, inner)
    return _Expert(torch.cat((gate, up)), down)


def _token_by_token(
    experts: list[_Expert], hidden: torch.Tensor, expert_ids: torch.Tensor
) -> torch.Tensor:
    """[T, k, D], each token alone: its bits are those of a one-token call."""
    rows = [
        torch.cat([experts[expert](hidden[token : token + 1].clone()) for expert in chosen])
        for token, chosen in enumerate(expert_ids.tolist())
    ]
    return torch.stack(rows)


def _expert_by_expert(
    experts: list[_Expert], hidden: torch.Tensor, expert_ids: torch.Tensor
) -> torch.Tensor:
    """[T, k, D], the tokens of each expert together."""
    downs = hidden.new_empty(*expert_ids.shape, hidden.shape[1])
    for expert in sorted(set(expert_ids.flatten().tolist())):
        token, place = (expert_ids == expert).nonzero(as_tuple=True)
        downs[token, place] = experts[expert](hidden[token])
    return downs
