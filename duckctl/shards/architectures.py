"""Which tensors each supported architecture has: names, shapes, and who needs them.

A table, not code: every tensor of a checkpoint must match one row (or one ignore rule with its
reason), and every row must be there. Sources: the models' config files and checkpoint headers;
for DeepSeek-V3.2 the rows reproduce the published tensor count and payload size exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from duckctl.shards.errors import CheckpointError
from duckctl.shards.layout import BLOCK, PANEL_ROWS

Layers = Literal["once", "all", "dense", "moe", "mtp"]
Config = Mapping[str, object]
LAYERS_MAX = 256
EXPERTS_MAX = 65_536


@dataclass(frozen=True)
class TensorRule:
    """``name`` may hold {layer} and {expert}; ``shape`` names dimensions of the architecture."""

    name: str
    shape: tuple[str, ...]
    layers: Layers
    quantised: bool = False  # may be FP8 with a block-scale twin


@dataclass(frozen=True)
class IgnoreRule:
    pattern: str
    reason: str


@dataclass(frozen=True)
class Architecture:
    """One model type. ``dims`` computes the dimensions that the rules name."""

    model_type: str
    prefix: str  # of the layers that the rules describe, e.g. "model."
    dims: Callable[[ConfigReader], dict[str, int]]
    host_rules: tuple[TensorRule, ...]
    host_patterns: tuple[str, ...] = ()  # host tensors known by name only
    ignore_rules: tuple[IgnoreRule, ...] = ()
    fused_experts: bool = False  # [experts, 2 * moe, hidden] and [experts, hidden, moe] allowed
    text_config: str = ""  # key of the nested config


@dataclass(frozen=True)
class ModelShape:
    """What planning needs to know about a model."""

    model_type: str
    hidden_size: int
    moe_intermediate_size: int
    expert_count: int
    layers: tuple[int, ...]  # MoE layers in order, the MTP layer included
    dense_layers: tuple[int, ...]
    mtp_layers: tuple[int, ...]


class ConfigReader:
    """Typed access to config.json; a missing or odd value is named."""

    def __init__(self, path: Path, values: Config) -> None:
        self.path = path
        self.values = values

    def refuse(self, problem: str, hint: str = "") -> CheckpointError:
        return CheckpointError(f"{self.path}: {problem}", hint or "check the model directory")

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or not least <= value <= 1 << 31:
            raise self.refuse(f"'{key}' is {value!r}, expected a whole number >= {least}")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        value = self.values.get(key) or []
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise self.refuse(f"'{key}' is {value!r}, expected a list of whole numbers")
        return tuple(value)


def _deepseek_dims(config: ConfigReader) -> dict[str, int]:
    heads = config.integer("num_attention_heads")
    rope = config.integer("qk_rope_head_dim")
    nope = config.integer("qk_nope_head_dim")
    value = config.integer("v_head_dim")
    kv_lora = config.integer("kv_lora_rank")
    hidden = config.integer("hidden_size")
    moe = config.integer("moe_intermediate_size")
    return {
        "vocabulary": config.integer("vocab_size"),
        "hidden": hidden,
        "hidden_twice": 2 * hidden,
        "dense": config.integer("intermediate_size"),
        "moe": moe,
        "shared": moe * config.integer("n_shared_experts"),
        "experts": config.integer("n_routed_experts"),
        "q_lora": config.integer("q_lora_rank"),
        "kv_lora": kv_lora,
        "kv_a": kv_lora + rope,
        "q": heads * (nope + rope),
        "kv_b": heads * (nope + value),
        "o": heads * value,
    }


def _deepseek_v32_dims(config: ConfigReader) -> dict[str, int]:
    heads = config.integer("index_n_heads")
    size = config.integer("index_head_dim")
    return _deepseek_dims(config) | {
        "index": heads * size,
        "index_head": size,
        "index_heads": heads,
    }


def _qwen3_dims(config: ConfigReader) -> dict[str, int]:
    heads = config.integer("num_attention_heads")
    hidden = config.integer("hidden_size")
    head = config.integer("head_dim", default=hidden // heads)
    return {
        "vocabulary": config.integer("vocab_size"),
        "hidden": hidden,
        "dense": config.integer("intermediate_size", default=hidden),
        "moe": config.integer("moe_intermediate_size"),
        "experts": config.integer("num_experts"),
        "q": heads * head,
        "kv": config.integer("num_key_value_heads") * head,
        "head": head,
    }


def _layer(name: str, *shape: str, layers: Layers = "all", quantised: bool = False) -> TensorRule:
    return TensorRule("{prefix}layers.{layer}." + name, shape, layers, quantised)


_EMBEDDING_RULES = (
    TensorRule("{prefix}embed_tokens.weight", ("vocabulary", "hidden"), "once"),
    TensorRule("{prefix}norm.weight", ("hidden",), "once"),
    TensorRule("lm_head.weight", ("vocabulary", "hidden"), "once"),
    _layer("input_layernorm.weight", "hidden"),
    _layer("post_attention_layernorm.weight", "hidden"),
)
_DENSE_MLP_RULES = (
    _layer("mlp.gate_proj.weight", "dense", "hidden", layers="dense", quantised=True),
    _layer("mlp.up_proj.weight", "dense", "hidden", layers="dense", quantised=True),
    _layer("mlp.down_proj.weight", "hidden", "dense", layers="dense", quantised=True),
    _layer("mlp.gate.weight", "experts", "hidden", layers="moe"),
)
_DEEPSEEK_RULES = (
    *_EMBEDDING_RULES,
    *_DENSE_MLP_RULES,
    _layer("self_attn.q_a_proj.weight", "q_lora", "hidden", quantised=True),
    _layer("self_attn.q_a_layernorm.weight", "q_lora"),
    _layer("self_attn.q_b_proj.weight", "q", "q_lora", quantised=True),
    _layer("self_attn.kv_a_proj_with_mqa.weight", "kv_a", "hidden", quantised=True),
    _layer("self_attn.kv_a_layernorm.weight", "kv_lora"),
    _layer("self_attn.kv_b_proj.weight", "kv_b", "kv_lora", quantised=True),
    _layer("self_attn.o_proj.weight", "hidden", "o", quantised=True),
    _layer("mlp.gate.e_score_correction_bias", "experts", layers="moe"),
    _layer("mlp.shared_experts.gate_proj.weight", "shared", "hidden", layers="moe", quantised=True),
    _layer("mlp.shared_experts.up_proj.weight", "shared", "hidden", layers="moe", quantised=True),
    _layer("mlp.shared_experts.down_proj.weight", "hidden", "shared", layers="moe", quantised=True),
    _layer("embed_tokens.weight", "vocabulary", "hidden", layers="mtp"),
    _layer("enorm.weight", "hidden", layers="mtp"),
    _layer("hnorm.weight", "hidden", layers="mtp"),
    _layer("eh_proj.weight", "hidden", "hidden_twice", layers="mtp"),
    _layer("shared_head.norm.weight", "hidden", layers="mtp"),
    _layer("shared_head.head.weight", "vocabulary", "hidden", layers="mtp"),
)
_INDEXER_RULES = (
    _layer("self_attn.indexer.wq_b.weight", "index", "q_lora", quantised=True),
    _layer("self_attn.indexer.wk.weight", "index_head", "hidden", quantised=True),
    _layer("self_attn.indexer.k_norm.weight", "index_head"),
    _layer("self_attn.indexer.k_norm.bias", "index_head"),
    _layer("self_attn.indexer.weights_proj.weight", "index_heads", "hidden"),
)
_QWEN3_RULES = (
    *_EMBEDDING_RULES,
    *_DENSE_MLP_RULES,
    _layer("self_attn.q_proj.weight", "q", "hidden", quantised=True),
    _layer("self_attn.k_proj.weight", "kv", "hidden", quantised=True),
    _layer("self_attn.v_proj.weight", "kv", "hidden", quantised=True),
    _layer("self_attn.o_proj.weight", "hidden", "q", quantised=True),
    _layer("self_attn.q_norm.weight", "head"),
    _layer("self_attn.k_norm.weight", "head"),
)
_ROTARY = IgnoreRule(
    r".*\.rotary_emb\.inv_freq", "rotary frequencies are computed from config.json"
)

ARCHITECTURES: Mapping[str, Architecture] = {
    entry.model_type: entry
    for entry in (
        Architecture(
            "deepseek_v32",
            "model.",
            _deepseek_v32_dims,
            _DEEPSEEK_RULES + _INDEXER_RULES,
            ignore_rules=(_ROTARY,),
        ),
        Architecture(
            "deepseek_v3", "model.", _deepseek_dims, _DEEPSEEK_RULES, ignore_rules=(_ROTARY,)
        ),
        Architecture("qwen3_moe", "model.", _qwen3_dims, _QWEN3_RULES, ignore_rules=(_ROTARY,)),
        Architecture(
            "qwen3_5_moe",
            "model.language_model.",
            _qwen3_dims,
            (*_EMBEDDING_RULES, _layer("mlp.gate.weight", "experts", "hidden", layers="moe")),
            host_patterns=(
                r"layers\.\d+\.(self_attn|linear_attn)\..+",
                r"layers\.\d+\.mlp\.shared_expert\..+",
                r"layers\.\d+\.mlp\.shared_expert_gate\.weight",
            ),
            ignore_rules=(
                IgnoreRule(r"model\.visual\..*", "the vision tower is not used: text only"),
                IgnoreRule(r"mtp\..*", "the MTP module of this architecture is not used"),
                _ROTARY,
            ),
            fused_experts=True,
            text_config="text_config",
        ),
    )
}


def architecture_of(config: ConfigReader) -> Architecture:
    """The table entry of config.json's model_type; an unknown one is refused."""
    model_type = config.values.get("model_type")
    entry = ARCHITECTURES.get(model_type) if isinstance(model_type, str) else None
    if entry is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise config.refuse(
            f"model_type {model_type!r} is not supported", f"supported model types: {known}"
        )
    return entry


