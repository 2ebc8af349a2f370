"""Flags in mapped pinned host memory: how a captured graph hands a call to the CPU and waits for it.

    route    its last act: sequence += 1, then posted = sequence     (release, system scope)
    CPU      sees posted change, works, then answered = posted
    fetch    waits until answered = sequence (acquire), then copies the result to the card

Flag words, int32: [0] posted, [1] layer, [16] answered; the two sides write different cache lines. The sequence number
is in device memory, so that a replayed graph goes on counting.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from host_runtime.ops.gpu.support import follow, launch_options

POSTED, LAYER, ANSWERED, FLAG_WORDS = 0, 1, 16, 32
# About 1 us a look over the bus: the CPU's own deadline answers long before this gives up.
_LOOKS_MAX = 60_000_000
_FETCH_BLOCK = 256


def fetch(
    sequence: torch.Tensor, flags: torch.Tensor, result: torch.Tensor, routed: torch.Tensor
) -> None:
    """Wait for the answer, then routed = result (in host memory). Both float32 [D].

    Many small programs, so that all reads over the bus are on their way at once. sequence int32
    [2]: the number of the newest call, and 1 if the wait was given up.
    """
    size = routed.shape[-1]
    _fetch_kernel[(-(-size // _FETCH_BLOCK),)](
        sequence,
        flags,
        result,
        routed,
        D=size,
        BLOCK=_FETCH_BLOCK,
        LOOKS=_LOOKS_MAX,
        num_warps=1,
        **launch_options(routed.device),
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
        "fence.acq_rel.sys; st.release.sys.global.s32 [$1], $2; mov.u32 $0, 0;",
        "=r,l,r",
        [flags_ptr.to(tl.int64), number],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _fetch_kernel(
    sequence_ptr,
    flags_ptr,
    result_ptr,
    routed_ptr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    LOOKS: tl.constexpr,
    EARLY: tl.constexpr,
):
    follow(EARLY)
    number = tl.load(sequence_ptr)
    looks = 0
    seen = _load_acquire(flags_ptr + 16)
    while (seen != number) & (looks < LOOKS):
        seen = _load_acquire(flags_ptr + 16)
        looks += 1
    if seen != number:
        tl.store(sequence_ptr + 1, 1)
    tl.debug_barrier()
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(result_ptr + at, mask=at < D, other=0.0, cache_modifier=".cv")
    tl.store(routed_ptr + at, row, mask=at < D)
