"""Rotary position embedding: YaRN frequencies and the two layouts that DeepSeek-V3.2 uses.

MLA rotates interleaved pairs (2i, 2i + 1), the indexer half-split pairs (i, i + R/2), both with the
same frequencies. Taking the wrong layout for the indexer only shows beyond index_topk tokens.

Shapes: n rows, R rope size. cos, sin [n, R/2]; x [n, heads, R].
"""

from __future__ import annotations

import math

import torch

from host_runtime.config import ModelConfig


def rope_frequencies(config: ModelConfig) -> torch.Tensor:
    """Angle per position of each pair, float32 [R/2]; YaRN as configured, at every length.

    arXiv 2309.00071, section 3.2: pairs that turn more than beta_fast times within the original
    context keep their frequency, those below beta_slow are divided by the factor, linear between.
    """
    size, base, yarn = config.qk_rope_head_dim, config.rope_theta, config.yarn
    frequency = 1.0 / base ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    if yarn is None:
        return frequency

    def pair_index(rotations: float) -> float:
        positions = yarn.original_positions / (rotations * 2 * math.pi)
        return size * math.log(positions) / (2 * math.log(base))

    low = max(math.floor(pair_index(yarn.beta_fast)), 0)
    high = float(min(math.ceil(pair_index(yarn.beta_slow)), size - 1))
    if high == low:
        high += 0.001  # a step instead of a ramp, without dividing by zero
    ramp = ((torch.arange(size // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return frequency / yarn.factor * ramp + frequency * (1 - ramp)


def rope_interleaved(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate pairs (2i, 2i + 1) of x [n, heads, R]."""
    even, odd = x[..., 0::2], x[..., 1::2]  # [n, heads, R/2]
    cos, sin = cos[:, None], sin[:, None]  # [n, 1, R/2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def rope_half_split(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate pairs (i, i + R/2) of x [n, heads, R]."""
    first, second = x.chunk(2, -1)  # [n, heads, R/2]
    cos, sin = cos[:, None], sin[:, None]  # [n, 1, R/2]
    return torch.cat((first * cos - second * sin, first * sin + second * cos), -1)
