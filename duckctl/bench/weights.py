"""Weights for benchmarks: one Gaussian expert in FP8, packed and repeated over a region.

Real codes matter: uniformly random ones have five times as many subnormals.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from duckctl.bench.harness import Memory
from duckctl.shards.layout import BLOCK, DIRECTORY_BYTES, RegionLayout
from duckctl.shards.native import Matrix, PackLibrary

EXPERTS_MAX = 65534


def _bf16_matrix(name: str, rng: np.random.Generator, rows: int, columns: int) -> Matrix:
    values = rng.normal(0, 0.02, (rows, columns)).astype(np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    grid = np.zeros((-(-rows // BLOCK), -(-columns // BLOCK)), np.float32)
    data: npt.NDArray[np.uint8] = bits.view(np.uint8).reshape(-1)
    return Matrix(name, "BF16", rows, columns, data, grid)


def expert_region(fmt: str, hidden: int, rows: int, size: int) -> tuple[Memory, int]:
    """A weights region of about `size` bytes (at least one expert), and its record size."""
    library = PackLibrary()
    rng = np.random.default_rng(20260104)
    one = RegionLayout(fmt, hidden, rows, 1, (0,), 0, rows)
    count = min(max(size // one.record_bytes, 1), EXPERTS_MAX)
    layout = RegionLayout(fmt, hidden, rows, count, (0,), 0, rows)
    matrices = [
        _bf16_matrix("gate", rng, rows, hidden),
        _bf16_matrix("up", rng, rows, hidden),
        _bf16_matrix("down", rng, hidden, rows),
    ]
    for matrix in matrices:
        library.bf16_scales(fmt, matrix, matrix.scale)
    record = np.zeros(layout.record_bytes, np.uint8)
    library.pack_record(layout, matrices, record)
    memory = Memory(layout.region_bytes)
    memory.bytes[:DIRECTORY_BYTES] = np.frombuffer(layout.directory(), np.uint8)
    for expert in range(count):
        begin = DIRECTORY_BYTES + expert * layout.record_bytes
        memory.bytes[begin : begin + layout.record_bytes] = record
    return memory, layout.record_bytes
