"""Our kernels against ggml's and torch's on the same work, in alternating slices of one run."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from duckctl.bench.harness import Memory, Peer, experts_call
from duckctl.bench.kernels import RUNS, Setup, open_session
from duckctl.bench.weights import expert_region
from duckctl.errors import DuckError

PAIRS = (("fp8", 0), ("fp9", 0), ("q4", 1))  # our format, Peer.KINDS index
SLICE_EXPERTS = 16


@dataclass(frozen=True)
class PeerRow:
    """Medians of paired slices, best of three runs; rates count weights per second."""

    fmt: str
    peer: str
    hidden: int
    rows: int
    threads: int
    gparam_s: float
    peer_gparam_s: float
    ratio: float
    slices: int
    peer_features: tuple[str, ...]


def find_ggml() -> Path:
    """The CPU library that llama-cpp-python ships."""
    from importlib.util import find_spec

    spec = find_spec("llama_cpp")
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        for path in sorted(Path(folder).rglob("libggml-cpu*.so")):
            return path
    raise DuckError(
        "--peer needs llama-cpp-python, which is not installed",
        "pip install llama-cpp-python, or name its library: --peer-library .../libggml-cpu.so",
    )


# What ggml's CPU library was built for; ducks have the first three.
DUCK_FEATURES = ("avx2", "fma", "f16c")
OTHER_FEATURES = ("avx_vnni", "avx512", "avx512_vnni", "avx512_vbmi", "avx512_bf16", "amx_int8")
FAIR_BUILD = "CMAKE_ARGS='-DGGML_NATIVE=OFF' pip install --no-binary :all: llama-cpp-python"


def ggml_features(library: Path) -> tuple[str, ...]:
    """Instruction sets that the peer uses, by its own words (ggml_cpu_has_...)."""
    loaded = ctypes.CDLL(str(library))
    found = []
    for name in (*DUCK_FEATURES, *OTHER_FEATURES):
        has = getattr(loaded, f"ggml_cpu_has_{name}", None)
        if has is not None and has():
            found.append(name)
    return tuple(found)


def beyond_ducks(features: tuple[str, ...]) -> tuple[str, ...]:
    """Instruction sets of the peer that no duck has: its rates are then not those of a duck."""
    return tuple(name for name in features if name not in DUCK_FEATURES)


def _paired(
    ours: Callable[[int], int | None], theirs: Callable[[int], int | None], slices: int
) -> tuple[float, float, float, int] | None:
    """Medians of our ns, their ns and their ratio (theirs / ours) over undisturbed pairs."""
    pairs: list[tuple[int, int]] = []
    for attempt in range(20 * slices):
        if len(pairs) == slices:
            break
        a, b = ours(attempt), theirs(attempt)
        if a is not None and b is not None:
            pairs.append((a, b))
    if len(pairs) < 3:
        return None
    return (
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(b / a for a, b in pairs),
        len(pairs),
    )


def measure_ggml(
    setup: Setup, library: Path, shape: tuple[int, int], threads: tuple[int, ...]
) -> Iterator[PeerRow]:
    """Fused expert, one token, distinct experts in each slice."""
    hidden, rows = shape
    peer = Peer(library)
    features = ggml_features(library)
    params = 3 * hidden * rows * SLICE_EXPERTS
    size = int(setup.gigabytes * 1e9)
    x = np.random.default_rng(3).normal(0, 1, (1, hidden)).astype(np.float32)
    for fmt, kind in PAIRS:
        with ExitStack() as stack:
            region, record = expert_region(fmt, hidden, rows, size)
            stack.callback(region.close)
            experts = (region.size - 4096) // record
            peer_record = -(-peer.expert_bytes(kind, hidden, rows) // 64) * 64
            memory = Memory(max(size, peer_record * SLICE_EXPERTS))
            stack.callback(memory.close)
            peer_experts = peer.fill(kind, memory, peer_record)
            for count in threads:
                row = _ggml_row(
                    setup, (region, record, experts), (peer, kind, memory, peer_record), count,
                    shape, x, peer_experts,
                )  # fmt: skip
                if row is not None:
                    ours, theirs, ratio, slices = row
                    yield PeerRow(
                        fmt, Peer.KINDS[kind], hidden, rows, count, params / ours,
                        params / theirs, ratio, slices, features,
                    )  # fmt: skip


def _ggml_row(
    setup: Setup,
    own: tuple[Memory, int, int],
    other: tuple[Peer, int, Memory, int],
    threads: int,
    shape: tuple[int, int],
    x: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    peer_experts: int,
) -> tuple[float, float, float, int] | None:
    region, _, experts = own
    peer, kind, memory, peer_record = other

    def theirs(attempt: int) -> int | None:
        first = attempt * SLICE_EXPERTS % max(peer_experts - SLICE_EXPERTS, 1)
        return peer.run(kind, shape, threads, memory, peer_record, first, SLICE_EXPERTS)

    def ours(attempt: int) -> int | None:
        # Its cores must not spin while the peer runs: each slice has a session of its own, whose
        # first call (other experts) only touches its scratch memory.
        first = 2 * attempt * SLICE_EXPERTS + np.arange(2 * SLICE_EXPERTS)
        warm, timed = np.split((first % experts).astype(np.uint16)[None, :], 2, axis=1)
        with open_session(region, *shape, 1, threads) as kernel:
            kernel.call(experts_call(x, warm, 0))
            return kernel.call(experts_call(x, timed, 0))

    rows = [_paired(ours, theirs, setup.slices) for _ in range(RUNS)]
    found = [row for row in rows if row is not None]
    return max(found, key=lambda row: row[2]) if found else None


def measure_torch(shape: tuple[int, int], slices: int) -> float:
    """Gparam/s of one token through fused experts in torch bfloat16, its own threads."""
    import torch

    hidden, rows = shape
    count = max(SLICE_EXPERTS, int(1e9 / (6 * hidden * rows)))
    gate_up = torch.randn(count, 2 * rows, hidden).mul_(0.02).to(torch.bfloat16)
    down = torch.randn(count, hidden, rows).mul_(0.02).to(torch.bfloat16)
    x = torch.randn(1, hidden).to(torch.bfloat16)
    times = []
    for attempt in range(slices):
        begin = time.perf_counter()
        for i in range(SLICE_EXPERTS):
            expert = (attempt * SLICE_EXPERTS + i) % count
            both = torch.nn.functional.linear(x, gate_up[expert])
            h = torch.nn.functional.silu(both[:, :rows]) * both[:, rows:]
            torch.nn.functional.linear(h, down[expert])
        times.append(time.perf_counter() - begin)
    return 3 * hidden * rows * SLICE_EXPERTS / statistics.median(times) / 1e9
