"""What the host's part of the model is made of: every tensor by name, and how they are fused.

The one place that knows it: layers are built from it, and the host file is written from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from host_runtime.config import ModelConfig


@dataclass(frozen=True)
class Part:
    """One tensor [rows, columns] of a fused matrix."""

    name: str
    rows: int


@dataclass(frozen=True)
class Fused:
    """Tensors with the same input that are read as one matrix: FP8 ones first, in order."""

    parts: tuple[Part, ...]
    columns: int


@dataclass(frozen=True)
class Table:
    """An unquantised tensor [rows, columns] that is looked up, not multiplied."""

    name: str
    rows: int
    columns: int


@dataclass(frozen=True)
class Vector:
    """A tensor [size]: gains, biases."""

    name: str
    size: int


@dataclass(frozen=True)
class LayerParts:
    """One decoder layer. ``router_bias`` is None in dense layers."""

    input_norm: Vector
    post_norm: Vector
    query_norm: Vector
    latent_norm: Vector
    index_norm: Vector
    index_norm_bias: Vector
    router_bias: Vector | None
    first: Fused  # q_a, index key, kv_a, index weights
    second: Fused  # q_b, index query
    kv_b: Fused
    output: Fused
    gate_up: Fused  # gate, up, router; of the shared expert in MoE layers
    down: Fused

    @property
    def all(self) -> tuple[Fused | Vector, ...]:
        found = (getattr(self, name) for name in self.__dataclass_fields__)
        return tuple(part for part in found if part is not None)


def inner_size(c: ModelConfig, index: int) -> int:
    """Rows of gate and up: the dense MLP's, or those of the shared expert."""
    is_dense = index < c.first_k_dense_replace
    return c.intermediate_size if is_dense else c.n_shared_experts * c.moe_intermediate_size


def layer_parts(c: ModelConfig, index: int) -> LayerParts:
    """Names and sizes of layer `index` of the checkpoint, the MTP module's included."""
    prefix, hidden, heads = f"model.layers.{index}.", c.hidden_size, c.num_attention_heads
    own, inner = f"{prefix}self_attn.", inner_size(c, index)
    is_moe = index >= c.first_k_dense_replace
    mlp = f"{prefix}mlp." + ("shared_experts." if is_moe else "")
    head_width = c.qk_nope_head_dim + c.qk_rope_head_dim
    router = (Part(f"{prefix}mlp.gate.weight", c.n_routed_experts),) if is_moe else ()
    return LayerParts(
        input_norm=Vector(f"{prefix}input_layernorm.weight", hidden),
        post_norm=Vector(f"{prefix}post_attention_layernorm.weight", hidden),
        query_norm=Vector(f"{own}q_a_layernorm.weight", c.q_lora_rank),
        latent_norm=Vector(f"{own}kv_a_layernorm.weight", c.kv_lora_rank),
        index_norm=Vector(f"{own}indexer.k_norm.weight", c.index_head_dim),
        index_norm_bias=Vector(f"{own}indexer.k_norm.bias", c.index_head_dim),
        router_bias=Vector(f"{prefix}mlp.gate.e_score_correction_bias", c.n_routed_experts)
        if is_moe
        else None,
        first=Fused(
            (
                Part(f"{own}q_a_proj.weight", c.q_lora_rank),
                Part(f"{own}indexer.wk.weight", c.index_head_dim),
                Part(f"{own}kv_a_proj_with_mqa.weight", c.kv_lora_rank + c.qk_rope_head_dim),
                Part(f"{own}indexer.weights_proj.weight", c.index_n_heads),
            ),
            hidden,
        ),
        second=Fused(
            (
                Part(f"{own}q_b_proj.weight", heads * head_width),
                Part(f"{own}indexer.wq_b.weight", c.index_n_heads * c.index_head_dim),
            ),
            c.q_lora_rank,
        ),
        kv_b=Fused(
            (Part(f"{own}kv_b_proj.weight", heads * (c.qk_nope_head_dim + c.v_head_dim)),),
            c.kv_lora_rank,
        ),
        output=Fused((Part(f"{own}o_proj.weight", hidden),), heads * c.v_head_dim),
        gate_up=Fused(
            (
                Part(f"{mlp}gate_proj.weight", inner),
                Part(f"{mlp}up_proj.weight", inner),
                *router,
            ),
            hidden,
        ),
        down=Fused((Part(f"{mlp}down_proj.weight", hidden),), inner),
    )


@dataclass(frozen=True)
class MtpParts:
    """The MTP module besides its layer."""

    embedding: Table
    head: Fused
    embedding_norm: Vector
    hidden_norm: Vector
    head_norm: Vector
    eh_proj: Fused


def mtp_parts(c: ModelConfig) -> MtpParts:
    """Names and sizes; the configuration must have an MTP module."""
    prefix, hidden, vocabulary = f"model.layers.{c.mtp_layer}.", c.hidden_size, c.vocab_size
    return MtpParts(
        embedding=Table(f"{prefix}embed_tokens.weight", vocabulary, hidden),
        head=Fused((Part(f"{prefix}shared_head.head.weight", vocabulary),), hidden),
        embedding_norm=Vector(f"{prefix}enorm.weight", hidden),
        hidden_norm=Vector(f"{prefix}hnorm.weight", hidden),
        head_norm=Vector(f"{prefix}shared_head.norm.weight", hidden),
        eh_proj=Fused((Part(f"{prefix}eh_proj.weight", hidden),), 2 * hidden),
    )


def ends(c: ModelConfig) -> tuple[Table, Vector, Fused]:
    """Embedding, last norm, head."""
    return (
        Table("model.embed_tokens.weight", c.vocab_size, c.hidden_size),
        Vector("model.norm.weight", c.hidden_size),
        Fused((Part("lm_head.weight", c.vocab_size),), c.hidden_size),
    )


def everything(c: ModelConfig) -> Iterator[Table | Vector | Fused]:
    """All of the host's part, each once."""
    yield from ends(c)
    for index in range(c.num_hidden_layers):
        yield from layer_parts(c, index).all
    if c.mtp_layer is not None:
        mtp = mtp_parts(c)
        yield from (mtp.embedding, mtp.head, mtp.embedding_norm, mtp.hidden_norm, mtp.head_norm)
        yield mtp.eh_proj
        yield from layer_parts(c, c.mtp_layer).all
