"""One decoder layer on the card: a decode row as a chain of launches, and prompt chunks.

Shapes: n rows, D hidden size, H heads, N nope, R rope, V value, L latent, Q query latent, G index
heads, E index head size, T positions.
"""

from __future__ import annotations

import torch

from host_runtime.config import ModelConfig
from host_runtime.cuda.lane import Lane, LaneGroup
from host_runtime.cuda.parts import Fused, Vector, inner_size, layer_parts
from host_runtime.cuda.pool import LayerCaches
from host_runtime.cuda.weights import GpuWeights
from host_runtime.errors import WeightsError
from host_runtime.experts.base import Experts
from host_runtime.layers.leapfrog import StartedLayer
from host_runtime.ops.attention import attend_prefix, attend_selected
from host_runtime.ops.gpu.attend import attend, merge_values
from host_runtime.ops.gpu.index import index_scores, top_positions
from host_runtime.ops.gpu.linear import (
    GEMV_ROWS_MAX,
    can_route_beside,
    linear,
    partial_linear,
    partial_sums,
)
from host_runtime.ops.gpu.mailbox import Answer, add_parts, adds_parts, wait_for_answer
from host_runtime.ops.gpu.norm import add_norm
from host_runtime.ops.gpu.prepare import PrepareSizes, PrepareWeights, prepare
from host_runtime.ops.gpu.router import RouteCall, route, route_beside, route_payload
from host_runtime.ops.index import hadamard_matrix, top_k_lower_position
from host_runtime.ops.index import index_scores as plain_index_scores
from host_runtime.ops.matrix import Matrix
from host_runtime.ops.norm import rms_norm
from host_runtime.ops.rope import rope_half_split, rope_interleaved
from host_runtime.ops.router import choose_experts

KEY_NORM_EPS = 1e-6
_BLOCK_BYTES_MAX = 256 * 1024 * 1024  # scores or gathered keys of one block of prompt rows


