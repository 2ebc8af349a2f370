"""A lane's mailbox: host memory that the card and the CPU both see.

The protocol is told in ops/gpu/mailbox.py. Needs neither a card nor Triton.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from host_runtime.experts.base import MailboxMemory
from host_runtime.ops.mailbox_words import FLAG_WORDS


class Mailbox:
    """One call's message and answer. `pinned`: as the card needs it.

    flags int32 [FLAG_WORDS], ids int16 [k] (the bits are unsigned), weights float32 [k], hidden
    float32 [D], result float32 [1, D].
    """

    def __init__(self, top_k: int, hidden_size: int, *, pinned: bool = True) -> None:
        def memory(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(*shape, dtype=dtype, pin_memory=pinned)

        self.flags = memory(FLAG_WORDS, dtype=torch.int32)
        self.ids = memory(top_k, dtype=torch.int16)
        self.weights = memory(top_k)
        self.hidden = memory(hidden_size)
        self.result = memory(1, hidden_size)


@dataclass(frozen=True)
class HostLane:
    """A lane without a card, for tests and benchmarks."""

    mailbox: Mailbox


def memory_of(box: Mailbox) -> MailboxMemory:
    """Where the parts lie; valid as long as `box`."""
    return MailboxMemory(
        top_k=box.ids.numel(),
        flags=box.flags.data_ptr(),
        ids=box.ids.data_ptr(),
        weights=box.weights.data_ptr(),
        hidden=box.hidden.data_ptr(),
        result=box.result.data_ptr(),
    )
