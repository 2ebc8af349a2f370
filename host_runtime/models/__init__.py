"""Whole models, from a checkpoint directory."""

from host_runtime.models.deepseek_v32 import DeepseekV32, SequenceCache
from host_runtime.models.loading import LoadedModel, load_model

__all__ = ["DeepseekV32", "LoadedModel", "SequenceCache", "load_model"]
