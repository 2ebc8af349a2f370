"""python -m host_runtime.cuda.export MODEL_DIR FOLDER: writes the host's weights (host_file.py).

Started by `duckctl shard-weights --host-weights`; progress to stderr, the index's path to stdout.
Exit code 1 with a message for expected failures.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from host_runtime.cuda.host_file import write_host_file
from host_runtime.errors import HostError

STEPS_SHOWN = 50


def main() -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m host_runtime.cuda.export")
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

    def say(done: int, in_all: int) -> None:
        if done % STEPS_SHOWN == 0 or done == in_all:
            sys.stderr.write(f"host weights: {done} of {in_all} arrays\n")

    try:
        index = write_host_file(arguments.model_dir, arguments.folder, say)
    except HostError as error:
        hint = f"\n  hint: {error.hint}" if error.hint else ""
        sys.stderr.write(f"error: {error.message}{hint}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"error: cannot write {arguments.folder}: {error.strerror}\n")
        return 1
    sys.stdout.write(f"{index}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
