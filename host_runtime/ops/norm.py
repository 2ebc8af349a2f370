"""RMSNorm (arXiv 1910.07467) in float32."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) * weight over the last dimension. x [..., d], weight [d]."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight
