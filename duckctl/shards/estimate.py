"""What a conversion will need: bytes, free space, and time from a measured sample."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import local

import numpy as np

from duckctl.shards.checkpoint import Checkpoint, ExpertSource
from duckctl.shards.convert import Remainder
from duckctl.shards.errors import CacheError
from duckctl.shards.native import PackLibrary
from duckctl.shards.plan import ShardPlan
from duckctl.shards.reader import ExpertReader, FileTable
from duckctl.shards.store import FULL_DISK_ERRORS, free_bytes

SAMPLE_SECONDS = 2.0
SAMPLE_EXPERTS_MAX = 64
SAMPLE_WRITE_BYTES_MAX = 1 << 28
SAMPLE_WRITE_SHARE = 16  # the write sample is at most this fraction of the cache


@dataclass(frozen=True)
class Estimate:
    """Rates in bytes per second: source bytes converted, cache bytes written."""

    convert_rate: float
    write_rate: float
    seconds: float


def existing_parent(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def estimate(
    checkpoint: Checkpoint, plan: ShardPlan, cache_dir: Path, threads: int, rest: Remainder
) -> Estimate:
    """Converts a few experts in memory and writes a scratch file, about two seconds each.

    Reading and writing share the disk when source and cache are on one file system; then their
    times add up, otherwise the slower one decides.
    """
    convert_rate = _convert_rate(checkpoint, plan, threads)
    folder = existing_parent(cache_dir)
    write_rate = _write_rate(
        folder, min(SAMPLE_WRITE_BYTES_MAX, plan.total_bytes // SAMPLE_WRITE_SHARE)
    )
    convert_s = rest.read_bytes / convert_rate
    write_s = rest.write_bytes / write_rate
    same_disk = folder.stat().st_dev == checkpoint.files[0].path.stat().st_dev
    seconds = convert_s + write_s if same_disk else max(convert_s, write_s)
    return Estimate(convert_rate, write_rate, seconds)


def _sample(checkpoint: Checkpoint) -> list[ExpertSource]:
    """Experts spread over all layers: parts of the files that are not in the page cache yet."""
    experts = [source for layer in checkpoint.shape.layers for source in checkpoint.experts(layer)]
    return experts[:: max(1, len(experts) // SAMPLE_EXPERTS_MAX)][:SAMPLE_EXPERTS_MAX]


def _convert_rate(checkpoint: Checkpoint, plan: ShardPlan, threads: int) -> float:
    library = PackLibrary()
    layouts = plan.layouts
    state = local()
    deadline = time.monotonic() + SAMPLE_SECONDS

    with FileTable(file.path for file in checkpoint.files) as files:

        def convert_one(source: ExpertSource) -> int:
            if time.monotonic() > deadline:
                return 0
            if not hasattr(state, "reader"):
                state.reader = ExpertReader(files, library, plan.fmt)
                state.record = np.empty(max(x.record_bytes for x in layouts), np.uint8)
            state.reader.load(source)
            matrices, _ = state.reader.decode()
            for layout in layouts:
                library.pack_record(layout, matrices, state.record[: layout.record_bytes])
            return source.size_bytes

        started = time.monotonic()
        with ThreadPoolExecutor(threads) as pool:
            done = sum(pool.map(convert_one, _sample(checkpoint)))
    return max(done, 1) / max(time.monotonic() - started, 1e-6)


def _write_rate(folder: Path, size_bytes: int) -> float:
    """Rate of a scratch file that is written, synced and removed again."""
    size_bytes = max(size_bytes, 1 << 20)
    block = memoryview(bytes(1 << 20))
    path = folder / f".duckctl-write-sample-{os.getpid()}"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise CacheError(
            f"{folder} cannot be written to: {error.strerror}",
            "choose another place with --cache-dir",
        ) from error
    done = 0
    started = time.monotonic()
    try:
        while done < size_bytes and time.monotonic() - started < SAMPLE_SECONDS:
            done += os.write(descriptor, block)
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in FULL_DISK_ERRORS:  # check_space tells about a full disk
            raise
    finally:
        os.close(descriptor)
        path.unlink()
    return max(done, 1) / max(time.monotonic() - started, 1e-6)


@dataclass(frozen=True)
class SpaceCheck:
    """Free space of the cache's file system against what the cache needs."""

    need_bytes: int
    free_bytes: int

    @property
    def missing_bytes(self) -> int:
        return max(0, self.need_bytes - self.free_bytes)


def check_space(rest: Remainder, cache_dir: Path) -> SpaceCheck:
    return SpaceCheck(rest.need_bytes, free_bytes(cache_dir))
