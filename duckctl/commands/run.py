"""``duckctl run``: one kernel, one input, one verdict."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from duckctl.console import human_bytes, print_json, print_table, warn
from duckctl.errors import ExitCode, UsageError
from duckctl.inventory_choice import choose_inventory
from duckctl.run_once.limits import OUTPUT_BYTES_MAX, size_bytes, time_ms
from duckctl.run_once.run import RunRequest, find_duck, run_once

app = typer.Typer()


@app.command()
def run(
    kernel: Path = typer.Argument(..., help="Kernel ELF (docs/reference/kernel-abi.md)."),
    duck: str = typer.Option(..., "--duck", help="The duck to run it on."),
    inventory: Path | None = typer.Option(
        None, "--inventory", help="Inventory file.  [default: the lab's]"
    ),
    input_file: Path | None = typer.Option(None, "--input", help="What the kernel reads."),
    output_file: Path | None = typer.Option(None, "--output", help="Where its output goes."),
    weights: Path | None = typer.Option(None, "--weights", help="Load these weights first."),
    no_weights: bool = typer.Option(False, "--no-weights", help="Let go the duck's weights first."),
    cores: int = typer.Option(0, "--cores", min=0, max=64, help="Cores.  [default: all]"),
    time_limit: str = typer.Option("10s", "--time-limit", help="E.g. 500ms, 10s, 2m."),
    memory_limit: str = typer.Option("0", "--memory-limit", help="E.g. 256M; 0 = none."),
    output_limit: str = typer.Option("1M", "--output-limit", help="Largest output."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Run a kernel once on a duck and tell the verdict: time, cycles, memory, output.

    Verdicts: finished, refused (the kernel says why), time-limit, memory-limit, fault (kind, core,
    address, instruction) and bad-kernel (the duck does not load it). The duck lives in each case.
    Exit code 0: finished. 1: any other verdict, or the run did not come about.

    \b
    Examples:
      duckctl run echo.elf --duck d01 --input question --output answer
      duckctl run roofline.elf --duck d01 --cores 4 --time-limit 30s --json
      duckctl run sort.elf --duck d01 --input numbers --time-limit 500ms --memory-limit 64M
    """
    if weights is not None and no_weights:
        raise UsageError("--weights and --no-weights exclude each other", "give one of them")
    request = RunRequest(
        kernel=kernel,
        input=input_file,
        output=output_file,
        weights=weights,
        drop_weights=no_weights,
        cores=cores,
        time_limit_ms=time_ms(time_limit, "--time-limit"),
        memory_limit=size_bytes(memory_limit, "--memory-limit"),
        output_limit=size_bytes(output_limit, "--output-limit", 1, OUTPUT_BYTES_MAX),
    )
    fleet = choose_inventory(inventory)
    document = run_once(fleet, find_duck(fleet, duck), request)
    if as_json:
        print_json(document)
    else:
        print_table("", ("", ""), rows(document))
    if document["verdict"] != "finished":
        warn(f"{document['duck']}: {document['verdict']}: {document['text']}")
        raise typer.Exit(ExitCode.FAILURE)


def rows(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a person reads, without what is not known."""
    table = [("verdict", str(document["verdict"]))]
    if document["fault_kind"] is not None:
        table.append(("fault", _fault(document)))
    if document["time_ns"]:
        table.append(("time", f"{document['time_ns'] / 1e6:.3f} ms"))
        table.append(("cycles", f"{document['cycles']:,} (TSC)"))
    if document["instructions"] is not None:
        table.append(("instructions", f"{document['instructions']:,}"))
    if document["memory_peak_bytes"] is not None:
        table.append(("memory", human_bytes(document["memory_peak_bytes"])))
    if document["output_bytes"] is not None:
        table.append(("output", f"{document['output_bytes']} bytes"))
    table.append(
        ("duck", f"{document['duck']} ({document['platform']}, {document['cores']} cores)")
    )
    return table


def _fault(document: Mapping[str, Any]) -> str:
    words = [str(document["fault_kind"]).replace("_", " ")]
    for key in ("address", "instruction"):
        if document[key] is not None:
            words.append(f"{key} {document[key]:#x}")
    if document["core"] is not None:
        words.append(f"core {document['core']}")
    return ", ".join(words)
