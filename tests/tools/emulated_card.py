"""The card's side of mailboxes, played by the test: posts calls and waits for the answers."""

from __future__ import annotations

import time

import torch

from host_runtime.cuda.mailbox import Mailbox
from host_runtime.ops.mailbox_words import ANSWERED, LAYER, POSTED

ANSWER_S_MAX = 30.0


class Card:
    """Two mailboxes in plain memory."""

    def __init__(self, top_k: int, hidden_size: int, lanes: int = 2) -> None:
        self.boxes = [Mailbox(top_k, hidden_size, pinned=False) for _ in range(lanes)]

    def post(
        self, lane: int, layer: int, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
    ) -> None:
        """hidden [1, D], ids and weights [1, k]; the flag is raised last."""
        box = self.boxes[lane]
        box.hidden.copy_(hidden[0])
        box.ids.copy_(ids[0])
        box.weights.copy_(weights[0])
        flags = box.flags.numpy()
        flags[LAYER] = layer
        flags[POSTED] = int(flags[POSTED]) + 1

    def is_answered(self, lane: int) -> bool:
        flags = self.boxes[lane].flags.numpy()
        return int(flags[ANSWERED]) == int(flags[POSTED])

    def result(self, lane: int) -> torch.Tensor:
        """Wait for the lane's answer: [1, D]."""
        give_up = time.monotonic() + ANSWER_S_MAX
        while not self.is_answered(lane):
            assert time.monotonic() < give_up, f"nobody answers lane {lane}"
            time.sleep(0)
        return self.boxes[lane].result.clone()
