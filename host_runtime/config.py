"""Model configuration: config.json of a DeepSeek-V3.2 checkpoint, checked key by key.

    config = load_config(Path("model"))                        # ConfigError names file, key, value
    generation = load_generation_config(Path("model"), config)

Whatever would change the arithmetic and is not implemented is refused here, by name, so that no
checkpoint is ever run with a silently different formula.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from host_runtime.errors import ConfigError

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
FP8_BLOCK = 128


@dataclass(frozen=True)
class YarnConfig:
    """YaRN (arXiv 2309.00071) as DeepSeek configures it."""

    factor: float
    original_positions: int
    beta_fast: float
    beta_slow: float
    mscale: float
    mscale_all_dim: float

    @staticmethod
    def _magnitude(factor: float, mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    @property
    def softmax_factor(self) -> float:
        """What the softmax scale is multiplied by: the square of the all-dimensions magnitude."""
        magnitude = self._magnitude(self.factor, self.mscale_all_dim)
        return magnitude * magnitude

    @property
    def rotation_factor(self) -> float:
        """What cos and sin are multiplied by; 1 when mscale equals mscale_all_dim, as in V3.2."""
        return self._magnitude(self.factor, self.mscale) / self._magnitude(
            self.factor, self.mscale_all_dim
        )


@dataclass(frozen=True)
class ModelConfig:
    """DeepSeek-V3.2; names and meaning follow config.json, sizes are counts of elements."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    first_k_dense_replace: int
    num_nextn_predict_layers: int
    num_attention_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    n_group: int
    topk_group: int
    norm_topk_prob: bool
    routed_scaling_factor: float
    rms_norm_eps: float
    rope_theta: float
    yarn: YarnConfig | None
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    fp8: bool

    @property
    def softmax_scale(self) -> float:
        """Scale of attention scores before softmax, YaRN's magnitude correction included."""
        scale = 1.0 / math.sqrt(self.qk_nope_head_dim + self.qk_rope_head_dim)
        return scale if self.yarn is None else scale * self.yarn.softmax_factor

    @property
    def mtp_layer(self) -> int | None:
        """Layer index of the MTP module in the checkpoint, None when the model has none."""
        return self.num_hidden_layers if self.num_nextn_predict_layers else None

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """Indices of all layers with routed experts, the MTP module's included."""
        last = self.num_hidden_layers + self.num_nextn_predict_layers
        return tuple(range(self.first_k_dense_replace, last))


@dataclass(frozen=True)
class GenerationConfig:
    """Defaults of the checkpoint's author; a request may override each but the EOS list."""

    eos_token_ids: tuple[int, ...]
    temperature: float
    top_p: float


# Keys that must have one value, because another one would ask for arithmetic that is not here.
_FIXED: dict[str, Any] = {
    "model_type": "deepseek_v32",
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "moe_layer_freq": 1,
    "tie_word_embeddings": False,
}
# Absent means the fixed value: transformers' own config class leaves these out.
_FIXED_OPTIONAL = {
    "topk_method", "scoring_func", "attention_bias", "mlp_bias", "moe_layer_freq",
    "tie_word_embeddings",
}  # fmt: skip
_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers",
    "num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
    "v_head_dim", "index_n_heads", "index_head_dim", "index_topk", "n_routed_experts",
    "n_shared_experts", "num_experts_per_tok", "n_group", "topk_group", "max_position_embeddings",
)  # fmt: skip
_OTHER_READ = {
    "first_k_dense_replace", "num_nextn_predict_layers", "norm_topk_prob", "routed_scaling_factor",
    "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "eos_token_id", "bos_token_id",
    "quantization_config", "num_key_value_heads", "architectures",
}  # fmt: skip
# Keys that training or other runtimes use and that change nothing in a forward pass here.
_NO_EFFECT = {
    "attention_dropout", "ep_size", "initializer_range", "pad_token_id", "torch_dtype", "dtype",
    "transformers_version", "use_cache", "auto_map", "aux_loss_alpha", "seq_aux", "pretraining_tp",
    "output_router_logits", "head_dim", "qk_head_dim", "name_or_path", "return_dict",
    "output_hidden_states", "output_attentions", "chunk_size_feed_forward", "is_encoder_decoder",
    "problem_type", "id2label", "label2id", "rope_interleave",
}  # fmt: skip


