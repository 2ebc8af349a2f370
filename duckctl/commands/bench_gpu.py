"""``duckctl bench gpu``, ``overlap`` and ``trace``: the host side at full size on a CUDA card."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import typer

from duckctl.errors import ExitCode
from duckctl.native import native_path

ECHO_LIBRARY = "libduckecho.so"


def register(app: typer.Typer) -> None:
    """Adds the three commands to ``duckctl bench``."""
    app.command()(gpu)
    app.command()(overlap)
    app.command()(trace)


def gpu(
    model: str = typer.Option("deepseek-v3.2", "--model", help="Full-size configuration."),
    context: list[int] = typer.Option(
        [], "--context", help="Tokens before the step.  [default: 2048, 32768]"
    ),
    prefill: int = typer.Option(1481, "--prefill", min=0, help="Tokens of a prompt; 0: none."),
    layers: int | None = typer.Option(None, "--layers", min=4, help="Fewer layers than it has."),
) -> None:
    """Decode steps and prefill with random weights and experts that answer at once.

    JSON: time of a step, of its matrix-vector products and of each operation, the floor that the
    card's copy bandwidth sets, the cost of an expert call, and the time of a prompt.

    \b
    Examples:
      duckctl bench gpu
      duckctl bench gpu --context 2048 --prefill 0 --layers 8
    """
    _start("gpu", model, layers, _many("--context", context), ["--prefill", str(prefill)])


def overlap(
    model: str = typer.Option("deepseek-v3.2", "--model", help="Full-size configuration."),
    context: int = typer.Option(2048, "--context", min=8, help="Tokens before the step."),
    factor: list[float] = typer.Option(
        [], "--factor", help="Time on the ducks over time on the card.  [default: 0.5, 1, 2]"
    ),
    wire_us: list[float] = typer.Option(
        [], "--wire-us", help="Time of a call on the wire.  [default: 0, 60]"
    ),
    layers: int | None = typer.Option(None, "--layers", min=4, help="Fewer layers than it has."),
) -> None:
    """Two lanes against emulated ducks: how much of their time the card hides.

    \b
    Examples:
      duckctl bench overlap
      duckctl bench overlap --factor 1 --wire-us 60
    """
    extra = [*_many("--factor", factor), *_many("--wire-us", wire_us)]
    _start("overlap", model, layers, ["--context", str(context)], extra)


def trace(
    output: Path = typer.Argument(metavar="FILE", help="Chrome/Perfetto trace to write."),
    model: str = typer.Option("deepseek-v3.2", "--model", help="Full-size configuration."),
    context: int = typer.Option(2048, "--context", min=8, help="Tokens before the step."),
    layers: int | None = typer.Option(None, "--layers", min=4, help="Fewer layers than it has."),
) -> None:
    """One two-lane step as a trace: the card's kernels, the wire, each emulated duck.

    \b
    Examples:
      duckctl bench trace step.json
      duckctl bench trace step.json --layers 8
    """
    _start("trace", model, layers, ["--context", str(context)], ["--output", str(output)])


def _many(option: str, values: list[int] | list[float]) -> list[str]:
    return [option, *map(str, values)] if values else []


def _start(what: str, model: str, layers: int | None, *arguments: list[str]) -> None:
    """Run host_runtime's benchmark as a process of its own; its exit code is ours."""
    command = [sys.executable, "-m", "host_runtime.bench", what, "--model", model]
    command += ["--library", str(native_path(ECHO_LIBRARY))]
    command += ["--layers", str(layers)] if layers is not None else []
    for part in arguments:
        command += part
    if subprocess.run(command, check=False).returncode:
        raise typer.Exit(ExitCode.FAILURE)
