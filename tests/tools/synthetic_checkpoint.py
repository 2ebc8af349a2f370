"""Writes checkpoints of any supported shape with random weights, for tests and measurements.

    python tests/tools/synthetic_checkpoint.py OUT --hidden 7168 --moe 2048 --experts 256 --layers 5

The weights are finite random codes from one pool per checkpoint (so that 20 GB take as long as the
disk needs), scales are random positive floats. The same seed gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from duckctl.shards.architectures import (
    ARCHITECTURES,
    ConfigReader,
    expected_host_tensors,
    expert_tensor,
    fused_tensor,
    model_shape,
    text_config_of,
)

DTYPE_BYTES = {"F32": 4, "BF16": 2, "F8_E4M3": 1}
POOL_BYTES_MIN = 1 << 22


@dataclass(frozen=True)
class CheckpointSpec:
    """Sizes of a synthetic checkpoint. ``layers`` counts dense and MoE layers, not MTP."""

    model_type: str = "deepseek_v32"
    dtype: str = "F8_E4M3"
    hidden: int = 256
    moe: int = 256
    experts: int = 4
    layers: int = 3
    dense: int = 1
    mtp: int = 1
    fused: bool = False
    scale_dtype: str = "F32"
    file_bytes_max: int = 4 << 20
    seed: int = 1
    sparse: bool = False  # all weights zero, no disk space: for tests of a real checkpoint's size


@dataclass(frozen=True)
class PlannedTensor:
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


def config_of(spec: CheckpointSpec) -> dict[str, Any]:
    """A config.json whose host-side sizes are small."""
    config: dict[str, Any] = {
        "model_type": spec.model_type,
        "hidden_act": "silu",
        "hidden_size": spec.hidden,
        "intermediate_size": 384,
        "moe_intermediate_size": spec.moe,
        "num_attention_heads": 2,
        "num_hidden_layers": spec.layers,
        "tie_word_embeddings": False,
        "vocab_size": 64,
    }
    if spec.model_type.startswith("deepseek"):
        config |= {
            "first_k_dense_replace": spec.dense,
            "index_head_dim": 64,
            "index_n_heads": 2,
            "kv_lora_rank": 128,
            "n_routed_experts": spec.experts,
            "n_shared_experts": 1,
            "num_nextn_predict_layers": spec.mtp,
            "q_lora_rank": 128,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 32,
            "v_head_dim": 32,
        }
    else:
        config |= {"head_dim": 32, "num_experts": spec.experts, "num_key_value_heads": 1}
    if ARCHITECTURES[spec.model_type].text_config:
        config = {"model_type": spec.model_type, "text_config": config}
    if spec.dtype == "F8_E4M3":
        config["quantization_config"] = {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "weight_block_size": [128, 128],
        }
    return config


def planned_tensors(spec: CheckpointSpec) -> list[PlannedTensor]:
    """Every tensor of the checkpoint, layer by layer."""
    architecture = ARCHITECTURES[spec.model_type]
    outer = ConfigReader(Path("config.json"), config_of(spec))
    config = text_config_of(outer, architecture)
    shape = model_shape(config, architecture)
    tensors = []
    for name, size, quantised in expected_host_tensors(architecture, config, shape):
        tensors += _weight(name, size, spec if quantised else None)
    for layer in shape.layers:
        if spec.fused:
            both = (spec.experts, 2 * spec.moe, spec.hidden)
            down = (spec.experts, spec.hidden, spec.moe)
            tensors.append(
                PlannedTensor(fused_tensor(architecture, layer, "gate_up"), "BF16", both)
            )
            tensors.append(PlannedTensor(fused_tensor(architecture, layer, "down"), "BF16", down))
            continue
        for expert in range(spec.experts):
            for projection in ("gate", "up", "down"):
                size = (spec.moe, spec.hidden)
                name = expert_tensor(architecture, layer, expert, projection)
                tensors += _weight(name, size[::-1] if projection == "down" else size, spec)
    return tensors


def _weight(name: str, shape: tuple[int, ...], spec: CheckpointSpec | None) -> list[PlannedTensor]:
    """A weight, with its scales when it is FP8. ``spec`` None: not quantised."""
    if spec is None or spec.dtype == "BF16":
        return [PlannedTensor(name, "BF16", shape)]
    blocks = tuple(math.ceil(size / 128) for size in shape)
    return [
        PlannedTensor(name, spec.dtype, shape),
        PlannedTensor(name + "_scale_inv", spec.scale_dtype, blocks),
    ]


class RandomWeights:
    """Contents of tensors: slices of a pool of finite values, at random places."""

    def __init__(self, spec: CheckpointSpec, largest_bytes: int) -> None:
        self._rng = np.random.default_rng(spec.seed)
        size = max(POOL_BYTES_MIN, 2 * largest_bytes)
        codes = np.frombuffer(self._rng.bytes(size), np.uint8).copy()
        codes[(codes & 0x7F) == 0x7F] ^= 1
        self._codes = codes
        normal = self._rng.standard_normal(size // 8, np.float32) * np.float32(0.02)
        self._halves = np.tile((normal.view(np.uint32) >> 16).astype(np.uint16), 4)

    def bytes_of(self, tensor: PlannedTensor) -> npt.NDArray[np.uint8]:
        count = math.prod(tensor.shape)
        if tensor.dtype == "F8_E4M3":
            start = int(self._rng.integers(0, len(self._codes) - count + 1))
            return self._codes[start : start + count]
        if tensor.name.endswith("_scale_inv"):
            scale = np.exp2(self._rng.uniform(-14, -8, count)).astype(np.float32)
            if tensor.dtype == "F32":
                return scale.view(np.uint8)
            return (scale.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        start = int(self._rng.integers(0, len(self._halves) - count + 1))
        return self._halves[start : start + count].view(np.uint8)


def _files(tensors: list[PlannedTensor], file_bytes_max: int) -> Iterator[list[PlannedTensor]]:
    part: list[PlannedTensor] = []
    part_bytes = 0
    for tensor in tensors:
        if part and part_bytes + tensor.size_bytes > file_bytes_max:
            yield part
            part, part_bytes = [], 0
        part.append(tensor)
        part_bytes += tensor.size_bytes
    yield part


def header_bytes(entries: Mapping[str, Mapping[str, object]]) -> bytes:
    """A safetensors header, its length first, padded to 8 bytes with spaces."""
    raw = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw


def _write_file(file: IO[bytes], part: list[PlannedTensor], weights: RandomWeights | None) -> None:
    entries = {}
    offset = 0
    for tensor in part:
        end = offset + tensor.size_bytes
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    file.write(header_bytes(entries))
    if weights is None:
        file.truncate(file.tell() + offset)
        return
    for tensor in part:
        file.write(weights.bytes_of(tensor).data)


def write_checkpoint(directory: Path, spec: CheckpointSpec) -> Path:
    """Writes config, index and weight files; returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = planned_tensors(spec)
    largest = max(tensor.size_bytes for tensor in tensors)
    weights = None if spec.sparse else RandomWeights(spec, largest)
    parts = list(_files(tensors, spec.file_bytes_max))
    weight_map: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        name = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        with (directory / name).open("wb") as file:
            _write_file(file, part, weights)
        weight_map |= {tensor.name: name for tensor in part}
    index = {
        "metadata": {"total_size": sum(tensor.size_bytes for tensor in tensors)},
        "weight_map": weight_map,
    }
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "config.json").write_text(json.dumps(config_of(spec), indent=1))
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model-type", default="deepseek_v32", choices=sorted(ARCHITECTURES))
    parser.add_argument("--dtype", default="F8_E4M3", choices=("F8_E4M3", "BF16"))
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--moe", type=int, default=2048)
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--dense", type=int, default=1)
    parser.add_argument("--mtp", type=int, default=0)
    parser.add_argument("--fused", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sparse", action="store_true")
    arguments = vars(parser.parse_args())
    write_checkpoint(
        arguments.pop("out"), CheckpointSpec(file_bytes_max=4_300_000_000, **arguments)
    )


if __name__ == "__main__":
    main()
