"""A stand-in for the model whose next-token distribution is known exactly: a Markov chain.

It answers the engine's calls (forward, forward_chunks, start_chunk, decode, logits, mtp_forward,
mtp_logits, caches with rollback) with a table, so that thousands of requests run in seconds and the
engine's sampling can be tested against the true distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import torch

from host_runtime.config import GenerationConfig
from host_runtime.engine import Engine
from host_runtime.experts.base import DuckStatus, Experts
from host_runtime.layers.cache import LayerCache
from host_runtime.layers.leapfrog import ChunkByLayers
from host_runtime.models import DeepseekV32, SequenceCache


class MarkovModel:
    """Row t of `table` [V, V] holds the logits after token t; drafts are another table's argmax."""

    def __init__(self, table: torch.Tensor, draft_table: torch.Tensor) -> None:
        size = len(table)
        self.table, self.draft_table = table, draft_table
        self.config = SimpleNamespace(vocab_size=size, max_position_embeddings=64)
        self.generation = GenerationConfig((), temperature=0.0, top_p=1.0, top_k=0)
        self.device, self.mtp = torch.device("cpu"), object()

    def new_cache(self, capacity: int) -> SequenceCache:
        caches = [LayerCache(capacity, (1, 1, 1), self.device) for _ in range(2)]
        return SequenceCache(caches[:1], caches[1])

    def forward(self, tokens: torch.Tensor, cache: SequenceCache, experts: Experts) -> torch.Tensor:
        """ "Hidden states" [n, 1]: the tokens themselves."""
        hidden = tokens[:, None].float()
        cache.layers[0].append(hidden, hidden, hidden)
        return hidden

    def forward_chunks(
        self, chunks: Sequence[torch.Tensor], cache: SequenceCache, experts: Experts
    ) -> torch.Tensor:
        return torch.cat([self.forward(chunk, cache, experts) for chunk in chunks])

    def start_chunk(
        self, tokens: torch.Tensor, cache: SequenceCache, experts: Experts
    ) -> ChunkByLayers:
        """Of one layer."""
        return ChunkByLayers(
            [lambda x: self.forward(tokens, cache, experts)], tokens, lambda hidden: hidden
        )

    def decode(
        self, tokens: torch.Tensor, caches: Sequence[SequenceCache], experts: Experts
    ) -> torch.Tensor:
        rows = zip(torch.split(tokens, 1), caches, strict=True)
        return torch.cat([self.forward(token, cache, experts) for token, cache in rows])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.table[hidden[:, 0].long()]

    def mtp_forward(
        self,
        hidden: torch.Tensor,
        next_tokens: torch.Tensor,
        cache: SequenceCache,
        experts: Experts,
    ) -> torch.Tensor:
        """Checks that it is given the hidden states of the positions that follow its cache."""
        assert cache.mtp is not None
        first = cache.mtp.length
        assert torch.equal(cache.layers[0].latent[first : first + len(hidden)], hidden)
        mixed = next_tokens[:, None].float()
        cache.mtp.append(mixed, mixed, mixed)
        return mixed

    def mtp_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.draft_table[hidden[:, 0].long()]


class NoExperts:
    """Experts that are never called."""

    def submit(
        self,
        layer: int,
        hidden: torch.Tensor,
        expert_ids: torch.Tensor,
        expert_weights: torch.Tensor,
    ) -> object:
        raise AssertionError("the Markov chain has no experts")

    def status(self) -> list[DuckStatus]:
        return []

    def close(self) -> None:
        pass


def markov_engine(model: MarkovModel, *, mtp: bool) -> Engine:
    return Engine(cast(DeepseekV32, model), cast(Experts, NoExperts()), mtp=mtp, max_queue=10)
