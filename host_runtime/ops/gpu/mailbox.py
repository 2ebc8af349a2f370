"""Flags in pinned host memory: how a captured graph hands a call to the CPU and waits for it.

    route    its last act: sequence += 1, then posted = sequence     (release, system scope)
    CPU      sees posted change, works, then answered = posted
    add_parts   until answered = sequence (acquire); then reads the result

Flag words, int32: [0] posted, [1] layer, [16] answered; the two sides write different cache lines.
The sequence number is in device memory, so that a replayed graph goes on counting.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from host_runtime.ops.gpu.compiled import Kernels, compiled
from host_runtime.ops.gpu.split import NO_SPLIT, SPLIT_FIELDS, SplitRows
from host_runtime.ops.gpu.support import follow, launch_options

POSTED, LAYER, ANSWERED, FLAG_WORDS = 0, 1, 16, 32
SEQUENCE_WORDS = 4  # number of the newest call, 1 if a wait was given up, the call taken last
# About 1 us a look over the bus: the CPU's own deadline answers long before this gives up.
_LOOKS_MAX = 60_000_000
# Few, so that many multiprocessors read from the host at once; many, where none does.
_ANSWER_THREADS, _ADD_THREADS = 64, 256


class Addition(ctypes.Structure):
    """See mailbox.cu."""

    _fields_ = (
        ("sequence", ctypes.c_void_p), ("answered", ctypes.c_void_p), ("result", ctypes.c_void_p),
        ("x", ctypes.c_void_p), ("added", ctypes.c_void_p), ("gain", ctypes.c_void_p),
        *SPLIT_FIELDS, ("size", ctypes.c_int),
        ("parts", ctypes.c_int), ("looks_max", ctypes.c_int),
    )  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """Where an expert call's result comes: sequence int32 [SEQUENCE_WORDS] on the card, flags and
    result float32 [1, D] in pinned host memory."""

    sequence: torch.Tensor
    flags: torch.Tensor
    result: torch.Tensor


def adds_parts(x: torch.Tensor) -> Kernels | None:
    """The kernels, if add_parts takes a row like x."""
    return compiled(x.device) if x.shape[-1] % 4 == 0 else None


def add_parts(
    kernels: Kernels,
    x: torch.Tensor,
    added: torch.Tensor,
    answer: Answer | None = None,
    *,
    spread: bool = False,
    gain: torch.Tensor | None = None,
    split: SplitRows | None = None,
) -> None:
    """x [1, D] += the sum of added [parts, D], and the newest call's answer, which is waited for.

    One thread looks: each look crosses the bus, and looks of several warps queue up behind each
    other. `spread` over many programs, as answers need it. `split` becomes x * gain [D], split, and
    the squares of x.
    """
    size, a = x.shape[-1], answer
    argument = Addition(
        a.sequence.data_ptr() if a else None, a.flags[ANSWERED:].data_ptr() if a else None,
        a.result.data_ptr() if a else None, x.data_ptr(), added.data_ptr(),
        gain.data_ptr() if gain is not None else None, *(split.pointers() if split else NO_SPLIT),
        size, added.shape[0], _LOOKS_MAX,
    )  # fmt: skip
    threads = _ANSWER_THREADS if spread or answer else _ADD_THREADS
    kernels.launch("mailbox.cu", "add_parts", -(-size // (4 * threads)), threads, 0, [argument])


def wait_for_answer(sequence: torch.Tensor, flags: torch.Tensor) -> None:
    """Wait until the CPU has answered the newest call; the result is then in host memory."""
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
