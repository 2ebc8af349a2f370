"""config.json is read strictly: each unsupported or missing value is refused by its name."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from host_kit import DUCKLET
from tiny_v32 import TINY

from host_runtime.config import load_config, load_generation_config
from host_runtime.errors import FileFormatError

# The published configuration of DeepSeek-V3.2 (facts, not a file of the repository).
V32: dict[str, Any] = TINY | {
    "ep_size": 1,
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "index_n_heads": 64,
    "index_topk": 2048,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "n_routed_experts": 256,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "rope_scaling": TINY["rope_scaling"] | {"factor": 40, "original_max_position_embeddings": 4096},
    "topk_group": 4,
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 129280,
}
ABSENT = object()


def _write(directory: Path, config: dict[str, Any]) -> Path:
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def _changed(path: str, value: object) -> dict[str, Any]:
    """V32 with the value at a dotted path replaced or, for ABSENT, removed."""
    config = copy.deepcopy(V32)
    *parents, key = path.split(".")
    place = config
    for parent in parents:
        place = place[parent]
    if value is ABSENT:
        del place[key]
    else:
        place[key] = value
    return config


def test_the_real_configuration(tmp_path: Path) -> None:
    config = load_config(_write(tmp_path, V32))
    assert config.softmax_scale == pytest.approx(0.1352338, abs=5e-8)
    assert config.yarn is not None
    assert config.yarn.rotation_factor == 1.0
    assert config.mtp_layer == 61
    assert config.moe_layers == tuple(range(3, 62))
    assert config.eos_token_ids == (1,)
    assert config.fp8


def test_ducklet_and_its_generation_defaults() -> None:
    config = load_config(DUCKLET)
    generation = load_generation_config(DUCKLET, config)
    assert config.moe_layers == (1, 2, 3, 4, 5)
    assert (generation.eos_token_ids, generation.temperature) == ((1,), 0.6)
    assert (generation.top_p, generation.top_k) == (0.95, 0)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("model_type", "deepseek_v3", 'model_type: "deepseek_v3" is not supported'),
        ("model_type", ABSENT, "'model_type' is missing"),
        ("topk_method", "greedy", 'topk_method: "greedy" is not supported'),
        ("scoring_func", "softmax", 'scoring_func: "softmax" is not supported'),
        ("hidden_act", "gelu", 'hidden_act: "gelu" is not supported'),
        ("attention_bias", True, "attention_bias: true is not supported"),
        ("attention_bias", 0, "attention_bias: 0 is not supported"),
        ("moe_layer_freq", 2, "moe_layer_freq: 2 is not supported"),
        ("tie_word_embeddings", True, "tie_word_embeddings: true is not supported"),
        ("num_key_value_heads", 8, "num_key_value_heads: 8 is not supported, only 128 is"),
        ("num_nextn_predict_layers", 2, "num_nextn_predict_layers: expected a whole number from 0"),
        ("q_lora_rank", None, "q_lora_rank: expected a whole number"),
        ("hidden_size", "7168", "hidden_size: expected a whole number"),
        ("hidden_size", ABSENT, "'hidden_size' is missing"),
        ("index_topk", 0, "index_topk: expected a whole number from 1"),
        ("norm_topk_prob", 1, "norm_topk_prob: expected true or false"),
        ("rms_norm_eps", 0, "rms_norm_eps: expected a number above 0"),
        ("routed_scaling_factor", "2.5", "routed_scaling_factor: expected a number above 0"),
        ("eos_token_id", [1, -1], "eos_token_id: expected token ids"),
        ("eos_token_id", 129280, "eos_token_id: 129280 is outside the vocabulary"),
        ("n_group", 7, "n_group: 256 experts do not make 7 groups"),
        ("n_group", 256, "n_group: 256 experts do not make 256 groups of two or more"),
        ("topk_group", 9, "topk_group: more than n_group 8"),
        ("num_experts_per_tok", 129, "num_experts_per_tok: more than the chosen groups hold"),
        ("index_head_dim", 96, "index_head_dim: 96 is not a power of two"),
        ("qk_rope_head_dim", 63, "qk_rope_head_dim: 63 is odd"),
        ("qk_rope_head_dim", 256, "larger than index_head_dim 128"),
        ("first_k_dense_replace", 62, "first_k_dense_replace: more than num_hidden_layers"),
        ("sliding_window", 128, "unknown key 'sliding_window'"),
        ("rope_scaling.type", "linear", 'type: "linear" is not supported, only "yarn" is'),
        ("rope_scaling.factor", ABSENT, "'factor' is missing"),
        ("rope_scaling.truncate", False, "unknown key 'truncate'"),
        ("rope_scaling", "yarn", "rope_scaling: expected an object"),
        ("quantization_config.quant_method", "gptq", 'quant_method: "gptq" is not supported'),
        ("quantization_config.fmt", "e5m2", 'fmt: "e5m2" is not supported'),
        ("quantization_config.weight_block_size", [64, 64], "weight_block_size: [64, 64] is not"),
        ("quantization_config.bits", 8, "unknown key 'bits'"),
    ],
)
def test_refusals(tmp_path: Path, path: str, value: object, message: str) -> None:
    _write(tmp_path, _changed(path, value))
    with pytest.raises(FileFormatError) as error:
        load_config(tmp_path)
    assert message in error.value.message
    assert str(tmp_path / "config.json") in error.value.message


@pytest.mark.parametrize("text", [None, "{", "[]", '{"model_type": "a", "model_type": "b"}'])
def test_unreadable_file(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(FileFormatError, match=r"config\.json"):
        load_config(tmp_path)


def test_rope_without_yarn_and_in_newer_form(tmp_path: Path) -> None:
    plain = load_config(_write(tmp_path, _changed("rope_scaling", None)))
    assert plain.yarn is None
    assert plain.softmax_scale == pytest.approx(192**-0.5)
    newer = _changed("rope_scaling", ABSENT)
    del newer["rope_theta"]
    newer["rope_parameters"] = V32["rope_scaling"] | {"rope_type": "yarn", "rope_theta": 10000.0}
    assert load_config(_write(tmp_path, newer)) == load_config(_write(tmp_path, V32))


def test_unequal_magnitudes_scale_the_rotation(tmp_path: Path) -> None:
    config = load_config(_write(tmp_path, _changed("rope_scaling.mscale", 0.5)))
    assert config.yarn is not None
    assert config.yarn.rotation_factor == pytest.approx((0.05 * 3.6888795 + 1) / 1.36888795)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"eos_token_id": 400}, "eos_token_id: 400 is outside 0..383"),
        ({"top_p": 1.5}, "top_p: 1.5 is above 1"),
        ({"temperature": -1}, "temperature: expected a number above 0"),
        ({"repetition_penalty": 1.1}, "unknown key 'repetition_penalty'"),
    ],
)
def test_generation_refusals(tmp_path: Path, raw: dict[str, Any], message: str) -> None:
    config = load_config(_write(tmp_path, TINY))
    (tmp_path / "generation_config.json").write_text(json.dumps(raw))
    with pytest.raises(FileFormatError) as error:
        load_generation_config(tmp_path, config)
    assert message in error.value.message


def test_generation_defaults(tmp_path: Path) -> None:
    config = load_config(_write(tmp_path, TINY))
    assert load_generation_config(tmp_path, config).temperature == 0.0
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": [1, 3], "do_sample": False, "temperature": 0.6}))
    generation = load_generation_config(tmp_path, config)
    assert (generation.eos_token_ids, generation.temperature) == ((1, 3), 0.0)
