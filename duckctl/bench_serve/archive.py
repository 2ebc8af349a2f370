"""Writes the evidence of a run: one folder per case, run.json, index.html.

DIR/run.json                versions, configuration, every number
DIR/index.html              all of it for a person
DIR/log.txt, server.log     what the bench said; the server's log of the time, if it was named
DIR/CASE/case.json          the request
DIR/CASE/prompt.txt, output.txt
DIR/CASE/tokens.csv         each token of each repeat: time, lane, accepted
DIR/CASE/tpot.png, tpot.svg, trace.json
"""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duckctl.bench_serve.cases import Case
from duckctl.bench_serve.live_trace import call_bars, shifted
from duckctl.bench_serve.measure import Sample
from duckctl.bench_serve.statistics import Summary, summarise
from duckctl.errors import UsageError
from duckctl.plots import Chart, Series, save_chart
from duckctl.tracing import Bar, trace_document

WINDOW = 16  # tokens of the running mean in the plot
COLUMNS = ("repeat", "index", "token_id", "lane", "accepted", "engine_s", "arrival_s")
OUTLIER_FACTOR = 4.0  # the plot's axis ends at this many medians


@dataclass(frozen=True)
class CaseResult:
    """A case with its repeats."""

    case: Case
    samples: tuple[Sample, ...]

    @property
    def tokens_repeat(self) -> bool:
        """Did every repeat give the same tokens?"""
        return len({tuple(t.token_id for t in s.tokens) for s in self.samples}) == 1

    def summaries(self) -> dict[str, Summary]:
        """Median and spread of each metric."""
        names = self.samples[0].metrics
        return {name: summarise([s.metrics[name] for s in self.samples]) for name in names}

    def step_deciles(self) -> dict[str, float]:
        """Decode steps of all repeats: the lower decile is that of an undisturbed machine."""
        steps = [value for sample in self.samples for _, value in step_times_ms(sample)]
        if len(steps) < 2:
            return {}
        deciles = statistics.quantiles(steps, n=10, method="inclusive")
        return {"p10": deciles[0], "p50": deciles[4], "p90": deciles[8]}

    def document(self) -> dict[str, Any]:
        """What run.json says of the case."""
        first = self.samples[0]
        stages = [sample.stages.document() for sample in self.samples if sample.stages]
        return {
            "name": self.case.name,
            "prompt_tokens": len(first.prompt_ids),
            "completion_tokens": len(first.tokens),
            "finish_reason": first.finish_reason,
            "tokens_repeat": self.tokens_repeat,
            "token_ids": [token.token_id for token in first.tokens],
            "summary": {
                **{name: summary.document() for name, summary in self.summaries().items()},
                "acceptance": first.acceptance,
            },
            "step_ms": self.step_deciles(),
            "repeats": [
                {
                    **sample.metrics,
                    "server": dict(sample.measured),
                    "drafts_accepted": sum(token.accepted for token in sample.tokens),
                }
                for sample in self.samples
            ],
            "stages": stages,
        }


def prepare_folder(folder: Path) -> None:
    """An archive is evidence: nothing is ever overwritten."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists already", "archives are not overwritten: name another")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"can't make {folder}: {error.strerror}") from None


def write_case(folder: Path, result: CaseResult, plots: bool, trace: bool) -> None:
    """The folder of one case."""
    place = folder / result.case.name
    place.mkdir()
    first = result.samples[0]
    write_json(place / "case.json", result.case.document())
    prompt = result.case.text
    _write(place / "prompt.txt", prompt if prompt is not None else _ids_text(first.prompt_ids))
    thinking = f"<think>{first.reasoning}</think>\n" if first.reasoning else ""
    _write(place / "output.txt", thinking + first.text)
    _write(place / "tokens.csv", tokens_csv(result.samples))
    if plots and first.tpot_s:
        save_chart(tpot_chart(result), place / "tpot")
    if trace:
        write_json(place / "trace.json", trace_document(request_bars(first)), indent=None)


def write_json(path: Path, document: Mapping[str, Any], indent: int | None = 1) -> None:
    """JSON that a diff can read."""
    _write(path, json.dumps(document, indent=indent, ensure_ascii=False) + "\n")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _ids_text(ids: Sequence[int]) -> str:
    return "token ids: " + " ".join(map(str, ids)) + "\n"


def tokens_csv(samples: Sequence[Sample]) -> str:
    """One line per token of each repeat; repeats and tokens are counted from 1 and 0."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for repeat, sample in enumerate(samples, 1):
        for index, token in enumerate(sample.tokens):
            times = (f"{token.engine_s:.6f}", f"{token.arrival_s:.6f}")
            row = (repeat, index, token.token_id, token.lane, int(token.accepted), *times)
            writer.writerow(row)
    return out.getvalue()