def text_config_of(config: ConfigReader, architecture: Architecture) -> ConfigReader:
    """The part of config.json that describes the language model."""
    if not architecture.text_config:
        return config
    nested = config.values.get(architecture.text_config)
    if not isinstance(nested, dict):
        raise config.refuse(f"'{architecture.text_config}' is missing")
    return ConfigReader(config.path, nested)


def model_shape(config: ConfigReader, architecture: Architecture) -> ModelShape:
    """Sizes and layer lists; combinations that the packed layout cannot hold are refused."""
    dims = architecture.dims(config)
    layer_count = config.integer("num_hidden_layers")
    mtp_count = config.integer("num_nextn_predict_layers", default=0, least=0)
    if architecture.model_type not in ("deepseek_v3", "deepseek_v32"):
        mtp_count = 0
    if layer_count + mtp_count > LAYERS_MAX:
        raise config.refuse(f"{layer_count + mtp_count} layers, at most {LAYERS_MAX} are supported")
    mtp_layers = tuple(range(layer_count, layer_count + mtp_count))
    dense_layers = _dense_layers(config, layer_count)
    layers = tuple(i for i in range(layer_count) if i not in dense_layers) + mtp_layers
    if not layers:
        raise config.refuse("the model has no MoE layer", "dense models need no ducks")
    if dims["hidden"] % BLOCK:
        raise config.refuse(f"'hidden_size' {dims['hidden']} is not a multiple of {BLOCK}")
    if dims["moe"] % PANEL_ROWS:
        raise config.refuse(
            f"'moe_intermediate_size' {dims['moe']} is not a multiple of {PANEL_ROWS}"
        )
    if dims["experts"] > EXPERTS_MAX:
        raise config.refuse(f"{dims['experts']} experts, at most {EXPERTS_MAX} are supported")
    if config.values.get("hidden_act", "silu") != "silu":
        raise config.refuse(
            f"'hidden_act' is {config.values['hidden_act']!r}; the expert kernels compute 'silu'"
        )
    return ModelShape(
        architecture.model_type,
        dims["hidden"],
        dims["moe"],
        dims["experts"],
        layers,
        dense_layers,
        mtp_layers,
    )