class GpuLayer:
    """Layer `index` of the checkpoint, the MTP module's included."""

    def __init__(self, source: GpuWeights, index: int, config: ModelConfig) -> None:
        c = self.config = config
        self.index = index
        parts = layer_parts(c, index)

        def fused(group: Fused) -> tuple[Matrix, list[int]]:
            return source.fused(group.parts, group.columns)

        def vector(of: Vector) -> torch.Tensor:
            return source.vector(of.name, of.size)

        self.input_norm, self.post_norm = vector(parts.input_norm), vector(parts.post_norm)
        self.first, (_, key_at, latent_at, self.index_weight_at) = fused(parts.first)
        self.q_norm = vector(parts.query_norm)
        self.second, (_, index_query_at) = fused(parts.second)
        kv_b, _ = fused(parts.kv_b)
        if not kv_b.codes.shape[0]:
            name = parts.kv_b.parts[0].name
            raise WeightsError(f"{name} is not FP8, which the CUDA path needs")
        turn = hadamard_matrix(c.index_head_dim, source.device)
        self.prepare = PrepareWeights(
            kv_b,
            vector(parts.latent_norm),
            vector(parts.index_norm),
            vector(parts.index_norm_bias),
            turn.sign().to(torch.bfloat16),
        )
        self.sizes = PrepareSizes(
            c.num_attention_heads, c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim,
            c.kv_lora_rank, c.index_n_heads, c.index_head_dim, key_at, latent_at, index_query_at,
        )  # fmt: skip
        self.o, _ = fused(parts.output)
        self.inner = inner_size(c, index)
        if self.inner % 128:
            raise WeightsError(
                f"layer {index} has an MLP of {self.inner} rows, the CUDA path needs whole blocks"
            )
        self.bias = vector(parts.router_bias) if parts.router_bias is not None else None
        self.gate_up, starts = fused(parts.gate_up)
        self.router_at = starts[-1]
        self.down, _ = fused(parts.down)

    @property
    def matrices(self) -> list[Matrix]:
        """All matrices that a decode row reads."""
        return [self.first, self.second, self.prepare.kv_b, self.o, self.gate_up, self.down]

    # ------------------------------------------------------------------ decode rows, capturable
    @property
    def has_experts(self) -> bool:
        """Whether it has routed experts, so that lanes wait for them, each for its own."""
        return self.bias is not None

    def decode_attention(
        self,
        group: LaneGroup,
        caches: LayerCaches,
        rotation: torch.Tensor,
        scores: torch.Tensor | None,
        choice_work: torch.Tensor,
        *,
        first: bool,
    ) -> None:
        """rows.x -> rows.x before the MLP, a later lane after the earlier one. Sparse if `scores`
        is given. `first`: of the step, so that no layer before has split rows.x."""
        c, rows = self.config, group.rows
        linear(
            rows.x, self.first, rows.first[:, : self.first.rows],
            prologue="norm", gain=self.input_norm, eps=c.rms_norm_eps,
            split=None if first else rows.x_split,
        )  # fmt: skip
        linear(
            rows.first[:, : c.q_lora_rank], self.second, rows.second,
            prologue="norm", gain=self.q_norm, eps=c.rms_norm_eps,
        )  # fmt: skip
        splits = [
            self._attend_row(lane, caches, rotation, scores, choice_work) for lane in group.lanes
        ]
        split = rows.values_split if all(splits) else None
        out = partial_linear(rows.values, self.o, rows.out, split=split)
        for lane, added in zip(group.lanes, out, strict=True):
            self._add(lane, added, self.post_norm, None, spread=False)

    def _attend_row(
        self,
        lane: Lane,
        caches: LayerCaches,
        rotation: torch.Tensor,
        scores: torch.Tensor | None,
        choice_work: torch.Tensor,
    ) -> bool:
        """The cache row, and values of what first and second gave; True if they are split too."""
        c, row = self.config, lane.rows
        prepare(
            self.sizes, self.prepare, lane.state, row.first[0], row.second[0], rotation,
            lane.query, lane.index_query, caches.kv, caches.key, c.rms_norm_eps, KEY_NORM_EPS,
        )  # fmt: skip
        selected = None
        if scores is not None:
            at = self.index_weight_at
            index_scores(
                lane.state, lane.index_query, row.first[0, at : at + c.index_n_heads],
                self._index_factor, caches.key, scores,
            )  # fmt: skip
            top_positions(lane.state, scores, lane.selected, choice_work)
            selected = lane.selected
        attend(
            lane.state, lane.query, caches.kv, selected, c.softmax_scale, lane.parts, lane.sums,
            c.kv_lora_rank,
        )  # fmt: skip
        values = row.values.view(c.num_attention_heads, c.v_head_dim)
        split = merge_values(
            lane.parts, lane.sums, self.prepare.kv_b, c.qk_nope_head_dim, values, row.values_split
        )
        return split is not None

    def decode_mlp(self, group: LaneGroup, *, call: bool) -> None:
        """rows.x -> the MLP's or shared expert's output in rows.out; posts the expert call, which
        is that of a lane alone."""
        c, rows = self.config, group.rows
        middle = rows.middle[:, : self.gate_up.rows]
        payload = beside = None
        if self.bias is not None:
            (lane,) = group.lanes
            box = lane.mailbox
            logits = middle[0, self.router_at : self.router_at + c.n_routed_experts]
            posted = RouteCall(lane.sequence, box.flags, self.index) if call else None
            if can_route_beside(self.gate_up, self.down):
                payload = route_payload(rows.x[0], self.post_norm, c.rms_norm_eps, box.hidden)
                beside = route_beside(logits, self.bias, c, box.ids, box.weights, posted)
        if payload is None or beside is None:
            payload = beside = None
        linear(
            rows.x, self.gate_up, middle,
            prologue="norm", gain=self.post_norm, eps=c.rms_norm_eps, route=payload,
            split=rows.x_split,
        )  # fmt: skip
        if self.bias is not None and beside is None:
            if adds_parts(rows.x):  # the residual sum before has left normed as it was
                add_norm(rows.x, lane.zeros, self.post_norm, c.rms_norm_eps, rows.normed)
            route(logits, self.bias, c, box.ids, box.weights, rows.normed[0], box.hidden, posted)
        gate_up = middle[:, : 2 * self.inner]
        partial_linear(gate_up, self.down, rows.out, prologue="silu", route=beside)

    def decode_finish(self, lane: Lane, gain: torch.Tensor, *, call: bool, last: bool) -> None:
        """Add MLP and experts to the lane's x; in the last layer normed = the final norm of it."""
        box, row, answer = lane.mailbox, lane.rows, None
        if self.bias is not None and call:
            answer = Answer(lane.sequence, box.flags, box.result)
        self._add(lane, row.out[0, : partial_sums(self.down)], gain, answer, spread=True)
        if last and adds_parts(row.x):
            add_norm(row.x, lane.zeros, gain, self.config.rms_norm_eps, row.normed)

    def _add(
        self,
        lane: Lane,
        added: torch.Tensor,
        gain: torch.Tensor,
        answer: Answer | None,
        *,
        spread: bool,
    ) -> None:
        """The lane's x += the sum of added and the answer, and x_split; without CUDA C++ normed in
        its place."""
        row = lane.rows
        kernels = adds_parts(row.x)
        if kernels is not None:
            add_parts(kernels, row.x, added, answer, spread=spread, gain=gain, split=row.x_split)
            return
        if answer is not None:
            wait_for_answer(answer.sequence, answer.flags)
        result = answer.result if answer is not None else None
        add_norm(row.x, added, gain, self.config.rms_norm_eps, row.normed, result)

    @property
    def _index_factor(self) -> float:
        return float(self.config.index_n_heads**-0.5 * self.config.index_head_dim**-0.5)

    # ------------------------------------------------------------------ prompt chunks
    def prefill(
        self,
        x: torch.Tensor,
        caches: LayerCaches,
        rotation: torch.Tensor,
        first: int,
        experts: Experts,
    ) -> torch.Tensor:
        """x [n, D] -> [n, D]; caches hold this sequence's rows only, `first` of them filled."""
        return self.prefill_start(x, caches, rotation, first, experts).finish()

    def prefill_start(
        self,
        x: torch.Tensor,
        caches: LayerCaches,
        rotation: torch.Tensor,
        first: int,
        experts: Experts,
    ) -> StartedLayer:
        """`prefill` up to the routed experts, which are on their way when this returns."""
        eps = self.config.rms_norm_eps
        x = x + self._attend_chunk(rms_norm(x, self.input_norm, eps), caches, rotation, first)
        hidden = rms_norm(x, self.post_norm, eps)  # [n, D]
        middle = wide_linear(hidden, self.gate_up)  # [n, 2 M + X]
        pending = None
        if self.bias is not None:
            logits = middle[:, self.router_at : self.router_at + self.config.n_routed_experts]
            ids, weights = self._choose(logits)
            # all three copies are on their way before the first is waited for
            to_host = [_pinned_copy(tensor) for tensor in (ids, weights, hidden)]
            torch.cuda.current_stream().synchronize()
            pending = experts.submit(self.index, to_host[2], to_host[0], to_host[1])
        gate, up = middle[:, : self.inner], middle[:, self.inner : 2 * self.inner]
        own = wide_linear(torch.nn.functional.silu(gate) * up, self.down)
        return StartedLayer(x, own, pending)

    def _choose(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        c = self.config
        assert self.bias is not None
        return choose_experts(
            logits.sigmoid(), self.bias, group_count=c.n_group, chosen_groups=c.topk_group,
            top_k=c.num_experts_per_tok, normalise=c.norm_topk_prob,
            scaling_factor=c.routed_scaling_factor,
        )  # fmt: skip

    def _attend_chunk(
        self, x: torch.Tensor, caches: LayerCaches, rotation: torch.Tensor, first: int
    ) -> torch.Tensor:
        c, s, rows = self.config, self.sizes, x.shape[0]
        end = first + rows
        cos, sin = rotation[first:end, 0], rotation[first:end, 1]
        y1 = wide_linear(x, self.first)
        query_latent = rms_norm(y1[:, : c.q_lora_rank], self.q_norm, c.rms_norm_eps)
        y2 = wide_linear(query_latent, self.second)
        query = y2[:, : s.index_query_at].reshape(rows, s.heads, -1)  # [n, H, N + R]
        nope, rope = torch.split(query, [s.nope, s.rope], -1)
        w = dense_weights(self.prepare.kv_b).view(s.heads, s.nope + s.value, s.latent)
        absorbed = torch.bmm(nope.transpose(0, 1), w[:, : s.nope]).transpose(0, 1)  # [n, H, L]
        query = torch.cat((absorbed, rope_interleaved(rope, cos, sin)), -1)
        latent = y1[:, s.latent_at : s.latent_at + s.latent]
        rope_key = y1[:, s.latent_at + s.latent : s.latent_at + s.latent + s.rope]
        caches.kv[first:end, : s.latent] = rms_norm(
            latent, self.prepare.latent_gain, c.rms_norm_eps
        )
        caches.kv[first:end, s.latent :] = rope_interleaved(rope_key[:, None], cos, sin)[:, 0]
        key = torch.nn.functional.layer_norm(
            y1[:, s.key_at : s.key_at + s.index_size], (s.index_size,),
            self.prepare.key_gain, self.prepare.key_bias, KEY_NORM_EPS,
        )  # fmt: skip
        caches.key[first:end] = self._turn(key[:, None], cos, sin)[:, 0]
        mixed = self._mix(query, y1, y2, caches, first, cos, sin)  # [n, H, L]
        values = torch.bmm(mixed.transpose(0, 1), w[:, s.nope :].transpose(1, 2))  # [H, n, V]
        return wide_linear(values.transpose(0, 1).reshape(rows, -1), self.o)

    def _mix(
        self,
        query: torch.Tensor,
        y1: torch.Tensor,
        y2: torch.Tensor,
        caches: LayerCaches,
        first: int,
        cos: torch.Tensor,
        sin: torch.Tensor,
    ) -> torch.Tensor:
        """Attention of the chunk's rows, block by block: [n, H, L]."""
        c, s, rows = self.config, self.sizes, query.shape[0]
        end = first + rows
        kv = caches.kv[:end].float()
        latent, rope_key = kv[:, : s.latent], kv[:, s.latent :]
        sparse = end > c.index_topk
        block = max(1, _BLOCK_BYTES_MAX // (8 * s.heads * min(end, c.index_topk)))
        if sparse:
            gathered = 8 * c.index_topk * (s.latent + s.rope)
            scored = 4 * s.index_heads * end  # the indexer's products
            block = max(1, min(block, _BLOCK_BYTES_MAX // max(gathered, scored)))
            keys = caches.key[:end].float()
        mixed = []
        for begin in range(0, rows, block):
            stop = min(begin + block, rows)
            part, at = query[begin:stop], first + begin
            if not sparse:
                seen = at + stop - begin
                mixed.append(
                    attend_prefix(part, latent[:seen], rope_key[:seen], at, c.softmax_scale)
                )
                continue
            q = y2[begin:stop, s.index_query_at : s.index_query_at + s.index_heads * s.index_size]
            q = self._turn(
                q.reshape(stop - begin, s.index_heads, -1), cos[begin:stop], sin[begin:stop]
            )
            w = y1[begin:stop, self.index_weight_at : self.index_weight_at + s.index_heads]
            scores = plain_index_scores(q, keys, w * self._index_factor)
            own = at + torch.arange(stop - begin, device=q.device)
            later = torch.arange(end, device=q.device)[None] > own[:, None]
            chosen = top_k_lower_position(scores.masked_fill_(later, -torch.inf), c.index_topk)
            mixed.append(attend_selected(part, latent, rope_key, chosen, at, c.softmax_scale))
        return torch.cat(mixed)

    def _turn(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """The indexer's rotation of x [n, heads, E]: RoPE on the first R elements, Hadamard."""
        s = self.sizes
        rotated = torch.cat((rope_half_split(x[..., : s.rope], cos, sin), x[..., s.rope :]), -1)
        turned: torch.Tensor = rotated @ self.prepare.hadamard.float() / s.index_size**0.5
        return turned


def wide_linear(x: torch.Tensor, matrix: Matrix) -> torch.Tensor:
    """linear for prompt chunks: any number of rows, and the same kernel for all of them."""
    rows = x.shape[0]
    if rows <= GEMV_ROWS_MAX:
        padded = torch.nn.functional.pad(x, (0, 0, 0, GEMV_ROWS_MAX + 1 - rows))
        return linear(padded, matrix)[:rows]
    return linear(x.contiguous(), matrix)


def _pinned_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in pinned host memory, complete when the stream is."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return copy.copy_(tensor, non_blocking=True)


def dense_weights(matrix: Matrix) -> torch.Tensor:
    """float32 values of the FP8 part."""
    rows, columns = matrix.codes.shape
    scale = matrix.scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
    return matrix.codes.view(torch.float8_e4m3fn).float() * scale
