"""A lane: the fixed buffers of one token's way through the layers, and its mailbox.

Everything that a captured step reads or writes has its address here, so that one graph serves all
tokens: position, cache row and token are numbers in device memory. What products read and write
are rows of buffers that all lanes share, so that one product can serve several lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from host_runtime.config import ModelConfig
from host_runtime.cuda.mailbox import Mailbox
from host_runtime.ops.gpu.attend import SPLITS
from host_runtime.ops.gpu.mailbox import SEQUENCE_WORDS
from host_runtime.ops.gpu.product import column_parts
from host_runtime.ops.gpu.sample import greedy_parts
from host_runtime.ops.gpu.split import SplitRows, split_rows

_ALIGNED = 64  # elements: kernels read 16 bytes at once from a row's begin on
STATE_BASE, STATE_POSITION, STATE_TOKEN, STATE_WORDS = 0, 1, 2, 4


@dataclass(frozen=True)
class Widths:
    """Output sizes of the fused matrices, the largest over all layers."""

    first: int  # [q_a | wk | kv_a | weights_proj]
    second: int  # [q_b | wq_b]
    middle: int  # gate, up and router


@dataclass(frozen=True)
class Rows:
    """What products of n lanes read and write, a row for each lane (D hidden size, V vocabulary).

    Splits are None where no kernel makes them.
    """

    x: torch.Tensor  # [n, D] residual
    x_split: SplitRows | None  # x, times the next norm's gain
    normed: torch.Tensor  # [n, D], the output of the last norm that was no product's part
    logits: torch.Tensor  # [n, V]
    first: torch.Tensor  # [n, widths.first]
    second: torch.Tensor  # [n, widths.second]
    middle: torch.Tensor  # [n, widths.middle]
    values: torch.Tensor  # [n, heads * value size]
    values_split: SplitRows | None
    out: torch.Tensor  # [n, parts, D], a product's partial sums

    @classmethod
    def zeros(cls, config: ModelConfig, widths: Widths, count: int, device: torch.device) -> Rows:
        c, values = config, config.num_attention_heads * config.v_head_dim

        def floats(*shape: int) -> torch.Tensor:
            return torch.zeros(count, *shape, device=device)

        def aligned(size: int) -> torch.Tensor:
            return floats(-(-size // _ALIGNED) * _ALIGNED)[:, :size]

        return cls(
            x=floats(c.hidden_size),
            x_split=split_rows(count, c.hidden_size, device),
            normed=floats(c.hidden_size),
            logits=aligned(c.vocab_size),
            first=aligned(widths.first),
            second=aligned(widths.second),
            middle=aligned(widths.middle),
            values=floats(values),
            values_split=split_rows(count, values, device),
            out=floats(column_parts(max(c.intermediate_size, values)), c.hidden_size),
        )

    def part(self, begin: int, end: int) -> Rows:
        """Rows `begin` to `end`, in the same memory."""

        def own(whole: Any) -> Any:
            return whole.part(begin, end) if isinstance(whole, SplitRows) else whole[begin:end]

        parts: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, whole in parts.items():
            parts[name] = None if whole is None else own(whole)
        return Rows(**parts)


class Lane:
    """Buffers of one lane; `rows` has its row of what products read and write."""

    def __init__(self, config: ModelConfig, rows: Rows) -> None:
        c, device, self.rows = config, rows.x.device, rows

        def floats(*shape: int) -> torch.Tensor:
            return torch.zeros(*shape, device=device)

        self.state = torch.zeros(STATE_WORDS, dtype=torch.int32, device=device)
        pinned = device.type == "cuda"
        self.staged_state = torch.zeros(STATE_WORDS, dtype=torch.int32, pin_memory=pinned)
        self.sequence = torch.zeros(SEQUENCE_WORDS, dtype=torch.int32, device=device)
        self.mailbox = Mailbox(c.num_experts_per_tok, c.hidden_size, pinned=pinned)
        self.hidden = floats(1, c.hidden_size)  # the MTP module's input
        self.zeros = floats(1, c.hidden_size)
        self.joined = floats(1, 2 * c.hidden_size)
        width = c.kv_lora_rank + c.qk_rope_head_dim
        self.query = floats(c.num_attention_heads, width)
        self.index_query = floats(c.index_n_heads, c.index_head_dim)
        self.parts = floats(SPLITS, c.num_attention_heads, c.kv_lora_rank)
        self.sums = floats(SPLITS, c.num_attention_heads, 2)
        self.selected = torch.zeros(c.index_topk, dtype=torch.int32, device=device)
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


@dataclass(frozen=True)
class LaneGroup:
    """Lanes whose products are made together, and their rows, side by side."""

    lanes: Sequence[Lane]
    rows: Rows
