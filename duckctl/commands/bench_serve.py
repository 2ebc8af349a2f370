"""``duckctl bench serve`` and ``compare``: the speed of a running server, with evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from duckctl.console import print_json, print_table, talk, warn
from duckctl.errors import ExitCode, UsageError


def register(app: typer.Typer) -> None:
    """Adds both commands to ``duckctl bench``."""
    app.command()(serve)
    app.command()(compare)


def serve(
    cases: Path = typer.Argument(metavar="CASES", help="Folder of case files, or one of them."),
    archive: Path = typer.Option(..., "--archive", help="New folder for the evidence."),
    url: str = typer.Option("http://127.0.0.1:8000", "--url", help="The server's address."),
    model: str | None = typer.Option(None, "--model", help="Name in the API, if it has several."),
    repeats: int = typer.Option(3, "--repeats", min=1, max=100, help="Measured runs per case."),
    warm_up: int = typer.Option(1, "--warm-up", min=0, max=10, help="Unmeasured runs per case."),
    plots: bool = typer.Option(True, "--plots/--no-plots", help="TPOT plots, PNG and SVG."),
    trace: bool = typer.Option(False, "--trace", help="Also a Chrome/Perfetto trace per case."),
    server_log: Path | None = typer.Option(
        None, "--server-log", help="Log file of the server; its part of this run is kept."
    ),
    note: str = typer.Option("", "--note", help="Your words about this run, kept in the archive."),
    api_key_file: Path | None = typer.Option(None, "--api-key-file", help="Key of the API."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Run prompts against a server, one at a time, and archive everything that was seen.

    Per case: prompt, output, every token with its time and lane, TPOT plot, TTFT, prefill and
    decode speed, MTP acceptance, where the time went. Definitions: docs/reference/bench-serve.md.

    \b
    Examples:
      duckctl bench serve docs/examples/cases --archive runs/today
      duckctl bench serve case.yaml --archive runs/one --repeats 5 --url http://gpu-host:8000
      duckctl bench serve cases --archive runs/b --server-log serve.log --note "new kernel"
    """
    from duckctl.bench_serve.cases import load_cases
    from duckctl.bench_serve.run import RunOptions, run_cases
    from duckctl.chat_client import ChatClient, read_key, utf8

    chosen = load_cases(cases)
    utf8(model or "", "--model")
    options = RunOptions(repeats, warm_up, plots, trace, server_log, utf8(note, "--note"))
    with ChatClient(url, read_key(api_key_file)) as client:
        name = model or _only_model(client.models(), url)
        run = run_cases(client, name, chosen, archive, options, talk)
    if as_json:
        print_json({"archive": str(archive), "run": run})
        return
    columns = ("case", "in>", "out>", "TTFT ms>", "prefill tok/s>", "decode tok/s>")
    print_table("", (*columns, "spread>", "MTP>", "same tokens"), [_row(c) for c in run["cases"]])
    talk(f"wrote {archive}/index.html")
    unsteady = [case["name"] for case in run["cases"] if not case["tokens_repeat"]]
    if unsteady:
        warn(f"repeats gave different tokens: {', '.join(unsteady)}")
        raise typer.Exit(ExitCode.PARTIAL)


def compare(
    first: Path = typer.Argument(metavar="A", help="Archive of the run before."),
    second: Path = typer.Argument(metavar="B", help="Archive of the run after."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Say what changed between two archives, and whether it is more than noise.

    A change counts when Welch's test at 95 % and a difference of 2 % say so; that needs two repeats
    on each side. Exit code 3: other tokens, or something is slower beyond noise.

    \b
    Examples:
      duckctl bench compare runs/before runs/after
      duckctl bench compare runs/before runs/after --json
    """
    from duckctl.bench_serve import compare as comparing

    result = comparing.compare(comparing.load_run(first), comparing.load_run(second))
    if as_json:
        print_json(
            {
                "changes": [
                    {
                        "case": c.case,
                        "metric": c.metric,
                        "old": c.old,
                        "new": c.new,
                        "change": c.ratio,
                        "verdict": c.verdict,
                    }
                    for c in result.changes
                ],
                "tokens": list(result.token_notes),
                "settings": list(result.setting_notes),
                "missing": list(result.missing),
                "regressed": result.regressed,
            }
        )
    else:
        rows = [
            (c.case, c.metric, f"{c.old:.2f}", f"{c.new:.2f}", f"{100 * c.ratio:+.1f} %", c.verdict)
            for c in result.changes
        ]
        print_table("", ("case", "metric", "A>", "B>", "change>", "verdict"), rows)
        for line in (*result.setting_notes, *result.missing):
            talk(line)
        for line in result.token_notes:
            warn(line)
    if result.regressed:
        raise typer.Exit(ExitCode.PARTIAL)


def _row(case: dict[str, Any]) -> tuple[object, ...]:
    summary = case["summary"]
    decode = summary.get("decode_tokens_per_s")
    spread = (decode["max"] - decode["min"]) / decode["median"] if decode else None
    acceptance = summary["acceptance"]
    return (
        case["name"],
        case["prompt_tokens"],
        case["completion_tokens"],
        f"{summary['ttft_ms']['median']:.0f}",
        f"{summary['prefill_tokens_per_s']['median']:.1f}",
        "-" if decode is None else f"{decode['median']:.1f}",
        "-" if spread is None else f"{100 * spread:.0f} %",
        "-" if acceptance is None else f"{100 * acceptance:.1f} %",
        "yes" if case["tokens_repeat"] else "NO",
    )


def _only_model(names: list[str], url: str) -> str:
    if len(names) != 1:
        raise UsageError(f"the server at {url} has {len(names)} models", f"--model: {names}")
    return names[0]
