"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "warn", "fail"]
LEVELS: tuple[Level, ...] = ("ok", "note", "warn", "fail")


@dataclass(frozen=True)
class Finding:
    """``note``: worth knowing, nothing is wrong. ``next_step`` is empty only when all is well."""

    check: str
    level: Level
    subject: str
    found: str
    expected: str = ""
    next_step: str = ""
