"""Flags in pinned host memory: how a captured graph hands a call to the CPU and waits for it.

    route    its last act: sequence += 1, then posted = sequence     (release, system scope)
    CPU      sees posted change, works, then answered = posted
    take_answer   until answered = sequence (acquire); the result is copied to the card

Flag words, int32: [0] posted, [1] layer, [16] answered; the two sides write different cache lines.
The sequence number is in device memory, so that a replayed graph goes on counting.
"""

from __future__ import annotations

import ctypes

import torch
import triton
import triton.language as tl

from host_runtime.ops.gpu.compiled import compiled
from host_runtime.ops.gpu.support import follow, launch_options

POSTED, LAYER, ANSWERED, FLAG_WORDS = 0, 1, 16, 32
SEQUENCE_WORDS = 4  # number of the newest call, 1 if a wait was given up, the call taken last
# About 1 us a look over the bus: the CPU's own deadline answers long before this gives up.
_LOOKS_MAX = 60_000_000


class Answer(ctypes.Structure):
    """See mailbox.cu."""

    _fields_ = (
        ("sequence", ctypes.c_void_p), ("answered", ctypes.c_void_p), ("result", ctypes.c_void_p),
        ("out", ctypes.c_void_p), ("size", ctypes.c_int), ("looks_max", ctypes.c_int),
    )  # fmt: skip


def take_answer(
    sequence: torch.Tensor, flags: torch.Tensor, result: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """Wait until the CPU has answered the newest call, and return the result [1, D] where the next
    kernel can read it: `out` on the card, or (without mailbox.cu) `result` in host memory.

    One warp looks: each look crosses the bus, and looks of several warps queue up behind each
    other. sequence int32 [SEQUENCE_WORDS].
    """
    kernels = compiled(sequence.device)
    if kernels is None or result.numel() % 4:
        _wait_kernel[(1,)](
            sequence, flags, LOOKS=_LOOKS_MAX, num_warps=1, **launch_options(sequence.device)
        )
        return result
    answer = Answer(
        sequence.data_ptr(), flags[ANSWERED:].data_ptr(), result.data_ptr(), out.data_ptr(),
        result.numel(), _LOOKS_MAX,
    )  # fmt: skip
    programs = min(TAKE_PROGRAMS, -(-result.numel() // (4 * TAKE_THREADS)))
    kernels.launch("take_answer", programs, TAKE_THREADS, 0, [answer])
    return out


TAKE_PROGRAMS, TAKE_THREADS = 28, 64


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
