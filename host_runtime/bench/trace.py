"""Kernel times of one replayed step, and a Chrome/Perfetto trace of card, wire and ducks."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from host_runtime.bench.echo import EchoDucks
from host_runtime.bench.steps import place_lanes
from host_runtime.cuda.model import GpuModel, StepKind

TRACE_DUCK_US, TRACE_WIRE_US = 60.0, 60.0
DUCKS_SHOWN = 32


def op_times(model: GpuModel, context: int) -> dict[str, Any]:
    """Microseconds and launches per kernel name in one step without calls, from the profiler."""
    place_lanes(model, context)
    graph = model.graph(StepKind(1, model.scores_size(context), head=True, calls=False))
    events = _profile(graph.replay)
    totals: dict[str, list[float]] = {}
    for event in events:
        if event.get("cat") == "kernel":
            totals.setdefault(str(event["name"]), []).append(float(event["dur"]))
    launches = sum(
        1 for e in events if e.get("cat") == "cuda_runtime" and "aunch" in str(e["name"])
    )
    rows = {
        name: {"count": len(times), "us": round(sum(times), 1)} for name, times in totals.items()
    }
    return {"kernels": rows, "cpu_launches": launches}


def write_trace(model: GpuModel, ducks: EchoDucks, context: int, output: Path) -> dict[str, Any]:
    """One two-lane step with calls, as a file for chrome://tracing or ui.perfetto.dev."""
    place_lanes(model, context)
    graph = model.graph(StepKind(2, model.scores_size(context), head=True))

    def forget_calls() -> None:
        ducks.set(int(TRACE_DUCK_US * 1e3), int(TRACE_WIRE_US * 1e3))

    document = _profile_document(graph.replay, forget_calls)
    base_us = float(document.get("baseTimeNanoseconds", 0)) / 1e3
    events = document["traceEvents"]
    calls = ducks.events()
    for call in calls:
        name = f"lane {call.lane} layer {call.layer}"
        spans = [("wire", "call", call.seen_ns, call.start_ns)]
        spans += [("ducks", f"d{duck:02d}", call.start_ns, call.end_ns)
                  for duck in range(1, DUCKS_SHOWN + 1)]  # fmt: skip
        spans.append(("wire", "result", call.end_ns, call.answered_ns))
        for process, thread, begin, end in spans:
            events.append(
                {"ph": "X", "cat": "experts", "name": name, "pid": process, "tid": thread,
                 "ts": begin / 1e3 - base_us, "dur": max(0, end - begin) / 1e3}
            )  # fmt: skip
    output.write_text(json.dumps(document))
    kernels = sum(1 for event in events if event.get("cat") == "kernel")
    return {"trace": str(output), "kernels": kernels, "calls": len(calls)}


def _profile(run: Callable[[], None]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = _profile_document(run)["traceEvents"]
    return events


def _profile_document(
    run: Callable[[], None], begin: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """The profiler's trace of a second run; `begin` is called between the first and that one."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    run()
    torch.cuda.synchronize()
    begin()
    with torch.profiler.profile(activities=activities) as profiler:
        run()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        profiler.export_chrome_trace(str(path))
        document: dict[str, Any] = json.loads(path.read_text())
    return document
