"""The peak resident memory of this process since it was started."""

from __future__ import annotations

from pathlib import Path


def peak_rss_bytes() -> int:
    """VmHWM of this program alone.

    getrusage's ru_maxrss would not do: it keeps the size of the process that started this one.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel tells no VmHWM in /proc/self/status")
