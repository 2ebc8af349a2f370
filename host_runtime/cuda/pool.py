"""Cache rows for all sequences: fixed buffers, each sequence a contiguous range of rows."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from host_runtime.config import ModelConfig
from host_runtime.errors import HostError


@dataclass(frozen=True)
class LayerCaches:
    """Cache rows of one layer for all sequences: kv [P, L + R], key [P, E]."""

    kv: torch.Tensor
    key: torch.Tensor


class CachePool:
    """`positions` rows per layer; `reserve` hands out ranges, first fit.

    Ranges begin at multiples of `slot`: sequences of at most `slot` positions then never find the
    free rows in pieces that are too small.
    """

    def __init__(
        self, config: ModelConfig, layers: Sequence[int], positions: int, dtype: torch.dtype,
        device: torch.device, slot: int = 1,
    ) -> None:  # fmt: skip
        self.positions, self.slot = positions, slot
        width = config.kv_lora_rank + config.qk_rope_head_dim
        self.layers = {
            layer: LayerCaches(
                torch.zeros(positions, width, dtype=dtype, device=device),
                torch.zeros(positions, config.index_head_dim, dtype=dtype, device=device),
            )
            for layer in layers
        }
        self._taken: dict[int, int] = {}  # first row -> rows

    def reserve(self, capacity: int) -> GpuSequenceCache:
        """A range of rows that the returned object gives back: when released, or when it is gone.

        Raises HostError if no range of `capacity` rows is free.
        """
        base = self._first_fit(capacity)
        self._taken[base] = capacity
        return GpuSequenceCache(base, capacity, partial(self._taken.pop, base, None))

    def _first_fit(self, capacity: int) -> int:
        base = 0
        for begin, rows in sorted(self._taken.items()):
            if base + capacity <= begin:
                return base
            base = -(-(begin + rows) // self.slot) * self.slot
        if base + capacity > self.positions:
            used = sum(self._taken.values())
            raise HostError(
                f"no room for a sequence of {capacity} positions: {used} of {self.positions} cache "
                "rows on the card are in use",
                "wait for other requests to end, or lower max_tokens",
            )
        return base


class GpuSequenceCache:
    """A sequence's rows base .. base + capacity - 1, and how many are filled."""

    def __init__(self, base: int, capacity: int, give_back: Callable[[], object]) -> None:
        self.base, self.capacity = base, capacity
        self.length = 0
        self.mtp_length = 0
        self._give_back = weakref.finalize(self, give_back)

    def release(self) -> None:
        """Give the rows back; `require` refuses any from then on. Again: does nothing.

        What is still queued on the card comes before what the rows' next user queues there: all
        launches are on one stream.
        """
        self.capacity = self.length = self.mtp_length = 0
        self._give_back()

    def truncate(self, length: int) -> None:
        """Roll back to `length` positions; rows beyond are overwritten by the next append."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a cache of {self.length} positions to {length}")
        self.length = length
        self.mtp_length = min(self.mtp_length, length)

    def require(self, length: int) -> None:
        """Refuse to write behind the sequence's range: the rows there are somebody else's."""
        if length > self.capacity:
            raise ValueError(f"{length} positions do not fit a cache of {self.capacity}")
