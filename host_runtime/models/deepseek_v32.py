"""DeepSeek-V3.2 with its MTP module, float32.

    hidden = model.forward(tokens, cache, experts)     # tokens [n] -> [n, D], after the final norm
    hidden = model.decode(tokens, caches, experts)     # one token each of n sequences
    logits = model.logits(hidden[-1:])                 # [1, vocabulary]
    draft = model.mtp_forward(hidden, next_tokens, cache, experts)   # (h_i, token i+1): token i+2
    draft_logits = model.mtp_logits(draft[-1:])

Shapes: n rows, D hidden size, R rope size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from host_runtime.config import GenerationConfig, ModelConfig
from host_runtime.experts.base import Experts
from host_runtime.layers.cache import LayerCache
from host_runtime.layers.decoder import DecoderLayer
from host_runtime.layers.leapfrog import ChunkByLayers, LayerStart, leapfrog
from host_runtime.ops.norm import rms_norm
from host_runtime.ops.rope import rope_frequencies
from host_runtime.ops.rows import by_rows
from host_runtime.weights import WeightSource


@dataclass
class SequenceCache:
    """Caches of one sequence: the main layers', and the MTP layer's with a length of its own."""

    layers: list[LayerCache]
    mtp: LayerCache | None

    @property
    def length(self) -> int:
        """Positions of the main model."""
        return self.layers[0].length

    @property
    def mtp_length(self) -> int:
        """Positions of the MTP module."""
        return 0 if self.mtp is None else self.mtp.length

    def truncate(self, length: int) -> None:
        """Roll back to `length` positions: the main layers, and the MTP layer if it is longer."""
        for cache in self.layers:
            cache.truncate(length)
        if self.mtp is not None:
            self.mtp.truncate(min(self.mtp.length, length))

    def release(self) -> None:
        """Free the memory; nothing of the caches is used from then on. Again: does nothing."""
        self.layers, self.mtp = [], None


class MtpModule:
    """Multi-token prediction: one more decoder layer that guesses the token after next.

    Layer num_hidden_layers of the checkpoint; arXiv 2412.19437, section 2.2. The embedding half
    comes first in eh_proj, and the hidden state is the main model's after its final norm.
    """

    def __init__(
        self,
        source: WeightSource,
        index: int,
        config: ModelConfig,
        embedding: torch.Tensor,
        head: torch.Tensor,
    ) -> None:
        prefix, hidden, vocabulary = f"model.layers.{index}.", config.hidden_size, config.vocab_size
        self.eps = config.rms_norm_eps
        embedding_name, head_name = (
            f"{prefix}embed_tokens.weight",
            f"{prefix}shared_head.head.weight",
        )
        self.embedding = _shared(source.matrix(embedding_name, vocabulary, hidden), embedding)
        self.head = _shared(source.matrix(head_name, vocabulary, hidden), head)
        self.embedding_norm = source.vector(f"{prefix}enorm.weight", hidden)
        self.hidden_norm = source.vector(f"{prefix}hnorm.weight", hidden)
        self.eh_proj = source.matrix(f"{prefix}eh_proj.weight", hidden, 2 * hidden)
        self.layer = DecoderLayer(source, index, config)
        self.head_norm = source.vector(f"{prefix}shared_head.norm.weight", hidden)

    def join(self, hidden: torch.Tensor, next_tokens: torch.Tensor) -> tuple[torch.Tensor]:
        """Input of the decoder layer [n, D] from hidden [n, D] and the tokens that follow [n]."""
        embedded = rms_norm(F.embedding(next_tokens, self.embedding), self.embedding_norm, self.eps)
        both = torch.cat((embedded, rms_norm(hidden, self.hidden_norm, self.eps)), -1)  # [n, 2 D]
        return (F.linear(both, self.eh_proj),)


class DeepseekV32:
    """The host's part of the model; routed experts are handed in with each call."""

    def __init__(
        self, config: ModelConfig, generation: GenerationConfig, source: WeightSource
    ) -> None:
        self.config, self.generation, self.device = config, generation, source.device
        vocabulary, hidden = config.vocab_size, config.hidden_size
        self.embedding = source.matrix("model.embed_tokens.weight", vocabulary, hidden)
        self.layers = [
            DecoderLayer(source, index, config) for index in range(config.num_hidden_layers)
        ]
        self.norm = source.vector("model.norm.weight", hidden)
        self.head = source.matrix("lm_head.weight", vocabulary, hidden)
        self.mtp: MtpModule | None = None
        if config.mtp_layer is not None:
            self.mtp = MtpModule(source, config.mtp_layer, config, self.embedding, self.head)
        self._frequencies = rope_frequencies(config).to(source.device)  # [R / 2]
        self._rotation_factor = 1.0 if config.yarn is None else config.yarn.rotation_factor

    def new_cache(self, capacity: int) -> SequenceCache:
        """Empty caches for one sequence of at most `capacity` positions."""
        config = self.config
        widths = (config.kv_lora_rank, config.qk_rope_head_dim, config.index_head_dim)
        layers = [LayerCache(capacity, widths, self.device) for _ in self.layers]
        return SequenceCache(
            layers, None if self.mtp is None else LayerCache(capacity, widths, self.device)
        )

    @torch.inference_mode()
    def forward(self, tokens: torch.Tensor, cache: SequenceCache, experts: Experts) -> torch.Tensor:
        """Append tokens int64 [n]; hidden states after the final norm [n, D]."""
        cos, sin = self._rotation(cache.length, tokens.shape[0])  # [n, R / 2] each
        x = F.embedding(tokens, self.embedding)  # [n, D]
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            x = layer(x, cos, sin, layer_cache, experts)
        return self._norm_rows(x, self.norm)

    @torch.inference_mode()
    def forward_chunks(
        self, chunks: Sequence[torch.Tensor], cache: SequenceCache, experts: Experts
    ) -> torch.Tensor:
        """`forward` of one prompt chunk after the other, with the same bits; hidden states [n, D].

        A chunk's attention runs while the experts of the chunk before work.
        """
        first, rotations = cache.length, []
        for chunk in chunks:
            rotations.append(self._rotation(first, chunk.shape[0]))
            first += chunk.shape[0]

        def starter(layer: DecoderLayer, own: LayerCache) -> LayerStart:
            return lambda number, x: layer.start(x, *rotations[number], [own], experts)

        starts = [starter(*pair) for pair in zip(self.layers, cache.layers, strict=True)]
        outputs = leapfrog(starts, [F.embedding(chunk, self.embedding) for chunk in chunks])
        return torch.cat([self._norm_rows(x, self.norm) for x in outputs])

    @torch.inference_mode()
    def start_chunk(
        self, tokens: torch.Tensor, cache: SequenceCache, experts: Experts
    ) -> ChunkByLayers:
        """`forward` that is run layer by layer; the cache is the chunk's until it has ended."""
        cos, sin = self._rotation(cache.length, tokens.shape[0])  # [n, R / 2] each

        def step(layer: DecoderLayer, own: LayerCache) -> Callable[[torch.Tensor], torch.Tensor]:
            return lambda x: layer(x, cos, sin, own, experts)

        steps = [step(*pair) for pair in zip(self.layers, cache.layers, strict=True)]
        x = F.embedding(tokens, self.embedding)  # [n, D]
        return ChunkByLayers(steps, x, lambda x: self._norm_rows(x, self.norm))

    @torch.inference_mode()
    def decode(
        self, tokens: torch.Tensor, caches: Sequence[SequenceCache], experts: Experts
    ) -> torch.Tensor:
        """Append one token to each of n sequences: tokens int64 [n] -> hidden states [n, D].

        The routed experts get one call of n tokens per layer; each row's bits are those of a step
        of its own.
        """
        rotations = [self._rotation(cache.length, 1) for cache in caches]
        cos, sin = (torch.cat(parts) for parts in zip(*rotations, strict=True))  # [n, R / 2] each
        x = F.embedding(tokens, self.embedding)  # [n, D]
        for number, layer in enumerate(self.layers):
            own = [cache.layers[number] for cache in caches]
            x = layer.start(x, cos, sin, own, experts).finish()
        return self._norm_rows(x, self.norm)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [n, D] -> [n, vocabulary]."""
        return by_rows(lambda row: (F.linear(row, self.head),), hidden)[0]

    @torch.inference_mode()
    def mtp_forward(
        self,
        hidden: torch.Tensor,
        next_tokens: torch.Tensor,
        cache: SequenceCache,
        experts: Experts,
    ) -> torch.Tensor:
        """hidden [n, D] of positions i.. and tokens int64 [n] at i + 1..: [n, D] for mtp_logits.

        Positions go on where the MTP cache ends.
        """
        if self.mtp is None or cache.mtp is None:
            raise ValueError("the model has no MTP module")
        cos, sin = self._rotation(cache.mtp_length, next_tokens.shape[0])  # [n, R / 2] each
        (x,) = by_rows(self.mtp.join, hidden, next_tokens)  # [n, D]
        x = self.mtp.layer(x, cos, sin, cache.mtp, experts)
        return self._norm_rows(x, self.mtp.head_norm)

    @torch.inference_mode()
    def mtp_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Output of mtp_forward [n, D] -> logits of the tokens at i + 2.. [n, vocabulary]."""
        if self.mtp is None:
            raise ValueError("the model has no MTP module")
        head = self.mtp.head
        return by_rows(lambda row: (F.linear(row, head),), hidden)[0]

    def _rotation(self, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(first, first + count, device=self.device, dtype=torch.float32)
        # by rows, because the vectorised cosine and the one for left-over elements may differ
        cos, sin = by_rows(self._cos_sin, positions)
        return cos, sin

    def _cos_sin(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angle = positions[:, None] * self._frequencies  # [n, R / 2]
        return angle.cos() * self._rotation_factor, angle.sin() * self._rotation_factor

    def _norm_rows(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return by_rows(lambda row: (rms_norm(row, weight, self.config.rms_norm_eps),), x)[0]


def _shared(copy: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    """`original` when the checkpoint's second copy is the same, to hold it in memory once."""
    return original if torch.equal(copy, original) else copy
