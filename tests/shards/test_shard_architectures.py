"""The architecture table is the published checkpoints: counts, bytes and names close exactly."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from damaged_model import Model
from shard_helpers import MakeCheckpoint
from synthetic_checkpoint import CheckpointSpec

from duckctl.model_dir import resolve_model_dir
from duckctl.shards.architectures import (
    ARCHITECTURES,
    ConfigReader,
    ModelShape,
    expected_host_tensors,
    model_shape,
)
from duckctl.shards.checkpoint import open_checkpoint

# Published sizes of DeepSeek-V3.2 (config.json of the model).
DEEPSEEK_V32 = {
    "model_type": "deepseek_v32", "hidden_act": "silu", "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_attention_heads": 128,
    "num_hidden_layers": 61, "num_nextn_predict_layers": 1, "first_k_dense_replace": 3,
    "n_routed_experts": 256, "n_shared_experts": 1, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
    "index_n_heads": 64, "index_head_dim": 128, "tie_word_embeddings": False, "moe_layer_freq": 1,
}  # fmt: skip
# Of its tensors that are not FP8, these are stored in bf16; norms and biases are float32.
BF16_PARTS = ("mlp.gate.weight", "indexer.weights_proj", "eh_proj", "embed_tokens", "head.weight")


def deepseek_v32() -> tuple[ModelShape, ConfigReader]:
    config = ConfigReader(Path("config.json"), DEEPSEEK_V32)
    return model_shape(config, ARCHITECTURES["deepseek_v32"]), config


def test_deepseek_v32_has_the_published_tensor_count_and_payload() -> None:
    shape, config = deepseek_v32()
    count = size_bytes = 0
    for name, size, quantised in expected_host_tensors(
        ARCHITECTURES["deepseek_v32"], config, shape
    ):
        numbers = math.prod(size)
        blocks = math.prod(-(-edge // 128) for edge in size)
        if quantised:
            count, size_bytes = count + 2, size_bytes + numbers + 4 * blocks
        else:
            width = 2 if any(part in name for part in BF16_PARTS) else 4
            count, size_bytes = count + 1, size_bytes + width * numbers
    matrix = shape.hidden_size * shape.moe_intermediate_size
    experts = len(shape.layers) * shape.expert_count * 3
    count += 2 * experts
    size_bytes += experts * (matrix + 4 * matrix // 128**2)
    assert (count, size_bytes) == (92_425, 689_471_107_200)
    assert shape.layers == tuple(range(3, 62))
    assert (shape.dense_layers, shape.mtp_layers) == ((0, 1, 2), (61,))


def test_ducklet_is_accounted_for_in_full() -> None:
    checkpoint = open_checkpoint(resolve_model_dir("ducklet"))
    counts = checkpoint.accounting
    assert len(counts.sharded) + len(counts.host) == len(checkpoint.tensors)
    assert len(counts.sharded) == 5 * 16 * 3 * 2
    assert not counts.ignored
    assert checkpoint.shape.layers == (1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    "spec",
    [
        CheckpointSpec(model_type="deepseek_v3"),
        CheckpointSpec(model_type="deepseek_v32", mtp=0),
        CheckpointSpec(model_type="deepseek_v32", mtp=2, dtype="BF16"),
        CheckpointSpec(model_type="qwen3_moe", dense=0, mtp=0, moe=96),
        CheckpointSpec(model_type="qwen3_moe", dense=0, mtp=0, scale_dtype="BF16"),
        CheckpointSpec(model_type="qwen3_5_moe", dense=0, mtp=0, dtype="BF16", fused=True),
        CheckpointSpec(model_type="qwen3_5_moe", dense=0, mtp=0),
    ],
    ids=lambda spec: f"{spec.model_type}-{spec.dtype}-mtp{spec.mtp}-{spec.scale_dtype}",
)
def test_every_architecture_of_the_table_opens(
    make_checkpoint: MakeCheckpoint, spec: CheckpointSpec
) -> None:
    checkpoint = open_checkpoint(make_checkpoint(spec))
    assert len(checkpoint.shape.layers) == spec.layers - spec.dense + spec.mtp
    counts = checkpoint.accounting
    assert len(counts.sharded) + len(counts.host) == len(checkpoint.tensors)


def test_a_hugging_face_snapshot_tells_name_and_revision(
    make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    """Files of a snapshot are symbolic links into blobs; that is followed."""
    revision = "a7e62ac04ecb2c0a54d736dc46601c5606cf10a6"
    model = make_checkpoint(CheckpointSpec())
    snapshot = tmp_path / "models--maker--tiny" / "snapshots" / revision
    snapshot.mkdir(parents=True)
    for file in model.iterdir():
        (snapshot / file.name).symlink_to(file)
    checkpoint = open_checkpoint(snapshot)
    assert (checkpoint.name, checkpoint.revision) == ("tiny", revision)


def test_a_single_file_without_index_opens(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    model = make_checkpoint(CheckpointSpec(file_bytes_max=1 << 30))
    (file,) = model.glob("*.safetensors")
    (tmp_path / "model.safetensors").symlink_to(file)
    (tmp_path / "config.json").write_text(
        json.dumps(json.loads((model / "config.json").read_text()))
    )
    assert open_checkpoint(tmp_path).shape == open_checkpoint(model).shape


def test_ignored_tensors_have_a_reason(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    model = Model(Path(shutil.copytree(make_checkpoint(CheckpointSpec()), tmp_path / "model")))
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    file = model.file_of("model.norm.weight")
    model.append(file, name, "F32", [16], 64)
    model.add_to_index(name, file.name)
    ignored = open_checkpoint(model.path).accounting.ignored
    assert ignored == {name: "rotary frequencies are computed from config.json"}