def _dense_layers(config: ConfigReader, layer_count: int) -> tuple[int, ...]:
    leading = config.integer("first_k_dense_replace", default=0, least=0)
    step = config.integer("decoder_sparse_step", default=1)
    if config.integer("moe_layer_freq", default=1) != 1:
        raise config.refuse("'moe_layer_freq' other than 1 is not supported")
    named = set(config.integers("mlp_only_layers"))
    return tuple(i for i in range(layer_count) if i < leading or i in named or (i + 1) % step != 0)


def expected_host_tensors(
    architecture: Architecture, config: ConfigReader, shape: ModelShape
) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """Name, shape and quantised of every host-side tensor that must be there."""
    dims = architecture.dims(config)
    body = tuple(range(shape.mtp_layers[0] if shape.mtp_layers else _layer_end(shape)))
    layer_sets: dict[Layers, tuple[int, ...]] = {
        "once": (0,),
        "all": body + shape.mtp_layers,
        "dense": shape.dense_layers,
        "moe": shape.layers,
        "mtp": shape.mtp_layers,
    }
    tied = config.values.get("tie_word_embeddings") is True
    for rule in architecture.host_rules:
        if rule.name == "lm_head.weight" and tied:
            continue
        size = tuple(dims[name] for name in rule.shape)
        for layer in layer_sets[rule.layers]:
            name = rule.name.format(prefix=architecture.prefix, layer=layer)
            yield name, size, rule.quantised


def _layer_end(shape: ModelShape) -> int:
    return max((*shape.layers, *shape.dense_layers)) + 1


def expert_tensor(architecture: Architecture, layer: int, expert: int, projection: str) -> str:
    """Name of one expert's matrix, e.g. model.layers.3.mlp.experts.7.gate_proj.weight."""
    return f"{architecture.prefix}layers.{layer}.mlp.experts.{expert}.{projection}_proj.weight"


def fused_tensor(architecture: Architecture, layer: int, projection: str) -> str:
    """Name of all experts' matrices in one tensor: 'gate_up' or 'down'."""
    return f"{architecture.prefix}layers.{layer}.mlp.experts.{projection}_proj"


def is_host_pattern(architecture: Architecture, name: str) -> bool:
    """Whether a tensor without a row of its own is known to be the host's."""
    if not name.startswith(architecture.prefix):
        return False
    rest = name[len(architecture.prefix) :]
    return any(re.fullmatch(pattern, rest) for pattern in architecture.host_patterns)


def ignore_reason(architecture: Architecture, name: str) -> str | None:
    """Why a tensor is not needed, or None when no rule covers it."""
    for rule in architecture.ignore_rules:
        if re.fullmatch(rule.pattern, name):
            return rule.reason
    return None
