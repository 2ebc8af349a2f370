"""Texts that ducks and kernel files tell: a person reads them in a terminal."""

from __future__ import annotations

_SHOWN = bytes(byte if 0x20 <= byte < 0x7F else ord("?") for byte in range(256))


def told_text(raw: bytes) -> str:
    """Printable ASCII as it is, any other byte as ``?`` (as the host transport does, copy_text)."""
    return raw.translate(_SHOWN).decode("ascii")


def told_lines(raw: bytes) -> str:
    """The same for a text of several lines: its line breaks stay."""
    return "\n".join(told_text(line) for line in raw.split(b"\n"))
