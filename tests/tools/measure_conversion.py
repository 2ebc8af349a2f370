"""Measures a conversion against what disk and cores allow in the same run, and projects it.

    python tests/tools/measure_conversion.py MODEL SCRATCH --ducks 32 --format fp9

1. disk limit: the source's bytes are read and the cache's bytes written, at the same time, by two
   threads that do nothing else; 2. the conversion; 3. the disk limit again; 4. cores: packing and
   hashing of experts that lie in memory, with all threads. Source files leave the page cache
   before each part. Prints JSON; the scratch directory's content is removed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from duckctl.shards.checkpoint import Checkpoint, open_checkpoint
from duckctl.shards.convert import ConvertOptions, convert
from duckctl.shards.memory import aligned_bytes
from duckctl.shards.native import PackLibrary
from duckctl.shards.parse import parse_bytes
from duckctl.shards.plan import DuckSpec, ShardPlan, equal_plan
from duckctl.shards.progress import LineReporter
from duckctl.shards.reader import ExpertReader, FileTable
from duckctl.shards.store import open_data

BLOCK_BYTES = 16 << 20
DEEPSEEK_V32_EXPERT_BYTES = 59 * 256 * 3 * (7168 * 2048 + 4 * 56 * 16)
IN_MEMORY_SECONDS = 4.0


def evict(checkpoint: Checkpoint) -> None:
    """Takes the source files out of the page cache."""
    for file in checkpoint.files:
        descriptor = os.open(file.path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def read_all(checkpoint: Checkpoint) -> None:
    buffer = aligned_bytes(BLOCK_BYTES).data
    for file in checkpoint.files:
        descriptor = open_data(file.path, os.O_RDONLY, direct=True)
        while os.readv(descriptor, [buffer]):
            pass
        os.close(descriptor)


def write_all(path: Path, size_bytes: int) -> None:
    block = aligned_bytes(BLOCK_BYTES).data
    descriptor = open_data(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, direct=True)
    for start in range(0, size_bytes, BLOCK_BYTES):
        os.write(descriptor, block[: min(BLOCK_BYTES, size_bytes - start)])
    os.fsync(descriptor)
    os.close(descriptor)
    path.unlink()


def disk_seconds(checkpoint: Checkpoint, plan: ShardPlan, scratch: Path) -> float:
    """Time of reading the source and writing the cache's size, both at once."""
    evict(checkpoint)
    started = time.monotonic()
    writer = threading.Thread(target=write_all, args=(scratch / "written", plan.total_bytes))
    writer.start()
    read_all(checkpoint)
    writer.join()
    return time.monotonic() - started


def in_memory_rates(checkpoint: Checkpoint, plan: ShardPlan, threads: int) -> dict[str, float]:
    """Source bytes per second and thread of packing alone: whole experts, and in the cache."""
    library = PackLibrary()
    source = checkpoint.experts(checkpoint.shape.layers[0])[0]
    layouts = plan.layouts
    with FileTable(file.path for file in checkpoint.files) as files:
        reader = ExpertReader(files, library, plan.fmt)
        reader.load(source)
    matrices, _ = reader.decode()

    def pack(parts: int) -> float:
        records = [np.empty(layout.record_bytes, np.uint8) for layout in layouts[:parts]]
        done = 0
        started = time.thread_time()
        while time.thread_time() - started < IN_MEMORY_SECONDS / 2:
            for layout, record in zip(layouts, records, strict=False):
                library.pack_record(layout, matrices, record)
                done += 3 * layout.rows * layout.hidden_size
        return done / (time.thread_time() - started)

    with ThreadPoolExecutor(threads) as pool:
        whole = sum(pool.map(pack, [len(layouts)] * threads)) / threads
        cached = sum(pool.map(pack, [1] * threads)) / threads
    return {"whole_experts_per_core": whole, "one_slice_per_core": cached}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--ducks", type=int, default=32)
    parser.add_argument("--format", default="fp9")
    parser.add_argument("--memory-limit", default="8G")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    checkpoint = open_checkpoint(arguments.model)
    ducks = [DuckSpec(f"d{index:02d}") for index in range(arguments.ducks)]
    plan = equal_plan(checkpoint.shape, arguments.format, ducks)
    scratch: Path = arguments.scratch
    scratch.mkdir(parents=True, exist_ok=True)
    limit_before_s = disk_seconds(checkpoint, plan, scratch)
    evict(checkpoint)
    before = resource.getrusage(resource.RUSAGE_SELF)
    options = ConvertOptions(
        arguments.threads, parse_bytes(arguments.memory_limit, "--memory-limit")
    )
    result = convert(checkpoint, plan, scratch / "cache", options, LineReporter())
    usage = resource.getrusage(resource.RUSAGE_SELF)
    user_s, system_s = usage.ru_utime - before.ru_utime, usage.ru_stime - before.ru_stime
    shutil.rmtree(scratch / "cache")
    limit_after_s = disk_seconds(checkpoint, plan, scratch)
    limit_s = (limit_before_s + limit_after_s) / 2
    rate = result.read_bytes / result.seconds
    report = {
        "source_bytes": result.read_bytes,
        "cache_bytes": plan.total_bytes,
        "seconds": round(result.seconds, 2),
        "disk_limit_seconds": [round(limit_before_s, 2), round(limit_after_s, 2)],
        "share_of_disk_limit": round(limit_s / result.seconds, 3),
        "rate": round(rate),
        "user_seconds": round(user_s, 2),
        "system_seconds": round(system_s, 2),
        "cpu_bound_rate_per_core": round(result.read_bytes / (user_s + system_s)),
        "page_faults": usage.ru_minflt - before.ru_minflt,
        "peak_bytes": usage.ru_maxrss * 1024,
        "pack_rates": {
            name: round(value)
            for name, value in in_memory_rates(checkpoint, plan, arguments.threads).items()
        },
        "projected_v32_minutes": round(DEEPSEEK_V32_EXPERT_BYTES / rate / 60, 1),
        "load_average": os.getloadavg(),
    }
    sys.stdout.write(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
