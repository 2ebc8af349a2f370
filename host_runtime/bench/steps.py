"""Measured decode steps, prefill and overlap of a GpuModel. All times are medians unless named."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from host_runtime.bench.echo import EchoDucks
from host_runtime.cuda.lane import Lane
from host_runtime.cuda.model import GpuModel, StepKind
from host_runtime.ops.gpu.linear import linear, partial_linear

WARM_UP, REPEATS = 5, 40


@dataclass(frozen=True)
class Times:
    """Milliseconds of repeated runs."""

    p50_ms: float
    p90_ms: float
    p99_ms: float


def timed(run: Callable[[], object], repeats: int = REPEATS) -> Times:
    """Time `run` on the card with events, each run by itself."""
    for _ in range(WARM_UP):
        run()
    spans = []
    for _ in range(repeats):
        begin, end = _event(), _event()
        torch.cuda.synchronize()
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        spans.append(begin.elapsed_time(end))
    spans.sort()
    return Times(*(spans[min(len(spans) - 1, int(len(spans) * q))] for q in (0.5, 0.9, 0.99)))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def copy_bandwidth() -> float:
    """Bytes per second of a large device-to-device copy, reads and writes counted."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_(0, 255)
    target = torch.empty_like(source)
    return 2 * source.numel() / (timed(lambda: target.copy_(source)).p50_ms / 1e3)


def weight_bytes(model: GpuModel) -> int:
    """Bytes of all matrices that one decode step reads, head included."""
    matrices = [matrix for layer in model.layers for matrix in layer.matrices]
    return sum(matrix.size_bytes for matrix in [*matrices, model.head])


def cache_bytes(model: GpuModel, context: int) -> int:
    """Cache bytes that one decode step must read at this context."""
    c = model.config
    element = model.pool.layers[0].kv.element_size()
    width = c.kv_lora_rank + c.qk_rope_head_dim
    per_layer = min(context, c.index_topk) * width
    if context > c.index_topk:
        per_layer += context * c.index_head_dim
    return per_layer * element * c.num_hidden_layers


def place_lanes(model: GpuModel, context: int) -> None:
    """Both lanes at the end of a context of random cache rows."""
    for number, lane in enumerate(model.lanes):
        lane.place(0, context - len(model.lanes) + number, 5 + number)
    torch.cuda.synchronize()


def fill_caches(model: GpuModel) -> None:
    """Random cache rows, as a long prompt would leave them."""
    for caches in model.pool.layers.values():
        caches.kv.normal_()
        caches.key.normal_()


def step_times(model: GpuModel, context: int, lanes: int, *, calls: bool) -> Times:
    """Decode steps with head at this context; calls need a thread that answers them."""
    place_lanes(model, context)
    kind = StepKind(lanes, model.scores_size(context), head=True, calls=calls)
    return timed(model.graph(kind).replay)


def gemv_times(model: GpuModel) -> Times:
    """All matrix-vector products of a step and nothing else, in one graph."""
    lane = model.lanes[0]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def launch() -> None:
        for layer in model.layers:
            _layer_products(model, layer, lane)
        linear(lane.rows.normed, model.head, lane.rows.logits)

    with torch.cuda.stream(stream):
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        launch()
    return timed(graph.replay)


def _layer_products(model: GpuModel, layer: object, lane: Lane) -> None:
    from host_runtime.cuda.layer import GpuLayer

    assert isinstance(layer, GpuLayer)
    c, row = model.config, lane.rows
    eps = c.rms_norm_eps
    first, middle = row.first[:, : layer.first.rows], row.middle[:, : layer.gate_up.rows]
    linear(
        row.x, layer.first, first, prologue="norm", gain=layer.input_norm, eps=eps,
        split=row.x_split,
    )  # fmt: skip
    linear(
        row.first[:, : c.q_lora_rank], layer.second, row.second,
        prologue="norm", gain=layer.q_norm, eps=eps,
    )  # fmt: skip
    partial_linear(row.values, layer.o, row.out, split=row.values_split)
    linear(
        row.x, layer.gate_up, middle, prologue="norm", gain=layer.post_norm, eps=eps,
        split=row.x_split,
    )  # fmt: skip
    partial_linear(row.middle[:, : 2 * layer.inner], layer.down, row.out, prologue="silu")


def gemv_bytes(model: GpuModel) -> int:
    """Bytes of the matrices in `gemv_times`: all but kv_b, which attention reads."""
    return weight_bytes(model) - sum(layer.prepare.kv_b.size_bytes for layer in model.layers)


@dataclass(frozen=True)
class Overlap:
    """Two lanes against emulated ducks; ratio = time saved / time that could be saved."""

    factor: float
    duck_us: float
    wire_us: float
    gpu_ms: float
    ducks_ms: float
    step_ms: float

    @property
    def ratio(self) -> float:
        return (self.gpu_ms + self.ducks_ms - self.step_ms) / min(self.gpu_ms, self.ducks_ms)

    @property
    def over_longer(self) -> float:
        return self.step_ms / max(self.gpu_ms, self.ducks_ms)


def measure_overlap(
    model: GpuModel, ducks: EchoDucks, context: int, factor: float, wire_us: float
) -> Overlap:
    """A two-lane step where a call takes the ducks `factor` times a layer's time on the card."""
    gpu_ms = step_times(model, context, 2, calls=False).p50_ms
    sparse = model.config.num_hidden_layers - model.config.first_k_dense_replace
    calls = 2 * sparse
    duck_us = factor * gpu_ms * 1e3 / (2 * model.config.num_hidden_layers)
    ducks.set(int(duck_us * 1e3), int(wire_us * 1e3))
    step_ms = step_times(model, context, 2, calls=True).p50_ms
    return Overlap(factor, duck_us, wire_us, gpu_ms, calls * duck_us / 1e3, step_ms)


class NullExperts:
    """Answers every call at once with zeros; keeps one block of them."""

    def __init__(self, hidden_size: int, tokens_max: int = 512) -> None:
        self._zeros = torch.zeros(tokens_max, hidden_size).pin_memory()
        self._rows = 0

    def submit(
        self,
        layer: int,
        hidden: torch.Tensor,
        expert_ids: torch.Tensor,
        expert_weights: torch.Tensor,
    ) -> NullExperts:
        self._rows = hidden.shape[0]
        return self

    def wait(self) -> torch.Tensor:
        return self._zeros[: self._rows]

    def status(self) -> list[object]:
        return []

    def close(self) -> None:
        """Nothing to release."""


def prefill_seconds(model: GpuModel, tokens: int, chunk: int) -> list[float]:
    """Wall time of prompts in chunks, logits of the last token included; the first is warm-up."""
    experts = NullExperts(model.config.hidden_size)
    prompt = torch.randint(2, model.config.vocab_size, (tokens,))
    seconds = []
    for _ in range(3):
        cache = model.new_cache(tokens)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for part in torch.split(prompt, chunk):
            hidden = model.forward(part, cache, experts)  # type: ignore[arg-type]
        model.logits(hidden[-1:])[0, 0].item()
        seconds.append(time.perf_counter() - begin)
        del cache
    return seconds
