"""From a checkpoint directory to a model in memory."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from host_runtime.config import load_config, load_generation_config
from host_runtime.errors import WeightsError
from host_runtime.experts.local import LocalExperts
from host_runtime.models.deepseek_v32 import DeepseekV32
from host_runtime.weights import Checkpoint, WeightSource

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedModel:
    """`local_experts` is None when the routed experts were left to the ducks."""

    model: DeepseekV32
    local_experts: LocalExperts | None


def load_model(
    model_dir: Path,
    *,
    routed_experts: Literal["local", "remote"],
    device: torch.device | str = "cpu",
) -> LoadedModel:
    """Load and check a DeepSeek-V3.2 checkpoint; every tensor must find its place.

    Weights are float32 in memory (4 bytes per parameter of the host's part). Raises FileFormatError
    and WeightsError, which name the file and the key or tensor.
    """
    config = load_config(model_dir)
    generation = load_generation_config(model_dir, config)
    source = WeightSource(Checkpoint(model_dir), torch.device(device), fp8=config.fp8)
    model = DeepseekV32(config, generation, source)
    local = None
    if routed_experts == "local":
        local = LocalExperts(config, source)
    else:
        for layer in config.moe_layers:
            if not source.leave(f"model.layers.{layer}.mlp.experts."):
                raise WeightsError(f"{model_dir}: layer {layer} has no routed experts")
    source.finish()
    _log.info("loaded %s: %d tensors", model_dir, len(source.checkpoint.entries))
    return LoadedModel(model, local)
