"""The host's part of the model, on the card or on the CPU, as the run file asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from host_runtime.config import load_config
from host_runtime.cuda.capability import GpuUnavailableError, check_gpu
from host_runtime.cuda.host_file import host_file_bytes
from host_runtime.cuda.memory_plan import plan_memory
from host_runtime.engine.engine import ACTIVE_MAX, PREFILL_CHUNK_MAX
from host_runtime.experts.local import LocalExperts
from host_runtime.models import DeepseekV32, load_model
from host_runtime.server.errors import StartupError
from host_runtime.server.progress import say
from host_runtime.server.run_config import RunConfig

# Tokens of a prompt that go together if the run file does not say. The more, the fewer times ducks
# read their weights; on the CPU a chunk holds up other users' tokens for long.
PREFILL_CHUNK_CPU = 64
_CACHE_BYTES_EACH = 2  # bf16
_CONTEXT_MIN = 2


@dataclass(frozen=True)
class HostPart:
    """A loaded model and what the engine may ask of it; `close` ends the card's threads."""

    model: DeepseekV32
    local_experts: LocalExperts | None
    max_context: int | None
    max_active: int
    prefill_chunk: int
    close: Callable[[], None]


@dataclass(frozen=True)
class CacheRoom:
    """Positions of one sequence, and how many such sequences the card holds at once."""

    context: int
    sequences: int


def load_host_part(config: RunConfig) -> HostPart:
    """Load as `device` says; "auto" takes the card if it can be used, and says why if not.

    Raises GpuUnavailableError (only for "cuda", or a model too large for the card), WeightsError.
    """
    if config.device != "cpu":
        try:
            check_gpu()
        except GpuUnavailableError as error:
            if config.device == "cuda":
                raise
            say(f"  on the CPU: {error.message}")
        else:
            return _on_card(config)
    if config.host_weights is not None:
        raise StartupError(
            "host weights can only be loaded onto a card, and this run is on the CPU",
            "leave them out, or use device cuda",
        )
    loaded = load_model(config.model_dir, routed_experts=config.experts)
    return HostPart(
        loaded.model,
        loaded.local_experts,
        config.max_context,
        ACTIVE_MAX,
        config.prefill_chunk or PREFILL_CHUNK_CPU,
        lambda: None,
    )


def _on_card(config: RunConfig) -> HostPart:
    from host_runtime.cuda.loading import load_gpu_model  # needs Triton

    card = check_gpu()
    model_config = load_config(config.model_dir)
    longest = model_config.max_position_embeddings
    plan = plan_memory(
        model_config,
        config.max_context or longest,
        _CACHE_BYTES_EACH,
        None if config.host_weights is None else host_file_bytes(config.host_weights),
    )
    if config.max_context is not None or plan.fitting_positions(card.free_bytes) < _CONTEXT_MIN:
        plan.require(card.free_bytes)
    room = cache_room(plan.fitting_positions(card.free_bytes), plan.positions)
    if room.context < plan.positions:
        say(f"  the card has room for {room.context} of the model's {longest} positions")
    gpu, local = load_gpu_model(
        config.model_dir,
        routed_experts=config.experts,
        positions=room.context * room.sequences,
        slot=room.context,
        host_weights=config.host_weights,
    )
    say(f"  on {card.name}: {room.sequences} sequences of up to {room.context} positions at once")
    # GpuModel offers what the engine uses of DeepseekV32 (docs/reference/gpu-runtime.md)
    chunk = config.prefill_chunk or PREFILL_CHUNK_MAX
    model = cast(DeepseekV32, gpu)
    return HostPart(model, local, room.context, room.sequences, chunk, gpu.close)


def cache_room(fitting: int, wanted: int) -> CacheRoom:
    """Share `fitting` cache rows: sequences of `wanted` positions, or one of what there is."""
    context = min(fitting, wanted)
    return CacheRoom(context, min(ACTIVE_MAX, fitting // context))
