"""Model configuration: config.json of a DeepSeek-V3.2 checkpoint, checked key by key.

    config = load_config(Path("model"))                # FileFormatError names file, key and value
    generation = load_generation_config(Path("model"), config)

Whatever would change the arithmetic and is not implemented is refused here, by name, so that no
checkpoint is ever run with a silently different formula.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from host_runtime.jsonfile import JsonObject, describe, read_json_object

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
    """Defaults of the checkpoint's author; a request may override each but the EOS list.

    temperature 0 is greedy; top_p 1 and top_k 0 switch these filters off.
    """

    eos_token_ids: tuple[int, ...]
    temperature: float
    top_p: float
    top_k: int


# Keys that must have one value, because another one would ask for arithmetic that is not here.
_FIXED: dict[str, Any] = {
    "model_type": "deepseek_v32",
    "hidden_act": "silu",
}
# The same, but absent means this value: some writers of config.json leave them out.
_FIXED_IF_PRESENT: dict[str, Any] = {
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "attention_bias": False,
    "mlp_bias": False,
    "moe_layer_freq": 1,
    "tie_word_embeddings": False,
}
_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers",
    "num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
    "v_head_dim", "index_n_heads", "index_head_dim", "index_topk", "n_routed_experts",
    "n_shared_experts", "num_experts_per_tok", "n_group", "topk_group", "max_position_embeddings",
)  # fmt: skip
# Keys that training or other runtimes use and that change nothing in a forward pass here.
_NO_EFFECT = (
    "architectures", "attention_dropout", "ep_size", "initializer_range", "pad_token_id", "dtype",
    "torch_dtype", "transformers_version", "use_cache", "auto_map", "aux_loss_alpha", "seq_aux",
    "pretraining_tp", "output_router_logits", "head_dim", "qk_head_dim", "_name_or_path",
    "return_dict", "output_hidden_states", "output_attentions", "chunk_size_feed_forward",
    "is_encoder_decoder", "problem_type", "id2label", "label2id", "rope_interleave",
)  # fmt: skip
_GENERATION_NO_EFFECT = (
    "_from_model_config", "bos_token_id", "pad_token_id", "transformers_version", "use_cache",
    "max_length", "max_new_tokens",
)  # fmt: skip
_SIZE_MAX = 1 << 31


def load_config(model_dir: Path) -> ModelConfig:
    """Read and check model_dir/config.json. Raises FileFormatError."""
    raw = read_json_object(model_dir / CONFIG_FILE, "model configuration")
    for key, only in {**_FIXED, **_FIXED_IF_PRESENT}.items():
        if key in _FIXED or raw.has(key):
            _require_value(raw, key, (only,))
    _skip(raw, _NO_EFFECT)
    theta, yarn = _rope(raw)
    config = ModelConfig(
        **{key: raw.integer(key, 1, _SIZE_MAX) for key in _SIZES},
        first_k_dense_replace=raw.integer("first_k_dense_replace", 0, _SIZE_MAX),
        num_nextn_predict_layers=_optional_integer(raw, "num_nextn_predict_layers", 0, 1),
        norm_topk_prob=_flag(raw, "norm_topk_prob"),
        routed_scaling_factor=_number(raw, "routed_scaling_factor"),
        rms_norm_eps=_number(raw, "rms_norm_eps"),
        rope_theta=theta,
        yarn=yarn,
        eos_token_ids=_token_ids(raw, "eos_token_id"),
        bos_token_id=next(iter(_token_ids(raw, "bos_token_id")), None),
        fp8=_is_fp8(raw),
    )
    if raw.has("num_key_value_heads"):
        _require_value(raw, "num_key_value_heads", (config.num_attention_heads,))
    raw.finish()
    _check_shapes(raw, config)
    return config


def load_generation_config(model_dir: Path, config: ModelConfig) -> GenerationConfig:
    """Read generation_config.json; without that file EOS is config.json's and decoding greedy."""
    path = model_dir / GENERATION_FILE
    if not path.exists():
        return GenerationConfig(config.eos_token_ids, temperature=0.0, top_p=1.0, top_k=0)
    raw = read_json_object(path, "generation configuration")
    _skip(raw, _GENERATION_NO_EFFECT)
    eos = _token_ids(raw, "eos_token_id") or config.eos_token_ids
    for token in eos:
        if token >= config.vocab_size:
            raise raw.fail("eos_token_id", f"{token} is outside 0..{config.vocab_size - 1}")
    sampled = _flag(raw, "do_sample") if raw.has("do_sample") else raw.has("temperature")
    temperature = _number(raw, "temperature") if raw.has("temperature") else 1.0
    top_p = _number(raw, "top_p") if raw.has("top_p") else 1.0
    if top_p > 1:
        raise raw.fail("top_p", f"{top_p} is above 1")
    top_k = _optional_integer(raw, "top_k", 0, _SIZE_MAX)
    raw.finish()
    return GenerationConfig(eos, temperature if sampled else 0.0, top_p, top_k)


