"""A lane: the fixed buffers of one token's way through the layers, and its mailbox.

Everything that a captured step reads or writes has its address here, so that one graph serves all
tokens: position, cache row and token are numbers in device memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from host_runtime.config import ModelConfig
from host_runtime.cuda.mailbox import Mailbox
from host_runtime.ops.gpu.attend import SPLITS
from host_runtime.ops.gpu.mailbox import SEQUENCE_WORDS
from host_runtime.ops.gpu.product import column_parts
from host_runtime.ops.gpu.sample import greedy_parts
from host_runtime.ops.gpu.split import split_row

STATE_BASE, STATE_POSITION, STATE_TOKEN, STATE_WORDS = 0, 1, 2, 4


@dataclass(frozen=True)
class Widths:
    """Output sizes of the fused matrices, the largest over all layers."""

    first: int  # [q_a | wk | kv_a | weights_proj]
    second: int  # [q_b | wq_b]
    middle: int  # gate, up and router


class Lane:
    """Buffers of one lane. `normed` [1, D] and `logits` [1, V] are its rows of the model's."""

    def __init__(
        self,
        config: ModelConfig,
        widths: Widths,
        normed: torch.Tensor,
        logits: torch.Tensor,
    ) -> None:
        c, device = config, normed.device

        def floats(*shape: int) -> torch.Tensor:
            return torch.zeros(*shape, device=device)

        self.state = torch.zeros(STATE_WORDS, dtype=torch.int32, device=device)
        pinned = device.type == "cuda"
        self.staged_state = torch.zeros(STATE_WORDS, dtype=torch.int32, pin_memory=pinned)
        self.sequence = torch.zeros(SEQUENCE_WORDS, dtype=torch.int32, device=device)
        self.mailbox = Mailbox(c.num_experts_per_tok, c.hidden_size, pinned=pinned)
        self.x = floats(1, c.hidden_size)  # residual
        self.normed = normed  # the output of the last norm
        self.hidden = floats(1, c.hidden_size)  # the MTP module's input
        self.zeros = floats(1, c.hidden_size)
        self.joined = floats(1, 2 * c.hidden_size)
        self.first = floats(1, widths.first)
        self.second = floats(1, widths.second)
        self.middle = floats(1, widths.middle)
        longest = max(c.intermediate_size, c.num_attention_heads * c.v_head_dim)
        self.out = floats(column_parts(longest), c.hidden_size)  # a product's partial sums
        width = c.kv_lora_rank + c.qk_rope_head_dim
        self.query = floats(c.num_attention_heads, width)
        self.index_query = floats(c.index_n_heads, c.index_head_dim)
        self.parts = floats(SPLITS, c.num_attention_heads, c.kv_lora_rank)
        self.sums = floats(SPLITS, c.num_attention_heads, 2)
        self.values = floats(c.num_attention_heads, c.v_head_dim)
        self.x_split = split_row(c.hidden_size, device)  # x, times the next norm's gain
        self.values_split = split_row(c.num_attention_heads * c.v_head_dim, device)
        self.selected = torch.zeros(c.index_topk, dtype=torch.int32, device=device)
        self.logits = logits
        self.choice_parts = torch.zeros(
            greedy_parts(c.vocab_size), 4, dtype=torch.float64, device=device
        )
        self.choice = torch.zeros(3, dtype=torch.float64, device=device)

    def place(self, base: int, position: int, token: int) -> None:
        """Set the lane's token and place, in stream order."""
        self.staged_state[STATE_BASE] = base
        self.staged_state[STATE_POSITION] = position
        self.staged_state[STATE_TOKEN] = token
        self.state.copy_(self.staged_state, non_blocking=True)
