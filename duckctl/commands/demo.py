"""``duckctl demo``: the whole chain on this machine."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import Any

import typer

from duckctl.console import human_bytes, print_json, print_table, talk
from duckctl.demo.prompts import Answer
from duckctl.demo.run import DemoResult, duck_counts, run_demo
from duckctl.demo.transcript import Transcript

app = typer.Typer()

ANSWER_COLUMNS = ("prompt", "tokens in>", "out>", "TTFT>", "TPOT>", "tok/s>", "MTP accepted>")
DUCK_COLUMNS = (
    *("duck", "weights>", "calls>", "sent>", "received>", "in kernel>", "call>", "resent>"),
)


@app.command()
def demo(
    ducks: int = typer.Option(4, "--ducks", help="Number of ducks: 1, 2, 4 or 8."),
    weight_format: str = typer.Option("fp9", "--format", help="On the ducks: fp8 or fp9."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of the answers."),
) -> None:
    """Start ducks as processes, convert the shipped model, serve it, and answer two prompts.

    Needs no privileges and no special hardware. Everything is shut down again at the end, also
    after Ctrl-C or a failure. The answers are checked: exit code 0 means that they are right.

    \b
    Examples:
      duckctl demo
      duckctl demo --ducks 8 --format fp8
      duckctl demo --json
    """
    if weight_format not in ("fp8", "fp9"):
        raise typer.BadParameter("expected fp8 or fp9", param_hint="--format")
    counts = duck_counts()
    if ducks not in counts:
        known = ", ".join(map(str, counts))
        raise typer.BadParameter(f"{ducks} is none of {known}", param_hint="--ducks")
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    transcript = Transcript(_silent if as_json else _write, colour)
    result = run_demo(ducks, weight_format, transcript)
    if as_json:
        print_json(_document(result))
    else:
        _print(result)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _silent(_text: str) -> None:
    pass


def _document(result: DemoResult) -> dict[str, Any]:
    return {
        "answers": [{**asdict(a), "tokens_per_s": a.tokens_per_s} for a in result.answers],
        "ducks": list(result.ducks),
        "seconds": result.seconds,
    }


def _answer_row(answer: Answer) -> tuple[object, ...]:
    proposed, accepted = answer.drafts_proposed, answer.drafts_accepted
    share = f" ({100 * accepted / proposed:.0f} %)" if proposed else ""
    return (
        answer.prompt,
        answer.prompt_tokens,
        answer.completion_tokens,
        f"{answer.ttft_s:.3f} s",
        "-" if answer.tpot_s is None else f"{1000 * answer.tpot_s:.1f} ms",
        "-" if answer.tokens_per_s is None else f"{answer.tokens_per_s:.1f}",
        f"{accepted}/{proposed}{share}",
    )


def _duck_row(duck: dict[str, Any]) -> tuple[object, ...]:
    counters: dict[str, float] = duck["counters"]
    calls = counters.get("calls", 0)

    def mean_us(name: str) -> str:
        return f"{counters[name] / calls / 1000:.0f} µs" if calls and name in counters else "-"

    sent = counters.get("sent_bytes", 0) - counters.get("weight_bytes_sent", 0)
    return (
        duck["name"],
        human_bytes(counters.get("weight_bytes", 0)),
        f"{calls:.0f}",
        human_bytes(sent),
        human_bytes(counters.get("received_bytes", 0)),
        mean_us("kernel_ns"),
        mean_us("call_ns"),
        f"{counters.get('resent', 0):.0f}",
    )


def _print(result: DemoResult) -> None:
    _write("\n")
    rows = [_answer_row(answer) for answer in result.answers]
    print_table("", ANSWER_COLUMNS, rows)
    _write("\n")
    print_table("", DUCK_COLUMNS, [_duck_row(duck) for duck in result.ducks])
    talk(", ".join(f"{step} {value:.1f} s" for step, value in result.seconds.items()))
