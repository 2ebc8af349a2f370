"""What a model takes on the card, computed from its configuration before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from host_runtime.config import ModelConfig
from host_runtime.cuda.capability import GpuUnavailableError

WORKSPACE_BYTES = 1536 * 1024 * 1024  # lanes, prefill scores, kernels, the CUDA context
_GIB = 1 << 30


@dataclass(frozen=True)
class MemoryPlan:
    """Sizes in bytes; `positions` are cache rows shared by all sequences."""

    weights_bytes: int
    cache_bytes: int
    workspace_bytes: int
    positions: int

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.cache_bytes + self.workspace_bytes

    def text(self) -> str:
        """One line for the log."""
        return (
            f"weights {self.weights_bytes / _GIB:.2f} GiB + caches {self.cache_bytes / _GIB:.2f} "
            f"GiB ({self.positions} positions) + workspace {self.workspace_bytes / _GIB:.2f} GiB "
            f"= {self.total_bytes / _GIB:.2f} GiB"
        )

    def fitting_positions(self, free_bytes: int) -> int:
        """How many cache rows fit beside weights and workspace; 0 if not even these do."""
        room = free_bytes - self.total_bytes + self.cache_bytes
        per_position = self.cache_bytes // max(1, self.positions)
        return max(0, room // max(1, per_position))

    def require(self, free_bytes: int) -> None:
        """Raise GpuUnavailableError with all numbers if the plan does not fit."""
        if self.total_bytes > free_bytes:
            fitting = self.fitting_positions(free_bytes)
            raise GpuUnavailableError(
                f"the model does not fit the card: {self.text()}, free are "
                f"{free_bytes / _GIB:.2f} GiB",
                f"{fitting} positions would fit: lower max_context" if fitting else
                "use a card with more memory, or device cpu",
            )  # fmt: skip

    def ran_out(self, free_bytes: int) -> GpuUnavailableError:
        """The error of a load that ran out of memory all the same; free_bytes: before it."""
        return GpuUnavailableError(
            f"the card ran out of memory while the model was loaded: {self.text()}, free were "
            f"{free_bytes / _GIB:.2f} GiB",
            "see with nvidia-smi what else uses the card, lower max_context, or use device cpu",
        )


def plan_memory(
    config: ModelConfig, positions: int, cache_bytes_each: int, weights_bytes: int | None = None
) -> MemoryPlan:
    """Plan for `positions` cache rows with elements of cache_bytes_each (2: bf16, 4: float32).

    A prompt chunk has one layer's rows in float32 besides, of at most all positions.
    weights_bytes: of a file that goes onto the card as it is; None: what the configuration says.
    """
    layers = config.num_hidden_layers + config.num_nextn_predict_layers
    width = config.kv_lora_rank + config.qk_rope_head_dim + config.index_head_dim
    cache = positions * width * cache_bytes_each * layers
    rotation, copies = positions * config.qk_rope_head_dim * 4, positions * width * 4
    weights = _weights_bytes(config) if weights_bytes is None else weights_bytes
    return MemoryPlan(weights, cache + rotation + copies, WORKSPACE_BYTES, positions)


def _weights_bytes(config: ModelConfig) -> int:
    c = config
    fp8, bf16 = 1 + 4 / (128 * 128), 2
    heads = c.num_attention_heads
    attention = (
        c.hidden_size * (c.q_lora_rank + c.kv_lora_rank + c.qk_rope_head_dim + c.index_head_dim)
        + c.q_lora_rank * heads * (c.qk_nope_head_dim + c.qk_rope_head_dim)
        + c.q_lora_rank * c.index_n_heads * c.index_head_dim
        + c.kv_lora_rank * heads * (c.qk_nope_head_dim + c.v_head_dim)
        + c.hidden_size * heads * c.v_head_dim
    ) * fp8 + c.hidden_size * c.index_n_heads * bf16
    dense = 3 * c.hidden_size * c.intermediate_size * fp8
    shared = 3 * c.hidden_size * c.moe_intermediate_size * c.n_shared_experts * fp8
    sparse = shared + c.hidden_size * c.n_routed_experts * bf16
    layers = c.num_hidden_layers + c.num_nextn_predict_layers
    moe = len(c.moe_layers)
    tables = 2 * c.vocab_size * c.hidden_size * bf16
    join = c.num_nextn_predict_layers * 2 * c.hidden_size**2 * bf16
    return int(attention * layers + dense * (layers - moe) + sparse * moe + tables + join)
