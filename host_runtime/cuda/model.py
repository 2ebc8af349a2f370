"""DeepSeek-V3.2 on a CUDA card, with the interface of models.DeepseekV32.

    model = GpuModel(config, generation, weights, positions=8192, cache_dtype=torch.bfloat16)
    hidden = model.forward(tokens, cache, experts)     # tokens [n] on the CPU -> [n, D] on the card

One or two tokens, of one sequence or of two, go through lanes: a captured graph holds all launches
of the step, both lanes in turns, and expert calls travel through the mailboxes. More tokens are a
prompt chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from host_runtime.config import GenerationConfig, ModelConfig
from host_runtime.cuda.lane import Lane, LaneGroup, Rows, Widths
from host_runtime.cuda.layer import GpuLayer, wide_linear
from host_runtime.cuda.link import CallLink
from host_runtime.cuda.mailbox import Mailbox
from host_runtime.cuda.parts import ends, mtp_parts
from host_runtime.cuda.pool import CachePool, GpuSequenceCache, LayerCaches
from host_runtime.cuda.weights import GpuWeights, same_matrix, same_values
from host_runtime.errors import HostError
from host_runtime.experts.base import Experts
from host_runtime.layers.leapfrog import ChunkByLayers, LayerStart, leapfrog
from host_runtime.ops.gpu.index import choice_workspace
from host_runtime.ops.gpu.linear import GEMV_ROWS_MAX, linear
from host_runtime.ops.gpu.mailbox import ANSWERED, SEQUENCE_WORDS, wait_for_answer
from host_runtime.ops.gpu.norm import add_norm, embed_norm
from host_runtime.ops.gpu.router import RouteCall, route
from host_runtime.ops.gpu.sample import greedy
from host_runtime.ops.matrix import Matrix
from host_runtime.ops.norm import rms_norm
from host_runtime.ops.rope import rope_frequencies

LANES_MAX = 2
ROTATION_CHUNK = 4096  # positions whose cosines are computed at once, on the CPU


@dataclass(frozen=True)
class StepKind:
    """What a captured graph does. scores_size 0: dense attention; calls False: experts null."""

    lanes: int
    scores_size: int
    mtp: bool = False
    head: bool = False
    calls: bool = True


class GpuMtp:
    """Weights of the MTP module besides its layer."""

    def __init__(
        self, source: GpuWeights, config: ModelConfig, embedding: torch.Tensor, head: Matrix
    ) -> None:
        assert config.mtp_layer is not None
        parts = mtp_parts(config)
        table = parts.embedding
        # a copy goes before the next one comes: the memory plan has room for one at a time
        copy = source.table(table.name, table.rows, table.columns)
        self.embedding = embedding if same_values(copy, embedding) else copy
        del copy
        own, _ = source.fused(parts.head.parts, parts.head.columns)
        self.head = head if same_matrix(own, head) else own
        del own
        self.embedding_norm = source.vector(parts.embedding_norm.name, parts.embedding_norm.size)
        self.hidden_norm = source.vector(parts.hidden_norm.name, parts.hidden_norm.size)
        self.eh_proj, _ = source.fused(parts.eh_proj.parts, parts.eh_proj.columns)
        self.layer = GpuLayer(source, config.mtp_layer, config)
        self.head_norm = source.vector(parts.head_norm.name, parts.head_norm.size)


class GpuModel:
    """The host's part of the model on one card. `device` is where token ids come from: the CPU."""

    def __init__(
        self,
        config: ModelConfig,
        generation: GenerationConfig,
        source: GpuWeights,
        *,
        positions: int,
        cache_dtype: torch.dtype,
        slot: int = 1,
    ) -> None:
        self.config, self.generation, self.device = config, generation, torch.device("cpu")
        self.card = source.device
        table, norm, head = ends(config)
        self.embedding = source.table(table.name, table.rows, table.columns)
        self.layers = [GpuLayer(source, i, config) for i in range(config.num_hidden_layers)]
        self.norm = source.vector(norm.name, norm.size)
        self.head, _ = source.fused(head.parts, head.columns)
        self.mtp: GpuMtp | None = None
        if config.mtp_layer is not None:
            self.mtp = GpuMtp(source, config, self.embedding, self.head)
        every = [*self.layers, *([self.mtp.layer] if self.mtp else [])]
        self.pool = CachePool(
            config, [layer.index for layer in every], positions, cache_dtype, self.card, slot
        )
        self.rotation = rotation_table(config, positions).to(self.card)
        widths = Widths(*(
            max(matrix.rows for matrix in matrices)
            for matrices in zip(
                *((one.first, one.second, one.gate_up) for one in every), strict=True
            )
        ))  # fmt: skip
        self._rows_of_lanes = Rows.zeros(config, widths, LANES_MAX, self.card)
        self.lanes = [Lane(config, self._rows_of_lanes.part(i, i + 1)) for i in range(LANES_MAX)]
        self.link = CallLink(self.lanes)
        self._scores = torch.zeros(max(positions, config.index_topk), device=self.card)
        self._choice_work = choice_workspace(self._scores.shape[0], self.card)
        self._graphs: dict[StepKind, torch.cuda.CUDAGraph] = {}
        self._stream = torch.cuda.Stream(self.card)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """End the lane threads."""
        self.link.close()

    def new_cache(self, capacity: int) -> GpuSequenceCache:
        """Rows for one sequence of at most `capacity` positions. HostError if there are none."""
        return self.pool.reserve(capacity)

    # ------------------------------------------------------------------ the model's interface
    @torch.inference_mode()
    def forward(
        self, tokens: torch.Tensor, cache: GpuSequenceCache, experts: Experts
    ) -> torch.Tensor:
        """Append tokens int64 [n]; hidden states after the final norm [n, D]."""
        rows, first = tokens.shape[0], cache.length
        if rows > LANES_MAX:
            return self._prefill([tokens], cache, experts)
        cache.require(first + rows)
        for row, token in enumerate(tokens.tolist()):
            self.lanes[row].place(cache.base, first + row, token)
        hidden = self._run_lanes(rows, first + rows, experts, mtp=False)
        cache.length = first + rows
        return hidden

    @torch.inference_mode()
    def forward_chunks(
        self, chunks: Sequence[torch.Tensor], cache: GpuSequenceCache, experts: Experts
    ) -> torch.Tensor:
        """`forward` of one prompt chunk after the other, with the same bits; hidden states [n, D].

        A chunk's attention runs while the experts of the chunk before work.
        """
        if min(chunk.shape[0] for chunk in chunks) > LANES_MAX:
            return self._prefill(chunks, cache, experts)
        return torch.cat([self.forward(chunk, cache, experts) for chunk in chunks])

    @torch.inference_mode()
    def start_chunk(
        self, tokens: torch.Tensor, cache: GpuSequenceCache, experts: Experts
    ) -> ChunkByLayers:
        """`forward` that is run layer by layer; the cache is the chunk's until it has ended."""
        rows, first = tokens.shape[0], cache.length
        if rows <= LANES_MAX:  # a step of the lanes: no longer than anybody's
            nothing = torch.empty(0)
            return ChunkByLayers(
                [lambda _: self.forward(tokens, cache, experts)], nothing, lambda hidden: hidden
            )
        cache.require(first + rows)

        def step(layer: GpuLayer) -> Callable[[torch.Tensor], torch.Tensor]:
            own = self._rows(layer.index, cache)
            return lambda x: layer.prefill(x, own, self.rotation, first, experts)

        def finish(x: torch.Tensor) -> torch.Tensor:
            cache.length = first + rows
            return rms_norm(x, self.norm, self.config.rms_norm_eps)

        x = self.embedding[tokens.to(self.card)].float()  # [n, D]
        return ChunkByLayers([step(layer) for layer in self.layers], x, finish)

    @torch.inference_mode()
    def decode(
        self, tokens: torch.Tensor, caches: Sequence[GpuSequenceCache], experts: Experts
    ) -> torch.Tensor:
        """Append one token to each of up to LANES_MAX sequences, a lane for each: tokens int64 [n]
        -> hidden states [n, D]. A row's bits are those of a step of its own."""
        for cache in caches:
            cache.require(cache.length + 1)
        for lane, token, cache in zip(self.lanes, tokens.tolist(), caches, strict=False):
            lane.place(cache.base, cache.length, token)
        longest = max(cache.length for cache in caches) + 1
        hidden = self._run_lanes(len(caches), longest, experts, mtp=False)
        for cache in caches:
            cache.length += 1
        return hidden

    def _prefill(
        self, chunks: Sequence[torch.Tensor], cache: GpuSequenceCache, experts: Experts
    ) -> torch.Tensor:
        firsts, end = [], cache.length
        for chunk in chunks:
            firsts.append(end)
            end += chunk.shape[0]
        cache.require(end)

        def starter(layer: GpuLayer) -> LayerStart:
            own = self._rows(layer.index, cache)
            return lambda number, x: layer.prefill_start(
                x, own, self.rotation, firsts[number], experts
            )

        inputs = [self.embedding[chunk.to(self.card)].float() for chunk in chunks]  # [n, D] each
        outputs = leapfrog([starter(layer) for layer in self.layers], inputs)
        cache.length = end
        return torch.cat([rms_norm(x, self.norm, self.config.rms_norm_eps) for x in outputs])

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, D] -> [n, vocabulary]; a row's bits do not depend on the others."""
        return row_products(hidden, self.head)

    @torch.inference_mode()
    def mtp_forward(
        self,
        hidden: torch.Tensor,
        next_tokens: torch.Tensor,
        cache: GpuSequenceCache,
        experts: Experts,
    ) -> torch.Tensor:
        """hidden [n, D] of positions i.. and tokens int64 [n] at i + 1..: [n, D] for mtp_logits."""
        if self.mtp is None:
            raise ValueError("the model has no MTP module")
        rows, first = hidden.shape[0], cache.mtp_length
        cache.require(first + rows)
        if rows <= LANES_MAX:
            for row, token in enumerate(next_tokens.tolist()):
                self.lanes[row].hidden.copy_(hidden[row : row + 1])
                self.lanes[row].place(cache.base, first + row, token)
            mixed = self._run_lanes(rows, first + rows, experts, mtp=True)
        else:
            m, eps = self.mtp, self.config.rms_norm_eps
            embedded = rms_norm(
                m.embedding[next_tokens.to(self.card)].float(), m.embedding_norm, eps
            )
            joined = torch.cat((embedded, rms_norm(hidden, m.hidden_norm, eps)), -1)
            x = wide_linear(joined, m.eh_proj)
            caches = self._rows(m.layer.index, cache)
            x = m.layer.prefill(x, caches, self.rotation, first, experts)
            mixed = rms_norm(x, m.head_norm, eps)
        cache.mtp_length = first + rows
        return mixed

    @torch.inference_mode()
    def mtp_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Output of mtp_forward [n, D] -> logits of the tokens at i + 2.. [n, vocabulary]."""
        if self.mtp is None:
            raise ValueError("the model has no MTP module")
        return row_products(hidden, self.mtp.head)

    def _rows(self, layer: int, cache: GpuSequenceCache) -> LayerCaches:
        whole, begin, end = self.pool.layers[layer], cache.base, cache.base + cache.capacity
        return LayerCaches(whole.kv[begin:end], whole.key[begin:end])

    # ------------------------------------------------------------------ lanes
    def _run_lanes(self, count: int, length: int, experts: Experts, *, mtp: bool) -> torch.Tensor:
        """Replay the step of `count` placed lanes, `length` the longest context: [count, D]."""
        graph = self.graph(StepKind(count, self.scores_size(length), mtp))
        with self.link.serving(experts):
            graph.replay()
            hidden = self._rows_of_lanes.normed[:count].clone()
            gave_up = [bool(lane.sequence[1]) for lane in self.lanes[:count]]  # waits for the step
        if any(gave_up):
            for lane in self.lanes:
                lane.sequence[1] = 0
            raise HostError("the card waited for an expert call that nobody answered")
        return hidden

    def scores_size(self, length: int) -> int:
        """Positions that the indexer must score for sequences of `length`: 0 up to index_topk."""
        if length <= self.config.index_topk:
            return 0
        size = 2 * self.config.index_topk
        while size < length:
            size *= 2
        return min(size, self._scores.shape[0])

    def graph(self, kind: StepKind) -> torch.cuda.CUDAGraph:
        """The captured step, made on first use."""
        if kind not in self._graphs:
            # Compiles all kernels. Nobody answers in a rehearsal, so it makes no calls.
            rehearsal = StepKind(kind.lanes, kind.scores_size, kind.mtp, kind.head, calls=False)
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                self.launch_step(rehearsal)
                self._warm_mailboxes()
            torch.cuda.current_stream().wait_stream(self._stream)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self._stream):
                self.launch_step(kind)
            self._graphs[kind] = graph
        return self._graphs[kind]

    def _warm_mailboxes(self) -> None:
        """Compile the two launches of a call on a mailbox that is answered beforehand."""
        c = self.config
        lane, spare = self.lanes[0], Mailbox(c.num_experts_per_tok, c.hidden_size)
        sequence = torch.zeros(SEQUENCE_WORDS, dtype=torch.int32, device=self.card)
        spare.flags[ANSWERED] = 1
        k = self.config.n_routed_experts
        logits = torch.zeros(k, device=self.card)
        route(
            logits, logits, self.config, spare.ids, spare.weights, lane.zeros[0], spare.hidden,
            RouteCall(sequence, spare.flags, 0),
        )  # fmt: skip
        wait_for_answer(sequence, spare.flags)
        add_norm(
            lane.zeros.clone(), lane.zeros, self.norm, self.config.rms_norm_eps,
            torch.empty_like(lane.zeros), spare.result,
        )  # fmt: skip
        torch.cuda.synchronize()  # before the spare mailbox goes

    def launch_step(self, kind: StepKind) -> None:
        """All launches of a step. The lanes take turns: while one waits for its experts, the other
        computes; a later lane's attention always follows the earlier one's in the same layer. Where
        no lane waits, in layers without experts and at the head, weights are read once for all."""
        lanes, rows = self.lanes[: kind.lanes], self._rows_of_lanes.part(0, kind.lanes)
        layers = self.layers
        final = self.norm
        if kind.mtp:
            assert self.mtp is not None
            layers, final = [self.mtp.layer], self.mtp.head_norm
        scores = self._scores[: kind.scores_size] if kind.scores_size else None
        for number, layer in enumerate(layers):
            groups = [LaneGroup([lane], lane.rows) for lane in lanes]
            for group in groups if layer.has_experts else [LaneGroup(lanes, rows)]:
                for lane in group.lanes:
                    if number == 0:
                        self._enter(lane, mtp=kind.mtp)
                    else:
                        before = layers[number - 1]
                        before.decode_finish(lane, layer.input_norm, call=kind.calls, last=False)
                caches = self.pool.layers[layer.index]
                layer.decode_attention(
                    group, caches, self.rotation, scores, self._choice_work, first=number == 0
                )
                layer.decode_mlp(group, call=kind.calls)
        for lane in lanes:
            layers[-1].decode_finish(lane, final, call=kind.calls, last=True)
        if kind.head:
            linear(rows.normed, self.head, rows.logits)
            for lane in lanes:
                greedy(lane.rows.logits[0], lane.choice_parts, lane.choice)

    def _enter(self, lane: Lane, *, mtp: bool) -> None:
        eps, row = self.config.rms_norm_eps, lane.rows
        if not mtp:
            gain = self.layers[0].input_norm
            embed_norm(lane.state, self.embedding, gain, eps, row.x, row.normed)
            return
        assert self.mtp is not None
        m, size = self.mtp, self.config.hidden_size
        embed_norm(lane.state, m.embedding, m.embedding_norm, eps, row.x, lane.joined[:, :size])
        add_norm(lane.hidden, lane.zeros, m.hidden_norm, eps, lane.joined[:, size:])
        linear(lane.joined, m.eh_proj, row.x)
        add_norm(row.x, lane.zeros, m.layer.input_norm, eps, row.normed)


def row_products(x: torch.Tensor, matrix: Matrix) -> torch.Tensor:
    """[n, N] of x [n, K], as many rows at a time as have the bits of each one alone."""
    return torch.cat([linear(rows, matrix) for rows in torch.split(x, GEMV_ROWS_MAX)])


def rotation_table(config: ModelConfig, positions: int) -> torch.Tensor:
    """float32 [positions, 2, R/2]: cos and sin, with the arithmetic of the CPU path."""
    frequencies = rope_frequencies(config)
    factor = 1.0 if config.yarn is None else config.yarn.rotation_factor
    chunks = []
    for first in range(0, positions, ROTATION_CHUNK):
        last = min(first + ROTATION_CHUNK, positions)
        angle = torch.arange(first, last, dtype=torch.float32)[:, None] * frequencies
        chunks.append(torch.stack((angle.cos() * factor, angle.sin() * factor), 1))
    return torch.cat(chunks)
