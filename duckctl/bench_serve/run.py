"""Runs cases against a server and writes the archive."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckctl
from duckctl.bench_serve.archive import CaseResult, prepare_folder, write_case, write_json
from duckctl.bench_serve.cases import Case
from duckctl.bench_serve.measure import measure
from duckctl.bench_serve.page import index_page
from duckctl.chat_client import ChatClient
from duckctl.errors import DuckError, NativePartMissingError, UsageError
from duckctl.native import native_path
from duckctl.plots import require_plots

SCHEMA_VERSION = 1
SERVER_LOG_BYTES_MAX = 1 << 20


class NotReadyError(DuckError):
    """The server answers, but cannot serve."""


@dataclass(frozen=True)
class RunOptions:
    """How to run. ``note`` is the person's own words about this run."""

    repeats: int
    warm_up: int
    plots: bool
    trace: bool
    server_log: Path | None
    note: str


def run_cases(
    client: ChatClient,
    model: str,
    cases: Sequence[Case],
    folder: Path,
    options: RunOptions,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Every case, warm-up first, one request at a time; gives the content of run.json."""
    if options.plots:
        require_plots()
    ready = client.readiness()
    if not ready.get("ready"):
        raise NotReadyError(f"the server at {client.url} is not ready: {ready.get('reason')}")
    prepare_folder(folder)
    log_start = _log_size(options.server_log)
    lines: list[str] = []

    def log(line: str) -> None:
        lines.append(line)
        say(line)

    started = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    clock = time.monotonic()
    results = []
    for case in cases:
        result = _run_case(client, model, case, options, log)
        write_case(folder, result, options.plots, options.trace)
        results.append(result)
    log(f"{len(results)} cases in {time.monotonic() - clock:.1f} s")
    run = {
        "schema_version": SCHEMA_VERSION,
        "started": started,
        "url": client.url,
        "model": model,
        "note": options.note,
        "repeats": options.repeats,
        "warm_up": options.warm_up,
        "prompt_cache": "off: the server has none; a request with cached tokens is refused",
        "versions": versions(),
        "server": {"ducks": _without_counters(ready.get("ducks") or [])},
        "cases": [result.document() for result in results],
    }
    write_json(folder / "run.json", run)
    texts = {result.case.name: _texts(result) for result in results}
    (folder / "index.html").write_text(index_page(run, texts, options.plots), encoding="utf-8")
    (folder / "log.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if options.server_log is not None:
        _copy_log(options.server_log, log_start, folder / "server.log")
    return run


def _run_case(
    client: ChatClient, model: str, case: Case, options: RunOptions, log: Callable[[str], None]
) -> CaseResult:
    for _ in range(options.warm_up):
        measure(client, case, model)
    samples = []
    for repeat in range(1, options.repeats + 1):
        sample = measure(client, case, model, trace=options.trace and repeat == 1)
        samples.append(sample)
        speed = sample.metrics.get("decode_tokens_per_s")
        told = "" if speed is None else f", decode {speed:.1f} tok/s"
        log(
            f"{case.name} repeat {repeat}: {len(sample.prompt_ids)} -> {len(sample.tokens)} tokens"
            f", TTFT {1000 * sample.ttft_s:.0f} ms{told}"
        )
    return CaseResult(case, tuple(samples))


def _texts(result: CaseResult) -> tuple[str, str]:
    case, first = result.case, result.samples[0]
    prompt = case.text if case.text is not None else f"{len(case.ids)} token ids"
    thinking = f"<think>{first.reasoning}</think>\n" if first.reasoning else ""
    return prompt, thinking + first.text


def versions() -> dict[str, str]:
    """Of everything that decides what was measured."""
    try:
        build = native_path("build-hash").read_text(encoding="ascii").strip()[:12]
    except NativePartMissingError:
        build = "none"
    return {
        "duckctl": duckctl.__version__,
        "build": build,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
    }


def cpu_model() -> str:
    """What the kernel calls this machine's CPU."""
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _without_counters(ducks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in duck.items() if key != "counters"} for duck in ducks]


def _log_size(path: Path | None) -> int:
    if path is None:
        return 0
    try:
        return path.stat().st_size
    except OSError as error:
        raise UsageError(f"can't read the server's log {path}: {error.strerror}") from None


def _copy_log(source: Path, start: int, target: Path) -> None:
    """What the server has written since the run began; the end of it, if that is a lot."""
    with source.open("rb") as file:
        file.seek(max(start, source.stat().st_size - SERVER_LOG_BYTES_MAX))
        target.write_bytes(file.read(SERVER_LOG_BYTES_MAX))
