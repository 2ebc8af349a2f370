"""Multi-head latent attention (MLA) with the DSA indexer; absorbed form over the latent cache.

Shapes: n rows, T cached positions, H heads, N nope size, R rope size, V value size, L latent size,
Q query latent size, D hidden size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from host_runtime.config import ModelConfig
from host_runtime.layers.cache import LayerCache
from host_runtime.layers.indexer import Indexer
from host_runtime.ops.attention import attend_prefix, attend_selected
from host_runtime.ops.norm import rms_norm
from host_runtime.ops.rope import rope_interleaved
from host_runtime.weights import WeightSource

# Gathered keys, selected latents and scores of one block of rows of a prefill chunk.
_GATHER_BYTES_MAX = 64 * 1024 * 1024


class Attention:
    """Head layout [nope | rope], interleaved RoPE; the rotated key is shared by all heads."""

    def __init__(self, source: WeightSource, prefix: str, config: ModelConfig) -> None:
        self.config = config
        heads, hidden = config.num_attention_heads, config.hidden_size
        nope, rope, value = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
        q_rank, latent = config.q_lora_rank, config.kv_lora_rank
        self.q_a = source.matrix(f"{prefix}q_a_proj.weight", q_rank, hidden)
        self.q_a_norm = source.vector(f"{prefix}q_a_layernorm.weight", q_rank)
        self.q_b = source.matrix(f"{prefix}q_b_proj.weight", heads * (nope + rope), q_rank)
        self.kv_a = source.matrix(f"{prefix}kv_a_proj_with_mqa.weight", latent + rope, hidden)
        self.kv_a_norm = source.vector(f"{prefix}kv_a_layernorm.weight", latent)
        kv_b = source.matrix(f"{prefix}kv_b_proj.weight", heads * (nope + value), latent)
        per_head = kv_b.view(heads, nope + value, latent)
        self.w_uk = per_head[:, :nope].contiguous()  # [H, N, L]: latent to keys
        self.w_uv = per_head[:, nope:].transpose(1, 2).contiguous()  # [H, L, V]: latent to values
        self.o = source.matrix(f"{prefix}o_proj.weight", hidden, heads * value)
        self.indexer = Indexer(source, f"{prefix}indexer.", config)

    def __call__(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, cache: LayerCache
    ) -> torch.Tensor:
        """Append the rows x [n, D] to the cache and attend: [n, D]."""
        config, rows, first = self.config, x.shape[0], cache.length
        query_latent = rms_norm(F.linear(x, self.q_a), self.q_a_norm, config.rms_norm_eps)  # [n, Q]
        query = F.linear(query_latent, self.q_b)  # [n, H * (N + R)]
        query = query.view(rows, config.num_attention_heads, -1)  # [n, H, N + R]
        nope, rope = torch.split(query, [config.qk_nope_head_dim, config.qk_rope_head_dim], -1)
        absorbed = torch.bmm(nope.transpose(0, 1), self.w_uk).transpose(0, 1)  # [n, H, L]
        query = torch.cat((absorbed, rope_interleaved(rope, cos, sin)), -1)  # [n, H, L + R]

        latent, rope_key = torch.split(
            F.linear(x, self.kv_a), [config.kv_lora_rank, config.qk_rope_head_dim], -1
        )  # [n, L], [n, R]
        latent = rms_norm(latent, self.kv_a_norm, config.rms_norm_eps)
        rope_key = rope_interleaved(rope_key[:, None], cos, sin)[:, 0]
        cache.append(latent, rope_key, self.indexer.keys(x, cos, sin))

        if cache.length <= config.index_topk:  # the indexer would choose everything
            mixed = attend_prefix(
                query, cache.latent, cache.rope_key, first, config.softmax_scale
            )  # [n, H, L]
        else:
            selected = self.indexer.select(x, query_latent, cache.index_key, first, cos, sin)
            mixed = self._attend_in_blocks(query, cache, selected, first)
        values = torch.bmm(mixed.transpose(0, 1), self.w_uv).transpose(0, 1)  # [n, H, V]
        return F.linear(values.reshape(rows, -1), self.o)  # [n, D]

    def _attend_in_blocks(
        self, query: torch.Tensor, cache: LayerCache, selected: torch.Tensor, first: int
    ) -> torch.Tensor:
        """attend_selected with bounded memory for the gathered keys: [n, H, L]."""
        rows, heads, width = query.shape
        block = max(1, _GATHER_BYTES_MAX // (4 * selected.shape[1] * (2 * width + 2 * heads)))
        return torch.cat(
            [
                attend_selected(
                    query[begin : begin + block],
                    cache.latent,
                    cache.rope_key,
                    selected[begin : begin + block],
                    first + begin,
                    self.config.softmax_scale,
                )
                for begin in range(0, rows, block)
            ]
        )
