"""Checkpoint files: strict reading of safetensors and dequantisation to float32."""

from host_runtime.weights.checkpoint import Checkpoint, TensorEntry
from host_runtime.weights.source import WeightSource

__all__ = ["Checkpoint", "TensorEntry", "WeightSource"]
