"""Sizes as people write them."""

from __future__ import annotations

import re

from duckctl.errors import UsageError

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

_BYTES_MAX = 1 << 60


def parse_bytes(text: str, option: str) -> int:
    """'8G', '512M', '1.5GiB' or plain bytes; binary units."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise UsageError(f"{option} '{text}' is not a size", "write e.g. 8G, 512M")
    size = float(match[1]) * _UNITS[match[2].upper()]
    if size > _BYTES_MAX:
        raise UsageError(f"{option} '{text[:40]}' is more than there is", "write e.g. 8G, 512M")
    return int(size)