class _Reader:
    """One JSON object with typed access; every error names the file and the key."""

    def __init__(self, path: Path, raw: dict[str, Any], where: str = "") -> None:
        self.path, self.raw, self.where = path, raw, where

    def error(self, key: str, problem: str, hint: str = "") -> ConfigError:
        return ConfigError(f"{self.path}: {self.where}{key}: {problem}", hint)

    def get(self, key: str) -> Any:
        if key not in self.raw:
            raise self.error(key, "missing", "a DeepSeek-V3.2 config.json has this key")
        return self.raw[key]

    def size(self, key: str, least: int = 1) -> int:
        value = self.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.error(key, f"expected a whole number >= {least}, got {value!r}")
        return value

    def number(self, key: str) -> float:
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, f"expected a number, got {value!r}")
        if not (math.isfinite(value) and value > 0):
            raise self.error(key, f"expected a finite number > 0, got {value!r}")
        return float(value)

    def flag(self, key: str) -> bool:
        value = self.get(key)
        if not isinstance(value, bool):
            raise self.error(key, f"expected true or false, got {value!r}")
        return value


def load_config(model_dir: Path) -> ModelConfig:
    """Read and check model_dir/config.json. Raises ConfigError."""
    path = model_dir / CONFIG_FILE
    reader = _Reader(path, _read_object(path))
    _refuse_unsupported(reader)
    config = ModelConfig(
        **{key: reader.size(key) for key in _SIZES},
        first_k_dense_replace=reader.size("first_k_dense_replace", least=0),
        num_nextn_predict_layers=_mtp_layers(reader),
        norm_topk_prob=reader.flag("norm_topk_prob"),
        routed_scaling_factor=reader.number("routed_scaling_factor"),
        rms_norm_eps=reader.number("rms_norm_eps"),
        rope_theta=_rope_theta(reader),
        yarn=_yarn(reader),
        eos_token_ids=_token_ids(reader, "eos_token_id"),
        bos_token_id=next(iter(_token_ids(reader, "bos_token_id")), None),
        fp8=_is_fp8(reader),
    )
    _check_shapes(reader, config)
    return config


def load_generation_config(model_dir: Path, config: ModelConfig) -> GenerationConfig:
    """Read generation_config.json; where it is silent or absent, config.json and greedy apply."""
    path = model_dir / GENERATION_FILE
    reader = _Reader(path, _read_object(path) if path.exists() else {})
    sampled = "do_sample" not in reader.raw or reader.flag("do_sample")
    eos = _token_ids(reader, "eos_token_id") or config.eos_token_ids
    for token in eos:
        if token >= config.vocab_size:
            raise reader.error("eos_token_id", f"{token} is outside 0..{config.vocab_size - 1}")
    temperature = reader.raw.get("temperature", 1.0)
    top_p = reader.number("top_p") if "top_p" in reader.raw else 1.0
    if isinstance(temperature, bool) or not isinstance(temperature, int | float):
        raise reader.error("temperature", f"expected a number, got {temperature!r}")
    if temperature < 0 or top_p > 1:
        raise reader.error("temperature, top_p", f"out of range: {temperature!r}, {top_p!r}")
    return GenerationConfig(
        eos_token_ids=eos,
        temperature=float(temperature) if sampled and path.exists() else 0.0,
        top_p=top_p,
    )


