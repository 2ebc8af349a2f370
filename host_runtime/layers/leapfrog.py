"""A layer under way, and prompt chunks: that overtake each other's waiting, or rest in between.

Shapes: n rows, D hidden size.
"""

from __future__ import annotations

from collections import deque
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


class ChunkByLayers:
    """A prompt chunk that goes through the layers one by one, whenever its turn comes.

    Between two of them nothing of it is under way, so steps of other sequences may come between.
    """

    def __init__(
        self,
        layers: Sequence[Callable[[torch.Tensor], torch.Tensor]],
        x: torch.Tensor,
        finish: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        """x [n, D] goes through `layers`; `finish` makes the hidden states of what comes out."""
        self._layers, self._x, self._finish = deque(layers), x, finish

    @torch.inference_mode()
    def advance(self) -> torch.Tensor | None:
        """Run the next layer: the chunk's hidden states [n, D] after the last one, else None."""
        self._x = self._layers.popleft()(self._x)
        return None if self._layers else self._finish(self._x)
