"""A tiny random DeepSeek-V3.2 checkpoint, written with FP8 block scales, and its true weights.

Chosen so that what usually goes unseen is exercised: index_topk 16, YaRN beyond its original 64
positions, correction biases with negative sums, kv_a_proj of 192 rows (last scale block half full,
as upstream's 576 rows) and a dense MLP of 320 (partial last block in rows and in columns).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

BLOCK = 128
INDEX_FILE = "model.safetensors.index.json"

TINY: dict[str, Any] = {
    "architectures": ["DeepseekV32ForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "first_k_dense_replace": 2,
    "hidden_act": "silu",
    "hidden_size": 256,
    "index_head_dim": 128,
    "index_n_heads": 16,
    "index_topk": 16,
    "intermediate_size": 320,
    "kv_lora_rank": 128,
    "max_position_embeddings": 256,
    "model_type": "deepseek_v32",
    "moe_intermediate_size": 128,
    "moe_layer_freq": 1,
    "n_group": 4,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 128,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128],
    },
    "rms_norm_eps": 1e-6,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 4,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 64,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 2,
    "topk_method": "noaux_tc",
    "v_head_dim": 32,
    "vocab_size": 384,
}


@dataclass(frozen=True)
class TinyCheckpoint:
    """`stored` is what the files hold, `weights` the float32 values that it means."""

    path: Path
    stored: dict[str, torch.Tensor]
    weights: dict[str, torch.Tensor]


def write_tiny(path: Path, seed: int, **changes: Any) -> TinyCheckpoint:
    """Write config.json (TINY with `changes`), index and three shard files."""
    config = TINY | changes
    generator = torch.Generator().manual_seed(seed)
    stored: dict[str, torch.Tensor] = {}
    weights: dict[str, torch.Tensor] = {}
    for name, shape, kind in _tensors(config):
        _add(name, shape, kind, generator, stored, weights)
    for copy, original in (
        (f"model.layers.{config['num_hidden_layers']}.embed_tokens.weight", "model.embed_tokens"),
        (f"model.layers.{config['num_hidden_layers']}.shared_head.head.weight", "lm_head"),
    ):
        if config["num_nextn_predict_layers"]:
            stored[copy] = stored[f"{original}.weight"].clone()
            weights[copy] = weights[f"{original}.weight"]
    save(path, config, stored)
    return TinyCheckpoint(path, stored, weights)


def save(path: Path, config: dict[str, Any], stored: dict[str, torch.Tensor]) -> None:
    """Write the files of a checkpoint, tensors dealt out over three shards."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    shards: list[dict[str, torch.Tensor]] = [{}, {}, {}]
    for place, name in enumerate(stored):
        shards[place % 3][name] = stored[name]
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        file_name = f"model-{number:05d}-of-00003.safetensors"
        save_file(shard, path / file_name)
        weight_map.update(dict.fromkeys(shard, file_name))
    (path / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def _tensors(config: dict[str, Any]) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape and kind of every tensor but the MTP module's two copies."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    layers, mtp = config["num_hidden_layers"], config["num_nextn_predict_layers"]
    tensors: list[tuple[str, tuple[int, ...], str]] = [
        ("model.embed_tokens.weight", (vocabulary, hidden), "bf16"),
        ("model.norm.weight", (hidden,), "norm"),
        ("lm_head.weight", (vocabulary, hidden), "bf16"),
    ]
    for layer in range(layers + mtp):
        tensors += _layer_tensors(config, layer)
    if mtp:
        prefix = f"model.layers.{layers}."
        tensors += [
            (f"{prefix}enorm.weight", (hidden,), "norm"),
            (f"{prefix}hnorm.weight", (hidden,), "norm"),
            (f"{prefix}shared_head.norm.weight", (hidden,), "norm"),
            (f"{prefix}eh_proj.weight", (hidden, 2 * hidden), "bf16"),
        ]
    return tensors


def _layer_tensors(config: dict[str, Any], layer: int) -> list[tuple[str, tuple[int, ...], str]]:
    prefix, hidden = f"model.layers.{layer}.", config["hidden_size"]
    attention, indexer = f"{prefix}self_attn.", f"{prefix}self_attn.indexer."
    heads, q_rank, kv_rank = (
        config["num_attention_heads"],
        config["q_lora_rank"],
        config["kv_lora_rank"],
    )
    nope, rope, value = (
        config["qk_nope_head_dim"],
        config["qk_rope_head_dim"],
        config["v_head_dim"],
    )
    index_heads, index = config["index_n_heads"], config["index_head_dim"]
    tensors = [
        (f"{prefix}input_layernorm.weight", (hidden,), "norm"),
        (f"{prefix}post_attention_layernorm.weight", (hidden,), "norm"),
        (f"{attention}q_a_proj.weight", (q_rank, hidden), "fp8"),
        (f"{attention}q_a_layernorm.weight", (q_rank,), "norm"),
        (f"{attention}q_b_proj.weight", (heads * (nope + rope), q_rank), "fp8"),
        (f"{attention}kv_a_proj_with_mqa.weight", (kv_rank + rope, hidden), "fp8"),
        (f"{attention}kv_a_layernorm.weight", (kv_rank,), "norm"),
        (f"{attention}kv_b_proj.weight", (heads * (nope + value), kv_rank), "fp8"),
        (f"{attention}o_proj.weight", (hidden, heads * value), "fp8"),
        (f"{indexer}wq_b.weight", (index_heads * index, q_rank), "fp8"),
        (f"{indexer}wk.weight", (index, hidden), "fp8"),
        (f"{indexer}k_norm.weight", (index,), "norm32"),
        (f"{indexer}k_norm.bias", (index,), "bias"),
        (f"{indexer}weights_proj.weight", (index_heads, hidden), "bf16"),
    ]
    if layer < config["first_k_dense_replace"]:
        return tensors + _mlp_tensors(f"{prefix}mlp.", hidden, config["intermediate_size"])
    experts, inner = config["n_routed_experts"], config["moe_intermediate_size"]
    tensors += [
        (f"{prefix}mlp.gate.weight", (experts, hidden), "bf16"),
        (f"{prefix}mlp.gate.e_score_correction_bias", (experts,), "negative"),
    ]
    for expert in range(experts):
        tensors += _mlp_tensors(f"{prefix}mlp.experts.{expert}.", hidden, inner)
    shared = config["n_shared_experts"] * inner
    return tensors + _mlp_tensors(f"{prefix}mlp.shared_experts.", hidden, shared)


def _mlp_tensors(prefix: str, hidden: int, inner: int) -> list[tuple[str, tuple[int, ...], str]]:
    return [
        (f"{prefix}gate_proj.weight", (inner, hidden), "fp8"),
        (f"{prefix}up_proj.weight", (inner, hidden), "fp8"),
        (f"{prefix}down_proj.weight", (hidden, inner), "fp8"),
    ]


def _add(
    name: str,
    shape: tuple[int, ...],
    kind: str,
    generator: torch.Generator,
    stored: dict[str, torch.Tensor],
    weights: dict[str, torch.Tensor],
) -> None:
    values = torch.randn(shape, generator=generator)
    if kind == "fp8":
        codes, scale = quantise(values * 1.5 / shape[1] ** 0.5, generator)
        stored[name], stored[f"{name}_scale_inv"] = codes, scale
        weights[name] = expand(codes, scale)
        return
    if kind == "bf16":
        stored[name] = (values * 1.5 / shape[1] ** 0.5).to(torch.bfloat16)
    elif kind == "norm":
        stored[name] = (1 + 0.2 * values).to(torch.bfloat16)
    elif kind == "norm32":
        stored[name] = 1 + 0.2 * values
    elif kind == "bias":
        stored[name] = 0.2 * values
    else:  # with sigmoid scores around 0.5, most biased scores and group sums are negative
        stored[name] = 0.2 * values - 0.8
    weights[name] = stored[name].float()


def quantise(values: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """E4M3 codes and block scales that are no powers of two and differ from block to block."""
    grid = [-(-size // BLOCK) for size in values.shape]
    scale = (0.5 + torch.rand(grid, generator=generator)) * float(values.abs().max()) / 224
    codes = (values / _spread(scale, values.shape)).to(torch.float8_e4m3fn)
    return codes, scale


def expand(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The float32 values of codes and scales, element by element."""
    return codes.float() * _spread(scale, codes.shape)


def _spread(scale: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    row = torch.arange(shape[0]) // BLOCK
    column = torch.arange(shape[1]) // BLOCK
    return scale[row[:, None], column[None]]
