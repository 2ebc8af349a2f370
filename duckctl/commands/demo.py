"""``duckctl demo``: the whole chain on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import typer

from duckctl.console import human_bytes, print_json, print_table, talk
from duckctl.demo.prompts import Answer
from duckctl.demo.run import DemoResult, run_demo

app = typer.Typer()

DIM, RESET = "\x1b[2m", "\x1b[0m"


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
    result = run_demo(ducks, weight_format, _silent if as_json else _printer())
    if as_json:
        print_json(_document(result))
    else:
        _print(result)


def _silent(_text: str, _thinking: bool) -> None:
    pass


def _printer() -> Callable[[str, bool], None]:
    """Writes the answers as they come; thoughts are dim on a terminal, in brackets elsewhere."""
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    before, after = (DIM, RESET) if colour else ("", "")

    def show(text: str, thinking: bool) -> None:
        sys.stdout.write(f"{before}{text}{after}" if thinking else text)
        sys.stdout.flush()

    return show


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
    counters = duck["counters"]
    calls = counters.get("calls", 0)

    def mean_us(name: str) -> str:
        return f"{counters[name] / calls / 1000:.0f} µs" if calls and name in counters else "-"

    return (
        duck["name"],
        f"{calls:.0f}",
        human_bytes(counters.get("sent_bytes", 0)),
        human_bytes(counters.get("received_bytes", 0)),
        mean_us("kernel_ns"),
        mean_us("round_trip_ns"),
        f"{counters.get('resent', 0):.0f}",
    )


def _print(result: DemoResult) -> None:
    sys.stdout.write("\n")
    columns = ("prompt", "tokens in>", "out>", "TTFT>", "TPOT>", "tok/s>", "MTP accepted>")
    print_table("answers", columns, [_answer_row(answer) for answer in result.answers])
    columns = ("duck", "calls>", "sent>", "received>", "kernel/call>", "round trip>", "resent>")
    print_table("ducks", columns, [_duck_row(duck) for duck in result.ducks])
    talk(", ".join(f"{step} {value:.1f} s" for step, value in result.seconds.items()))
