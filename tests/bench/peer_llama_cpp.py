"""Measures llama.cpp and a running duckctl server on one machine and prints both in one table.

    duckctl serve ducklet --port 8000 &
    python tests/bench/peer_llama_cpp.py --url http://127.0.0.1:8000

llama.cpp cannot load ducklet (no MTP, no indexer for its architecture), so it gets a model of equal
shape with random weights: Qwen3-MoE attention, the same layers, hidden size, experts and
vocabulary, experts in Q8_0 (8.5 bits). Needs: pip install llama-cpp-python gguf. Every part is
bounded in time by --seconds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from duckctl.bench_serve.cases import Case, read_case
from duckctl.bench_serve.measure import measure
from duckctl.chat_client import ChatClient
from duckctl.console import print_table

CASE_FILE = Path(__file__).resolve().parents[2] / "docs/examples/cases/4-ids-medium.yaml"
LAYERS, HIDDEN, EXPERTS, TOP_K, MOE_SIZE, VOCABULARY = 5, 256, 16, 4, 256, 8192
HEADS, HEAD_SIZE, CONTEXT = 8, 64, 2048
WEIGHT_DEVIATION = 0.05
THREADS = sorted({1, os.cpu_count() or 1})  # spinning threads lose on a busy machine


@dataclass(frozen=True)
class Speeds:
    """Medians over repeats, tokens per second."""

    who: str
    model: str
    prefill: float
    decode: float
    repeats: int


def write_equal_shape(path: Path, seed: int) -> None:
    """A GGUF of ducklet's shape with seeded random weights."""
    import gguf

    numbers = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(MOE_SIZE)
    writer.add_expert_feed_forward_length(MOE_SIZE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_key_length(HEAD_SIZE)
    writer.add_value_length(HEAD_SIZE)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(TOP_K)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("no_vocab")

    def matrix(name: str, *shape: int) -> None:
        values = numbers.standard_normal(shape, dtype=np.float32) * WEIGHT_DEVIATION
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    def plain(name: str, values: npt.NDArray[np.float32]) -> None:
        writer.add_tensor(name, values)

    matrix("token_embd.weight", VOCABULARY, HIDDEN)
    matrix("output.weight", VOCABULARY, HIDDEN)
    plain("output_norm.weight", np.ones(HIDDEN, np.float32))
    for layer in range(LAYERS):
        _write_layer(f"blk.{layer}", matrix, plain, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_layer(
    name: str,
    matrix: Callable[..., None],
    plain: Callable[[str, npt.NDArray[np.float32]], None],
    numbers: np.random.Generator,
) -> None:
    width = HEADS * HEAD_SIZE
    for part in ("q", "k", "v"):
        matrix(f"{name}.attn_{part}.weight", width, HIDDEN)
    matrix(f"{name}.attn_output.weight", HIDDEN, width)
    for norm, size in (("attn_norm", HIDDEN), ("ffn_norm", HIDDEN)):
        plain(f"{name}.{norm}.weight", np.ones(size, np.float32))
    for norm in ("attn_q_norm", "attn_k_norm"):
        plain(f"{name}.{norm}.weight", np.ones(HEAD_SIZE, np.float32))
    plain(f"{name}.ffn_gate_inp.weight", numbers.standard_normal((EXPERTS, HIDDEN), np.float32))
    matrix(f"{name}.ffn_gate_exps.weight", EXPERTS, MOE_SIZE, HIDDEN)
    matrix(f"{name}.ffn_up_exps.weight", EXPERTS, MOE_SIZE, HIDDEN)
    matrix(f"{name}.ffn_down_exps.weight", EXPERTS, HIDDEN, MOE_SIZE)


def measure_llama(case: Case, repeats: int, seconds: float, threads: int) -> Speeds:
    """llama.cpp on the equal-shape model: the case's ids, then its number of tokens, greedily."""
    import llama_cpp

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "equal-shape.gguf"
        write_equal_shape(path, seed=1)
        model = llama_cpp.Llama(
            str(path), n_ctx=CONTEXT, n_threads=threads, n_threads_batch=threads, verbose=False
        )
        ends_at = time.monotonic() + seconds
        prefill: list[float] = []
        decode: list[float] = []
        _generate(model, case)  # warm-up
        while len(prefill) < repeats and (not prefill or time.monotonic() < ends_at):
            prefill_s, decode_s = _generate(model, case)
            prefill.append(len(case.ids) / prefill_s)
            decode.append((case.max_tokens - 1) / decode_s)
        model.close()
    name = f"equal shape, Q8_0, {threads} thread{'s' if threads > 1 else ''}"
    medians = (statistics.median(prefill), statistics.median(decode))
    return Speeds(f"llama.cpp ({llama_cpp.__version__})", name, *medians, len(prefill))


def _generate(model: Any, case: Case) -> tuple[float, float]:
    """Seconds to the first token, and from the first to the last."""
    model.reset()
    started = time.monotonic()
    model.eval(list(case.ids))
    token = _best(model)
    first = time.monotonic()
    for _ in range(case.max_tokens - 1):
        model.eval([token])
        token = _best(model)
    return first - started, time.monotonic() - first


def _best(model: Any) -> int:
    """The greedy token from the last position's logits."""
    logits = model._ctx.get_logits()
    return int(np.argmax(np.ctypeslib.as_array(logits, shape=(VOCABULARY,))))


def measure_duckctl(case: Case, url: str, repeats: int, seconds: float) -> Speeds:
    """The running server, by the definitions of `bench serve`."""
    with ChatClient(url) as client:
        name = client.models()[0]
        ducks = len(client.readiness().get("ducks") or [])
        ends_at = time.monotonic() + seconds
        measure(client, case, name)  # warm-up
        samples: list[dict[str, float]] = []
        while len(samples) < repeats and (not samples or time.monotonic() < ends_at):
            samples.append(measure(client, case, name).metrics)
    prefill, decode = (
        statistics.median(sample[key] for sample in samples)
        for key in ("prefill_tokens_per_s", "decode_tokens_per_s")
    )
    return Speeds("duckctl", f"{name}, {ducks} ducks, MTP", prefill, decode, len(samples))


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; 1 when llama.cpp or the server is not there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--url", required=True, help="address of a running `duckctl serve`")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="limit of each side")
    given = parser.parse_args(arguments)
    case = read_case(CASE_FILE)
    try:
        peers = [measure_llama(case, given.repeats, given.seconds, n) for n in THREADS]
    except ImportError as error:
        sys.stderr.write(f"error: {error}\n  hint: pip install llama-cpp-python gguf\n")
        return 1
    rows = [measure_duckctl(case, given.url, given.repeats, given.seconds), *peers]
    print_table(
        f"{len(case.ids)} -> {case.max_tokens} tokens, greedy",
        ("", "model", "prefill tok/s>", "decode tok/s>", "repeats>"),
        [(r.who, r.model, f"{r.prefill:.1f}", f"{r.decode:.1f}", r.repeats) for r in rows],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
