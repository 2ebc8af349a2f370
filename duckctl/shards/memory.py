"""Page-aligned buffers: what direct I/O needs, in huge pages where the kernel has them."""

from __future__ import annotations

import contextlib
import mmap

import numpy as np

from duckctl.shards.native import Bytes

PAGE_BYTES = 4096


def aligned_bytes(size_bytes: int) -> Bytes:
    """An array of that size at a page boundary; its memory is taken when it is touched."""
    area = mmap.mmap(-1, max(size_bytes, PAGE_BYTES), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without transparent huge pages
        area.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(area, np.uint8)[:size_bytes]


def round_down(value: int) -> int:
    return value // PAGE_BYTES * PAGE_BYTES


def round_up(value: int) -> int:
    return -(-value // PAGE_BYTES) * PAGE_BYTES
