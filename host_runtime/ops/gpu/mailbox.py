"""Flags in pinned host memory: how a captured graph hands a call to the CPU and waits for it.

    route    its last act: sequence += 1, then posted = sequence     (release, system scope)
    CPU      sees posted change, works, then answered = posted
    wait_for_answer   until answered = sequence (acquire); add_norm then reads the result

Flag words, int32: [0] posted, [1] layer, [16] answered; the two sides write different cache lines.
The sequence number is in device memory, so that a replayed graph goes on counting.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from host_runtime.ops.gpu.support import follow, launch_options

POSTED, LAYER, ANSWERED, FLAG_WORDS = 0, 1, 16, 32
# About 1 us a look over the bus: the CPU's own deadline answers long before this gives up.
_LOOKS_MAX = 60_000_000


def wait_for_answer(sequence: torch.Tensor, flags: torch.Tensor) -> None:
    """Wait until the CPU has answered the newest call; the result is then in host memory.

    One warp looks: each look crosses the bus, and looks of several warps queue up behind each
    other. sequence int32 [2]: number of the newest call, and 1 if the wait was given up.
    """
    _wait_kernel[(1,)](
        sequence, flags, LOOKS=_LOOKS_MAX, num_warps=1, **launch_options(sequence.device)
    )


@triton.jit
def _load_acquire(pointer):
    return tl.inline_asm_elementwise(
        "ld.acquire.sys.global.s32 $0, [$1];", "=r,l", [pointer.to(tl.int64)],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def post_call(sequence_ptr, flags_ptr, layer):
    """Tell the CPU that the message is complete: everything this program wrote before is seen."""
    number = tl.load(sequence_ptr) + 1
    tl.debug_barrier()
    tl.store(sequence_ptr, number)
    tl.store(flags_ptr + 1, layer)
    tl.debug_barrier()
    tl.inline_asm_elementwise(
        "st.release.sys.global.s32 [$1], $2; mov.u32 $0, 0;",
        "=r,l,r",
        [flags_ptr.to(tl.int64), number],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _wait_kernel(sequence_ptr, flags_ptr, LOOKS: tl.constexpr, EARLY: tl.constexpr):
    follow(EARLY)
    number = tl.load(sequence_ptr)
    looks = 0
    seen = _load_acquire(flags_ptr + 16)
    while (seen != number) & (looks < LOOKS):
        seen = _load_acquire(flags_ptr + 16)
        looks += 1
    if seen != number:
        tl.store(sequence_ptr + 1, 1)
