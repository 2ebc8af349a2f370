"""From a checkpoint directory to a model on the card, memory planned before anything is read."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

import torch

from host_runtime.config import load_config, load_generation_config
from host_runtime.cuda.capability import check_gpu
from host_runtime.cuda.host_file import HostFileWeights, host_file_bytes
from host_runtime.cuda.memory_plan import plan_memory
from host_runtime.cuda.model import GpuModel
from host_runtime.cuda.weights import CheckpointWeights
from host_runtime.experts.local import LocalExperts
from host_runtime.weights import Checkpoint, WeightSource

_log = logging.getLogger(__name__)


def load_gpu_model(
    model_dir: Path,
    *,
    routed_experts: Literal["local", "remote"],
    positions: int,
    cache_dtype: torch.dtype = torch.bfloat16,
    host_weights: Path | None = None,
    slot: int = 1,
) -> tuple[GpuModel, LocalExperts | None]:
    """Load the host's part on the first card; local experts stay on the CPU.

    positions: cache rows for all sequences together. cache_dtype float32 repeats the CPU path's
    arithmetic. host_weights: the folder of an export (host_file.py), read in one go in place of the
    checkpoint's many files. slot: ranges of rows begin at its multiples (pool.py).
    Raises GpuUnavailableError (no card, too little memory), WeightsError.
    """
    capability = check_gpu()
    config = load_config(model_dir)
    weights_bytes = None if host_weights is None else host_file_bytes(host_weights)
    plan = plan_memory(config, positions, cache_dtype.itemsize, weights_bytes)
    _log.info("%s: %s", capability.name, plan.text())
    plan.require(capability.free_bytes)
    generation = load_generation_config(model_dir, config)
    checkpoint = Checkpoint(model_dir)
    card = torch.device("cuda", 0)
    source: HostFileWeights | CheckpointWeights
    try:
        if host_weights is not None:
            source = HostFileWeights(host_weights, checkpoint, card)
        else:
            source = CheckpointWeights(checkpoint, card, fp8=config.fp8)
        model = GpuModel(
            config, generation, source, positions=positions, cache_dtype=cache_dtype, slot=slot
        )
    except torch.OutOfMemoryError as error:
        raise plan.ran_out(capability.free_bytes) from error
    if isinstance(source, CheckpointWeights):
        for layer in config.moe_layers:
            source.leave(f"model.layers.{layer}.mlp.experts.")
        source.finish()
    local = None
    if routed_experts == "local":
        cpu = WeightSource(checkpoint, torch.device("cpu"), fp8=config.fp8)
        local = LocalExperts(config, cpu)
    return model, local
