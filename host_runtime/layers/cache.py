"""Per-layer cache of one sequence: latent, rotated key and index key of each position.

Lengths are explicit and rollback is `truncate`: what lies beyond `length` is stale and is
overwritten by the next append. The buffers grow in steps up to the capacity that the request was
admitted with, so a short answer to a request with a large limit takes little memory.
"""

from __future__ import annotations

import torch

_FIRST_POSITIONS = 256


class LayerCache:
    """Three buffers of `capacity` positions at most, all valid up to `length`.

    latent [T, L], rope_key [T, R] and index_key [T, E] are views of the valid part, T = length.
    """

    def __init__(self, capacity: int, widths: tuple[int, int, int], device: torch.device) -> None:
        self.capacity = capacity
        self.length = 0
        reserved = min(capacity, _FIRST_POSITIONS)
        self._buffers = [torch.empty(reserved, width, device=device) for width in widths]

    @property
    def latent(self) -> torch.Tensor:
        return self._buffers[0][: self.length]

    @property
    def rope_key(self) -> torch.Tensor:
        return self._buffers[1][: self.length]

    @property
    def index_key(self) -> torch.Tensor:
        return self._buffers[2][: self.length]

    def append(self, latent: torch.Tensor, rope_key: torch.Tensor, index_key: torch.Tensor) -> None:
        """Add n positions: latent [n, L], rope_key [n, R], index_key [n, E]."""
        begin, end = self.length, self.length + latent.shape[0]
        self._reserve(end)
        for buffer, rows in zip(self._buffers, (latent, rope_key, index_key), strict=True):
            buffer[begin:end] = rows
        self.length = end

    def truncate(self, length: int) -> None:
        """Forget the positions from `length` on."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a cache of {self.length} positions to {length}")
        self.length = length

    def _reserve(self, length: int) -> None:
        if length > self.capacity:
            raise ValueError(f"{length} positions do not fit a cache of {self.capacity}")
        reserved = self._buffers[0].shape[0]
        if length <= reserved:
            return
        while reserved < length:
            reserved *= 2
        for index, buffer in enumerate(self._buffers):
            larger = buffer.new_empty(min(reserved, self.capacity), buffer.shape[1])
            larger[: self.length] = buffer[: self.length]
            self._buffers[index] = larger
