"""What runs on this machine, as /proc tells."""

from __future__ import annotations

from pathlib import Path


def processes_naming(text: str) -> list[int]:
    """Processes with this text among their arguments."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (entry / "cmdline").read_bytes()
        except OSError:
            continue  # it has just ended
        if text.encode() in arguments:
            found.append(int(entry.name))
    return found
