"""Speed of the experts kernel against what the memory and the CPU give in the same run.

A slice is one call of about a millisecond or more. Slices of kernel and of plain reading alternate;
a kernel slice is compared with the mean of the reads before and after it, and dropped when a core
was pre-empted. The best of three medians counts: what disturbs a benchmark only makes it slower.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from duckctl.bench.harness import (
    Kernel,
    Memory,
    cycles_per_second,
    experts_call,
    read_call,
    scratch_bytes,
)
from duckctl.bench.weights import expert_region
from duckctl.native import native_path
from duckctl.shards.layout import record_bytes

FORMATS = ("fp8", "fp9", "fp7", "q6", "q4")
SHAPES = ((7168, 64), (7168, 128), (2048, 32))
TOKENS = (1, 2, 16, 64, 256)
BODIES = {"fp8": ("int", "cvt"), "fp9": ("wide", "narrow"), "fp7": ("int", "cvt")}
RUNS = 3
DISTURBED_MAX = 20  # times as many slices may be dropped before a row is given up
FLOP_PER_CYCLE_MAX = 32.0  # two 8-wide FMA units
TOP_K = 16
IN_CACHE_HIDDEN = 2048
IN_CACHE_BYTES_MAX = 700_000  # second-level caches of the cores that matter have 1 MB and more


@dataclass(frozen=True)
class Row:
    """One measurement; rates are medians of the best run."""

    fmt: str
    hidden: int
    rows: int
    tokens: int
    threads: int
    gb_s: float
    gparam_s: float
    roofline_gb_s: float
    share_of_roofline: float  # median of paired ratios
    share_of_bound: float  # of min(roofline, threads x in-cache rate)
    slices: int


@dataclass(frozen=True)
class CacheRow:
    """One core on one expert that stays in its cache; rates are 0 when no call was undisturbed."""

    fmt: str
    body: str
    tokens: int
    params_per_cycle: float  # weights, per pass over them
    gb_s: float
    share_of_fma_peak: float


@dataclass(frozen=True)
class Setup:
    gigabytes: float
    slices: int
    hot: bool


def _top_experts(tokens: int) -> int:
    """Experts per slice: enough for a millisecond, few enough that big calls end soon."""
    return TOP_K if tokens <= 2 else 4 if tokens <= 16 else 1


@contextmanager
def open_session(
    memory: Memory, hidden: int, rows: int, tokens: int, cores: int
) -> Iterator[Kernel]:
    """A session for calls of `tokens` tokens."""
    top_k = _top_experts(tokens)
    scratch = scratch_bytes(hidden, rows, max(tokens, 2), max(top_k, 2), cores)
    call_max = 1 << 16 | 4 * (tokens + 1) * hidden
    elf = native_path("experts-avx2.elf")
    with Kernel(elf, memory, cores=cores, scratch=scratch, call_max=call_max) as kernel:
        yield kernel


def _until_clean(measure: Callable[[], int | None], budget: list[int]) -> int:
    """The first undisturbed time; a machine that is too busy gives its last one."""
    while (ns := measure()) is None and budget[0] > 0:
        budget[0] -= 1
    return ns if ns is not None else 0


def _rows_in_cache(fmt: str) -> int:
    """As many rows as fit: what a call costs besides its weights is then a small part."""
    fitting = [
        rows
        for rows in range(32, 1024, 32)
        if record_bytes(fmt, IN_CACHE_HIDDEN, 0, rows) <= IN_CACHE_BYTES_MAX
    ]
    return fitting[-1]


def measure_cache(fmt: str, tokens: int, body: int) -> CacheRow:
    """Params per cycle of one core on one expert of 2048 x rows that fits its cache."""
    hidden, rows = IN_CACHE_HIDDEN, _rows_in_cache(fmt)
    region, record = expert_region(fmt, hidden, rows, 1)
    rng = np.random.default_rng(1)
    message = experts_call(
        rng.normal(0, 1, (tokens, hidden)).astype(np.float32), np.zeros((tokens, 1), np.uint16),
        body,
    )  # fmt: skip
    best = float("inf")
    try:
        with open_session(region, hidden, rows, tokens, 1) as kernel:
            for _ in range(400 if tokens <= 2 else 60 if tokens <= 16 else 15):
                ns = kernel.call(message)
                best = min(best, ns) if ns is not None else best
    finally:
        region.close()
    hz = cycles_per_second()
    params = 3 * hidden * rows
    per_cycle = params / (best * 1e-9 * hz)
    names = BODIES.get(fmt, ("madd",))
    return CacheRow(
        fmt, names[body - 1], tokens, per_cycle, record / best,
        2 * per_cycle * tokens / FLOP_PER_CYCLE_MAX,
    )  # fmt: skip


def _ids(rng: np.random.Generator, experts: int, start: int, tokens: int) -> npt.NDArray[np.uint16]:
    """All tokens use the same experts, so that each is read once: `start` and those after it."""
    chosen = (start + np.arange(_top_experts(tokens))) % experts
    rng.shuffle(chosen)
    return np.tile(chosen.astype(np.uint16), (tokens, 1))


def _run_slices(
    kernel: Kernel, setup: Setup, experts: int, record: int, hidden: int, tokens: int
) -> list[tuple[float, float]]:
    """(kernel bytes/ns, mean bytes/ns of the reads around it) of each slice."""
    rng = np.random.default_rng(7)
    x = rng.normal(0, 1, (tokens, hidden)).astype(np.float32)
    count = _top_experts(tokens)
    size = min(experts * record, max(count * record, 16 << 20)) // 64 * 64
    pairs: list[tuple[float, float]] = []
    budget = [DISTURBED_MAX * setup.slices]
    place = 0

    def read() -> float:
        nonlocal place
        offset = 4096 + place * record % max(experts * record - size, 1) // 64 * 64
        place += count
        ns = _until_clean(partial(kernel.call, read_call(offset, size)), budget)
        return size / ns if ns else 0.0

    before = read()
    for _ in range(setup.slices):
        start = 0 if setup.hot else place % experts
        place += count
        message = experts_call(x, _ids(rng, experts, start, tokens), 0)
        ns = _until_clean(partial(kernel.call, message), budget)
        after = read()
        if ns and before and after:
            pairs.append((count * record / ns, (before + after) / 2))
        before = after
    return pairs


def measure_memory(
    setup: Setup,
    fmt: str,
    shape: tuple[int, int],
    tokens: Sequence[int],
    threads: Sequence[int],
    in_cache_gb_s: dict[int, float],
) -> Iterator[Row]:
    """Rows of one format and shape; `in_cache_gb_s` by token count, for the bound."""
    hidden, rows = shape
    region, record = expert_region(fmt, hidden, rows, int(setup.gigabytes * 1e9))
    experts = (region.size - 4096) // record
    try:
        for count in threads:
            for token_count in tokens:
                with open_session(region, hidden, rows, token_count, count) as kernel:
                    runs = [
                        _run_slices(kernel, setup, experts, record, hidden, token_count)
                        for _ in range(RUNS)
                    ]
                row = _best_row(runs, in_cache_gb_s.get(token_count, 0.0) * count)
                if row is not None:
                    gb_s, roofline, share, bound, slices = row
                    params = 3 * hidden * rows / record
                    yield Row(
                        fmt, hidden, rows, token_count, count, gb_s, gb_s * params, roofline,
                        share, bound, slices,
                    )  # fmt: skip
    finally:
        region.close()


def _best_row(
    runs: Sequence[Sequence[tuple[float, float]]], in_cache: float
) -> tuple[float, float, float, float, int] | None:
    rows = []
    for pairs in runs:
        if len(pairs) < 3:
            continue
        gb_s = statistics.median(pair[0] for pair in pairs)
        roofline = statistics.median(pair[1] for pair in pairs)
        share = statistics.median(kernel / read for kernel, read in pairs)
        bound = statistics.median(
            kernel / (min(read, in_cache) if in_cache else read) for kernel, read in pairs
        )
        rows.append((gb_s, roofline, share, bound, len(pairs)))
    return max(rows, key=lambda row: row[2]) if rows else None
