"""Chrome/Perfetto traces: bars on tracks, as JSON of the Trace Event Format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Bar:
    """Something that took time. Seconds on one clock."""

    process: str
    track: str
    label: str
    start_s: float
    duration_s: float
    facts: Mapping[str, Any] = field(default_factory=dict)


def trace_document(bars: Sequence[Bar]) -> dict[str, Any]:
    """Processes and tracks get numbers in the order of their first bar; names are told apart."""
    processes = {
        name: number for number, name in enumerate(dict.fromkeys(b.process for b in bars), 1)
    }
    tracks = {
        key: number
        for number, key in enumerate(dict.fromkeys((b.process, b.track) for b in bars), 1)
    }
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}}
        for name, number in processes.items()
    ]
    for (process, track), number in tracks.items():
        place = {"pid": processes[process], "tid": number}
        events.append({"ph": "M", "name": "thread_name", **place, "args": {"name": track}})
        events.append(
            {"ph": "M", "name": "thread_sort_index", **place, "args": {"sort_index": number}}
        )
    for bar in bars:
        events.append(
            {
                "ph": "X",
                "name": bar.label,
                "pid": processes[bar.process],
                "tid": tracks[bar.process, bar.track],
                "ts": round(bar.start_s * 1e6, 3),
                "dur": round(bar.duration_s * 1e6, 3),
                **({"args": dict(bar.facts)} if bar.facts else {}),
            }
        )
    return {"displayTimeUnit": "ms", "traceEvents": events}
