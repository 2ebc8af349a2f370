"""A live trace shows host, transport and each duck's own times on one axis, in their order."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duckctl.bench_serve.live_trace import call_bars, shifted
from duckctl.cli import run
from duckctl.lab import ducks as lab
from duckctl.lab.state import LabFolder, LabShape
from duckctl.process import die_with_parent, read_ready_line

ROOT = Path(__file__).resolve().parents[2]
READY_TIMEOUT_S = 120.0


def part(name: str, start_s: float | None, domain: str = "domain1") -> dict[str, Any]:
    return {
        "name": name,
        "domain": domain,
        "done_s": 10.5,
        "start_s": start_s,
        "clock_error_s": None if start_s is None else 20e-6,
        "queue_s": 0.05,
        "kernel_s": 0.2,
    }


def call(layer: int, at_s: float, *parts: dict[str, Any]) -> dict[str, Any]:
    return {
        "layer": layer,
        "tokens": 1,
        "submit_s": at_s,
        "sent_s": at_s + 0.1,
        "wait_begin_s": at_s + 0.15,
        "wait_end_s": at_s + 0.6,
        "ducks": list(parts),
    }


def test_bars_of_calls() -> None:
    """Each stage at its place; a duck whose clock is unknown has none; axes can be moved."""
    calls = [
        call(3, 10.0, part("d01", 10.2), part("d02", None, "domain2")),
        call(4, 11.0, part("d01", 11.2)),
    ]
    bars = shifted(call_bars({"calls": calls}), 10.0)
    found = {
        (b.process, b.track, b.label): (round(b.start_s, 6), round(b.duration_s, 6)) for b in bars
    }
    assert found["host", "waiting for ducks", "layer 3"] == (0.15, 0.45)
    assert found["host", "model", "before layer 4"] == (0.6, 0.4)
    assert found["transport", "domain1", "send layer 3"] == (0.0, 0.1)
    assert found["transport", "domain2", "gather layer 3"] == (0.1, 0.4)
    assert found["d01", "queue", "layer 3"] == (0.15, 0.05)
    assert found["d01", "kernel", "layer 3"] == (0.2, 0.2)
    assert found["d01", "reply", "layer 3"] == (0.4, 0.1)
    assert not any(process == "d02" for process, _, _ in found)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`duckctl serve ducklet` on two process ducks."""
    folder = LabFolder(tmp_path_factory.mktemp("trace") / "lab")
    folder.create()
    lab.up(folder, LabShape(2, 1, 1, 1500, "block"))
    cache = str(folder.root / "cache")
    assert run(["shard-weights", "ducklet", "--ducks", "2", "--cache-dir", cache]) == 0
    arguments = [sys.executable, "-m", "duckctl", "--quiet", "serve", "ducklet", "--port", "0"]
    process = subprocess.Popen(
        [*arguments, "--inventory", str(folder.inventory), "--cache-dir", cache],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        preexec_fn=die_with_parent,
    )
    assert process.stdout is not None
    try:
        line = read_ready_line(process.stdout, READY_TIMEOUT_S)
        assert line is not None
        yield line.removeprefix("ready ")
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()
        lab.down(folder)


@pytest.mark.slow
def test_a_live_trace_has_every_ducks_own_times(server: str, tmp_path: Path) -> None:
    """Every kernel bar of every duck lies within its call, give or take its clock's error."""
    case = tmp_path / "case.yaml"
    case.write_text("schema_version: 1\nname: one\nendpoint: chat\nprompt: Hi\nmax_tokens: 12\n")
    archive = tmp_path / "archive"
    arguments = ["bench", "serve", str(case), "--archive", str(archive), "--url", server]
    assert run([*arguments, "--repeats", "1", "--no-plots", "--trace"]) == 0
    events = json.loads((archive / "one" / "trace.json").read_text())["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"request", "host", "transport", "d01", "d02"} <= set(processes.values())
    bars = [event for event in events if event["ph"] == "X"]

    def of(process: str, track: str) -> list[dict[str, Any]]:
        return [
            bar
            for bar in bars
            if processes[bar["pid"]] == process and tracks[bar["pid"], bar["tid"]] == track
        ]

    waits = of("host", "waiting for ducks")
    sends = [bar for bar in of("transport", "domain1") if bar["name"].startswith("send")]
    assert len(waits) == len(sends) > 12  # at least one call per token, in each MoE layer
    for duck in ("d01", "d02"):
        kernels = of(duck, "kernel")
        assert len(kernels) == len(sends)
        for kernel, send, wait in zip(kernels, sends, waits, strict=True):
            error_us = kernel["args"]["clock error µs"] + 1
            assert kernel["ts"] >= send["ts"] - error_us
            assert kernel["ts"] + kernel["dur"] <= wait["ts"] + wait["dur"] + error_us
