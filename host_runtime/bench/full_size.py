"""Full-size configurations without a checkpoint."""

from __future__ import annotations

from dataclasses import replace

from host_runtime.config import GenerationConfig, ModelConfig, YarnConfig
from host_runtime.errors import HostError

GENERATION = GenerationConfig((1,), temperature=0.0, top_p=1.0, top_k=0)

# config.json of deepseek-ai/DeepSeek-V3.2
_DEEPSEEK_V32 = ModelConfig(
    vocab_size=129280,
    hidden_size=7168,
    intermediate_size=18432,
    moe_intermediate_size=2048,
    num_hidden_layers=61,
    first_k_dense_replace=3,
    num_nextn_predict_layers=1,
    num_attention_heads=128,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    index_n_heads=64,
    index_head_dim=128,
    index_topk=2048,
    n_routed_experts=256,
    n_shared_experts=1,
    num_experts_per_tok=8,
    n_group=8,
    topk_group=4,
    norm_topk_prob=True,
    routed_scaling_factor=2.5,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    yarn=YarnConfig(40.0, 4096, 32.0, 1.0, 1.0, 1.0),
    max_position_embeddings=163840,
    eos_token_ids=(1,),
    bos_token_id=0,
    fp8=True,
)
MODELS = {"deepseek-v3.2": _DEEPSEEK_V32}


def full_size(name: str, layers: int | None = None) -> ModelConfig:
    """The configuration of that name, with fewer layers if asked for."""
    if name not in MODELS:
        raise HostError(f"no full-size configuration {name!r}", f"known: {', '.join(MODELS)}")
    config = MODELS[name]
    return config if layers is None else replace(config, num_hidden_layers=layers)