def _read_object(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file", "give the directory of a Hugging Face checkpoint"
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: expected a JSON object, got {type(raw).__name__}")
    return raw


def _refuse_unsupported(reader: _Reader) -> None:
    for key, only in _FIXED.items():
        if key in _FIXED_OPTIONAL and key not in reader.raw:
            continue
        value = reader.get(key)
        if value != only:
            raise reader.error(key, f"{value!r} is not supported, only {only!r} is")
    known = {*_FIXED, *_SIZES, *_OTHER_READ, *_NO_EFFECT}
    unknown = [key for key in reader.raw if key not in known and not key.startswith("_")]
    if unknown:
        raise reader.error(
            ", ".join(sorted(unknown)),
            "unknown key",
            "remove it if it has no effect on inference; otherwise this model is not supported",
        )
    heads, kv_heads = reader.size("num_attention_heads"), reader.raw.get("num_key_value_heads")
    if kv_heads is not None and kv_heads != heads:
        raise reader.error(
            "num_key_value_heads", f"{kv_heads!r} is not num_attention_heads {heads}"
        )


def _mtp_layers(reader: _Reader) -> int:
    if "num_nextn_predict_layers" not in reader.raw:
        return 0
    layers = reader.size("num_nextn_predict_layers", least=0)
    if layers > 1:
        raise reader.error("num_nextn_predict_layers", f"{layers} is not supported, 0 and 1 are")
    return layers


def _rope_theta(reader: _Reader) -> float:
    if isinstance(reader.raw.get("rope_parameters"), dict):
        nested = _Reader(reader.path, reader.raw["rope_parameters"], "rope_parameters.")
        if "rope_theta" in nested.raw:
            return nested.number("rope_theta")
    return reader.number("rope_theta")


def _yarn(reader: _Reader) -> YarnConfig | None:
    name = "rope_parameters" if reader.raw.get("rope_parameters") else "rope_scaling"
    raw = reader.raw.get(name)
    if raw is None:
        return None
    if not isinstance(raw, dict):
        raise reader.error(name, f"expected an object or null, got {raw!r}")
    rope = _Reader(reader.path, raw, f"{name}.")
    kinds = {key: raw[key] for key in ("type", "rope_type") if key in raw}
    if set(kinds.values()) == {"default"}:
        return None
    if set(kinds.values()) != {"yarn"}:
        raise rope.error("type", f"{kinds or 'absent'} is not supported, only 'yarn' is")
    numbers = (
        "factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale",
        "mscale_all_dim",
    )  # fmt: skip
    unknown = set(raw) - {*numbers, "type", "rope_type", "rope_theta"}
    if unknown:
        raise rope.error(", ".join(sorted(unknown)), "unknown key: it would change the rotation")
    return YarnConfig(
        factor=rope.number("factor"),
        original_positions=rope.size("original_max_position_embeddings"),
        beta_fast=rope.number("beta_fast"),
        beta_slow=rope.number("beta_slow"),
        mscale=rope.number("mscale"),
        mscale_all_dim=rope.number("mscale_all_dim"),
    )


def _token_ids(reader: _Reader, key: str) -> tuple[int, ...]:
    value = reader.raw.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise reader.error(key, f"expected token ids, got {value!r}")
    return tuple(ids)


def _is_fp8(reader: _Reader) -> bool:
    raw = reader.raw.get("quantization_config")
    if raw is None:
        return False
    if not isinstance(raw, dict):
        raise reader.error("quantization_config", f"expected an object or null, got {raw!r}")
    quantization = _Reader(reader.path, raw, "quantization_config.")
    expected: dict[str, tuple[Any, ...]] = {
        "quant_method": ("fp8",),
        "fmt": ("e4m3",),
        "weight_block_size": ([FP8_BLOCK, FP8_BLOCK],),
        "activation_scheme": ("dynamic",),
        "scale_fmt": ("ue8m0", "float", None),
    }
    for key, allowed in expected.items():
        value = raw.get(key) if key in ("scale_fmt", "fmt") else quantization.get(key)
        if value not in allowed and not (key == "fmt" and value is None):
            raise quantization.error(key, f"{value!r} is not supported, only {allowed[0]!r} is")
    unknown = set(raw) - {*expected, "modules_to_not_convert", "ignored_layers"}
    if unknown:
        raise quantization.error(", ".join(sorted(unknown)), "unknown key")
    return True


def _check_shapes(reader: _Reader, config: ModelConfig) -> None:
    def require(holds: bool, key: str, problem: str) -> None:
        if not holds:
            raise reader.error(key, problem)

    index, rope = config.index_head_dim, config.qk_rope_head_dim
    group_size = config.n_routed_experts // config.n_group
    require(index & (index - 1) == 0, "index_head_dim", f"{index} is not a power of two (Hadamard)")
    require(rope % 2 == 0, "qk_rope_head_dim", f"{rope} is odd")
    require(rope <= index, "qk_rope_head_dim", f"{rope} is larger than index_head_dim {index}")
    require(
        config.n_routed_experts % config.n_group == 0 and group_size >= 2,
        "n_group",
        f"{config.n_routed_experts} experts do not make {config.n_group} groups of two or more",
    )
    require(config.topk_group <= config.n_group, "topk_group", "larger than n_group")
    require(
        config.num_experts_per_tok <= config.topk_group * group_size,
        "num_experts_per_tok",
        f"{config.num_experts_per_tok} is more than the chosen groups hold",
    )
    require(
        config.first_k_dense_replace <= config.num_hidden_layers,
        "first_k_dense_replace",
        "larger than num_hidden_layers",
    )
    for token in config.eos_token_ids:
        require(token < config.vocab_size, "eos_token_id", f"{token} is outside the vocabulary")