def _require_value(raw: JsonObject, key: str, allowed: tuple[Any, ...]) -> None:
    value = raw.take(key)
    # 1 == True in Python, so the types are compared too
    if not any(value == one and type(value) is type(one) for one in allowed):
        names = " or ".join(describe(one) for one in allowed)
        raise raw.fail(key, f"{describe(value)} is not supported, only {names} is")


def _skip(raw: JsonObject, keys: tuple[str, ...]) -> None:
    for key in keys:
        if raw.has(key):
            raw.take(key)


def _number(raw: JsonObject, key: str) -> float:
    value = raw.take(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        raise raw.fail(key, f"expected a number above 0, found {describe(value)}")
    return float(value)


def _flag(raw: JsonObject, key: str) -> bool:
    value = raw.take(key)
    if not isinstance(value, bool):
        raise raw.fail(key, f"expected true or false, found {describe(value)}")
    return value


def _optional_integer(raw: JsonObject, key: str, low: int, high: int) -> int:
    return raw.integer(key, low, high) if raw.has(key) else 0


def _token_ids(raw: JsonObject, key: str) -> tuple[int, ...]:
    value = raw.take(key) if raw.has(key) else None
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise raw.fail(key, f"expected token ids, found {describe(value)}")
    return tuple(ids)


def _rope(raw: JsonObject) -> tuple[float, YarnConfig | None]:
    """rope_theta and YaRN from rope_scaling, or both from the newer rope_parameters."""
    name = "rope_parameters" if raw.has("rope_parameters") else "rope_scaling"
    rope = JsonObject({}, raw.where)
    if raw.has(name):
        value = raw.take(name)
        if value is not None:
            rope = JsonObject(value, f"{raw.where}: {name}")
    theta = _number(rope if rope.has("rope_theta") else raw, "rope_theta")
    kinds = [key for key in ("type", "rope_type") if rope.has(key)]
    if not kinds:
        rope.finish()
        return theta, None
    if all(rope.take(key) == "default" for key in kinds):
        rope.finish()
        return theta, None
    for key in kinds:
        _require_value(rope, key, ("yarn",))
    yarn = YarnConfig(
        factor=_number(rope, "factor"),
        original_positions=rope.integer("original_max_position_embeddings", 1, _SIZE_MAX),
        beta_fast=_number(rope, "beta_fast"),
        beta_slow=_number(rope, "beta_slow"),
        mscale=_number(rope, "mscale"),
        mscale_all_dim=_number(rope, "mscale_all_dim"),
    )
    rope.finish()  # another key would change the rotation
    return theta, yarn


def _is_fp8(raw: JsonObject) -> bool:
    if not raw.has("quantization_config"):
        return False
    value = raw.take("quantization_config")
    if value is None:
        return False
    quantization = JsonObject(value, f"{raw.where}: quantization_config")
    _require_value(quantization, "quant_method", ("fp8",))
    _require_value(quantization, "weight_block_size", ([FP8_BLOCK, FP8_BLOCK],))
    if quantization.has("fmt"):
        _require_value(quantization, "fmt", ("e4m3",))
    # how other runtimes quantise activations; here they stay float32
    _skip(quantization, ("activation_scheme", "scale_fmt", "modules_to_not_convert"))
    quantization.finish()
    return True


def _check_shapes(raw: JsonObject, config: ModelConfig) -> None:
    def require(holds: bool, key: str, problem: str) -> None:
        if not holds:
            raise raw.fail(key, problem)

    index, rope = config.index_head_dim, config.qk_rope_head_dim
    experts, groups = config.n_routed_experts, config.n_group
    group_size = experts // groups
    require(index & (index - 1) == 0, "index_head_dim", f"{index} is not a power of two (Hadamard)")
    require(rope % 2 == 0, "qk_rope_head_dim", f"{rope} is odd")
    require(rope <= index, "qk_rope_head_dim", f"{rope} is larger than index_head_dim {index}")
    even = experts % groups == 0 and group_size >= 2
    require(even, "n_group", f"{experts} experts do not make {groups} groups of two or more")
    require(config.topk_group <= groups, "topk_group", f"more than n_group {groups}")
    fits = config.num_experts_per_tok <= config.topk_group * group_size
    require(fits, "num_experts_per_tok", "more than the chosen groups hold")
    dense = config.first_k_dense_replace <= config.num_hidden_layers
    require(dense, "first_k_dense_replace", "more than num_hidden_layers")
    for token in config.eos_token_ids:
        require(token < config.vocab_size, "eos_token_id", f"{token} is outside the vocabulary")
