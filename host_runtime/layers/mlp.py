"""Gated MLP: the dense layers' and the shared expert's."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from host_runtime.weights import WeightSource


class Mlp:
    """down(silu(gate x) * up x)."""

    def __init__(
        self, source: WeightSource, prefix: str, hidden_size: int, inner_size: int
    ) -> None:
        gate = source.matrix(f"{prefix}gate_proj.weight", inner_size, hidden_size)
        up = source.matrix(f"{prefix}up_proj.weight", inner_size, hidden_size)
        self.gate_up = torch.cat((gate, up))  # one product instead of two
        self.down = source.matrix(f"{prefix}down_proj.weight", hidden_size, inner_size)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [n, D] -> [n, D]."""
        gate, up = F.linear(x, self.gate_up).chunk(2, -1)  # [n, M] each
        return F.linear(F.silu(gate) * up, self.down)  # [n, D]
