"""A layer under way, and prompt chunks that overtake each other's waiting.

Shapes: n rows, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from host_runtime.experts.base import PendingExperts


@dataclass(frozen=True)
class StartedLayer:
    """A layer whose routed experts work: residual x and the host's own MLP output, [n, D] each."""

    x: torch.Tensor
    own: torch.Tensor
    pending: PendingExperts | None

    def finish(self) -> torch.Tensor:
        """Wait for the experts; the layer's output [n, D]."""
        if self.pending is None:
            return self.x + self.own
        return self.x + (self.own + self.pending.wait().to(self.own.device))


# Starts a layer for the chunk of that number, whose input is [n, D].
LayerStart = Callable[[int, torch.Tensor], StartedLayer]


def leapfrog(layers: Sequence[LayerStart], chunks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Chunks [n, D] of one sequence through all layers: outputs of the last layer.

    Chunk c + 1 needs of chunk c only the cache rows of the same layer. So its attention runs while
    the experts of chunk c work, and chunk c goes on to the next layer while those of chunk c + 1
    do. Every chunk sees what it would see if the chunks went one after the other: the same bits.
    """
    before: list[StartedLayer] = []
    for start in layers:
        started = []
        for number, chunk in enumerate(chunks):
            x = before[number].finish() if before else chunk
            started.append(start(number, x))
        before = started
    return [layer.finish() for layer in before]
