"""Converts in a process of its own, so that a test can kill it.

    python convert_child.py MODEL CACHE FORMAT DUCKS [--die-at N] [--memory-limit BYTES]

Prints ``begin`` before it starts. With --die-at it kills itself with SIGKILL at its Nth call of
fsync or rename: the moments at which what is on disk changes its meaning.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import sys
import threading
from pathlib import Path

from peak_memory import peak_rss_bytes

from duckctl.errors import DuckError
from duckctl.shards.checkpoint import open_checkpoint
from duckctl.shards.convert import MEMORY_LIMIT_BYTES, ConvertOptions, convert
from duckctl.shards.plan import DuckSpec, equal_plan
from duckctl.shards.progress import SilentReporter


def die_at(count: int) -> None:
    """Replaces fsync and rename by ones that end the process at the given call."""
    counter = itertools.count(1)
    lock = threading.Lock()
    real_fsync, real_rename = os.fsync, Path.rename

    def step() -> None:
        with lock:
            if next(counter) == count:
                os.kill(os.getpid(), signal.SIGKILL)

    def fsync(descriptor: int) -> None:
        step()
        real_fsync(descriptor)

    def rename(path: Path, target: Path) -> Path:
        step()
        return real_rename(path, target)

    os.fsync = fsync  # type: ignore[assignment]
    Path.rename = rename  # type: ignore[assignment,method-assign]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("cache", type=Path)
    parser.add_argument("format")
    parser.add_argument("ducks", type=int)
    parser.add_argument("--die-at", type=int, default=0)
    parser.add_argument("--memory-limit", type=int, default=MEMORY_LIMIT_BYTES)
    arguments = parser.parse_args()
    if arguments.die_at:
        die_at(arguments.die_at)
    try:
        checkpoint = open_checkpoint(arguments.model)
        ducks = [DuckSpec(f"d{index:02d}") for index in range(arguments.ducks)]
        plan = equal_plan(checkpoint.shape, arguments.format, ducks)
        sys.stdout.write("begin\n")
        sys.stdout.flush()
        options = ConvertOptions(2, arguments.memory_limit)
        result = convert(checkpoint, plan, arguments.cache, options, SilentReporter())
    except DuckError as error:
        sys.stderr.write(f"{error.message}\n{error.hint}\n")
        return error.exit_code
    sys.stdout.write(f"{result.pieces_made} {result.pieces_kept} {peak_rss_bytes()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
