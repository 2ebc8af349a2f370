"""Limits as people write them: 64M, 1.5G, 2s, 500ms."""

from __future__ import annotations

import re

from duckctl.errors import UsageError

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", re.IGNORECASE)
TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m)?", re.IGNORECASE)
UNIT_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000}
# As host_runtime/fleet/run_once.py takes them.
SIZE_MAX = 1 << 40
OUTPUT_BYTES_MAX = 32 << 20  # DUCK_WIRE_CALL_BYTES_MAX
TIME_MS_MAX = 10 * 60_000


def size_bytes(text: str, option: str, low: int = 0, high: int = SIZE_MAX) -> int:
    """ "64M" -> 67108864; units K, M, G are powers of 1024. Raises UsageError.

    ``low``, ``high``: the bytes that are possible.
    """
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{option} {text}: expected a size like 64M, 1.5G or 65536")
    size = float(match[1]) * UNIT_BYTES[match[2].upper()]
    if not low <= int(min(size, SIZE_MAX + 1)) <= high:
        raise UsageError(f"{option} {text[:40]}: expected {low} to {high} bytes", "e.g. 1M")
    return int(size)


def time_ms(text: str, option: str) -> int:
    """ "1.5s" -> 1500; without a unit the number counts seconds. Raises UsageError."""
    match = TIME.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{option} {text}: expected a time like 500ms, 10s or 2m")
    time = float(match[1]) * UNIT_MS[(match[2] or "s").lower()]
    if time > TIME_MS_MAX:
        minutes = TIME_MS_MAX // 60_000
        raise UsageError(f"{option} {text[:40]}: at most {minutes} minutes", f"write {minutes}m")
    return max(1, round(time))