def step_times_ms(sample: Sample) -> list[tuple[int, float]]:
    """(index, milliseconds) of each decode step: from one token of lane 0 to the next."""
    steps = []
    last_s = sample.tokens[0].engine_s
    for index, token in enumerate(sample.tokens[1:], 1):
        if not token.accepted:
            steps.append((index, 1000 * (token.engine_s - last_s)))
            last_s = token.engine_s
    return steps


def running_tpot_ms(sample: Sample) -> list[tuple[int, float]]:
    """(index, TPOT of the last WINDOW tokens)."""
    times = [token.engine_s for token in sample.tokens]
    window = min(WINDOW, len(times) - 1)
    return [
        (index, 1000 * (times[index] - times[index - window]) / window)
        for index in range(window, len(times))
    ]


def tpot_chart(result: CaseResult) -> Chart:
    """Steps of the first repeat as points, the running TPOT of every repeat as a line."""
    first = result.samples[0]
    steps = step_times_ms(first)
    series = [Series("one step (repeat 1)", [i for i, _ in steps], [v for _, v in steps], ".")]
    for repeat, sample in enumerate(result.samples, 1):
        line = running_tpot_ms(sample)
        label = f"TPOT of {WINDOW} tokens, repeat {repeat}"
        series.append(Series(label, [i for i, _ in line], [v for _, v in line]))
    middle = summarise([v for _, v in steps] or [1000 * (first.tpot_s or 0)]).median
    summary = result.summaries()["decode_tokens_per_s"]
    notes = [f"decode {summary.median:.1f} tok/s (spread {100 * summary.spread:.0f} %)"]
    if first.acceptance is not None:
        notes.append(f"MTP acceptance {100 * first.acceptance:.1f} %")
    return Chart(
        title=f"{result.case.name}: {len(first.prompt_ids)} -> {len(first.tokens)} tokens",
        x_label="token",
        y_label="milliseconds",
        series=series,
        y_max=OUTLIER_FACTOR * middle if middle > 0 else None,
        notes=notes,
    )


def request_bars(sample: Sample) -> list[Bar]:
    """A request on one time axis: prefill, then each step on the lanes that gave tokens.

    With the server's trace of the calls: what host, transport and every duck did meanwhile.
    """
    end_s = sample.ttft_s + sample.tokens[-1].engine_s
    facts = sample.stages.document() if sample.stages else {}
    bars = [
        Bar("request", "request", "request", 0.0, end_s, facts),
        Bar("request", "prefill", f"{len(sample.prompt_ids)} tokens", 0.0, sample.ttft_s),
    ]
    step_s = 0.0  # when the step began that gave the token
    for index, token in enumerate(sample.tokens[1:], 1):
        lane = "lane 1 (accepted drafts)" if token.accepted else "lane 0"
        duration_s = max(0.0, token.engine_s - step_s)
        bars.append(Bar("request", lane, f"token {index}", sample.ttft_s + step_s, duration_s))
        if not token.accepted:  # a step gives an accepted draft first, then its own token
            step_s = token.engine_s
    if sample.calls is not None:
        # Both clocks are the server's: its first token came ttft_s after the request's beginning.
        bars += shifted(call_bars(sample.calls), sample.first_token_at_s - sample.ttft_s)
    return bars
