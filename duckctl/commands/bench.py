"""``duckctl bench``: measurements of this machine."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from duckctl.commands import (
    bench_boot,
    bench_ducks,
    bench_gap,
    bench_gpu,
    bench_lanes,
    bench_serve,
)
from duckctl.errors import UsageError

if TYPE_CHECKING:
    from duckctl.bench.kernels import CacheRow, Row, Setup
    from duckctl.bench.peer import PeerRow

CORES_MAX = 64  # of one kernel (kernels/include/duck/kernel_abi.h)
TOKENS_MAX = 512  # of one call (kernels/include/duck/experts.h)
HIDDEN_MAX = 32768  # kernels/src/directory.h
TOKEN_COUNTS = typer.Option(
    [], "--tokens", min=1, max=TOKENS_MAX, help="[default: 1, 2, 16, 64, 256]"
)
THREAD_COUNTS = typer.Option([], "--threads", min=1, max=CORES_MAX, help="[default: 1 and all]")

app = typer.Typer(help="Measure kernels, transport and the whole.")
bench_serve.register(app)
bench_gpu.register(app)
bench_boot.register(app)
bench_ducks.register(app)
bench_gap.register(app)
bench_lanes.register(app)


@app.callback()
def bench() -> None:
    """Measure kernels, transport and the whole."""


@app.command("kernels")
def kernels_command(
    formats: list[str] = typer.Option(
        [], "--format", help="fp8, fp9, fp7, q6, q4.  [default: all]"
    ),
    shapes: list[str] = typer.Option(
        [], "--shape", help="HIDDENxROWS of a slice.  [default: 7168x64, 7168x128, 2048x32]"
    ),
    tokens: list[int] = TOKEN_COUNTS,
    threads: list[int] = THREAD_COUNTS,
    gigabytes: float = typer.Option(2.0, "--gigabytes", min=0.01, help="Weights to run over."),
    slices: int = typer.Option(60, "--slices", min=3, help="Paired slices per median."),
    hot: bool = typer.Option(
        False, "--hot/--forced-cold", help="The same experts again, or none that a cache may hold."
    ),
    peer: bool = typer.Option(False, "--peer", help="Compare with ggml and torch."),
    peer_library: Path | None = typer.Option(
        None, "--peer-library", help="ggml's libggml-cpu.so.  [default: llama-cpp-python's]"
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Speed of the experts kernel: against the memory, the CPU, and with --peer against others.

    \b
    Examples:
      duckctl bench kernels
      duckctl bench kernels --format fp8 --format fp9 --shape 7168x64 --tokens 1 --json
      duckctl bench kernels --peer --slices 20
    """
    from duckctl.bench.kernels import FORMATS, SHAPES, TOKENS, Setup
    from duckctl.console import print_json

    wanted = _choices(formats, FORMATS)
    shape_list = [_shape(text) for text in shapes] or list(SHAPES)
    counts = threads or sorted({1, min(os.cpu_count() or 1, CORES_MAX)})
    setup = Setup(gigabytes, slices, hot)
    cache = _cache_rows(wanted, tokens or list(TOKENS))
    memory = _memory_rows(setup, wanted, shape_list, tokens or list(TOKENS), counts, cache)
    others = _peer_rows(setup, shape_list, counts, peer_library) if peer else []
    torch_rates = _torch_rates(shape_list, slices) if peer else {}
    if as_json:
        print_json(_document(setup, cache, memory, others, torch_rates))
    else:
        _print_tables(cache, memory, others, torch_rates)


def _choices(given: list[str], known: tuple[str, ...]) -> list[str]:
    for name in given:
        if name not in known:
            raise UsageError(f"--format '{name}' is unknown", f"formats: {', '.join(known)}")
    return given or list(known)


def _shape(text: str) -> tuple[int, int]:
    hidden, separator, rows = text.partition("x")
    fits = separator and hidden.isdecimal() and rows.isdecimal()
    if fits:
        fits = int(hidden) in range(128, HIDDEN_MAX + 1, 128) and int(rows) in range(32, 4097, 32)
    if not fits:
        raise UsageError(
            f"--shape '{text}' is no slice",
            f"write HIDDENxROWS, hidden a multiple of 128 up to {HIDDEN_MAX}, rows one of 32 up to "
            "4096: 7168x64",
        )
    return int(hidden), int(rows)


def _cache_rows(formats: list[str], tokens: list[int]) -> list[CacheRow]:
    from duckctl.bench.kernels import BODIES, measure_cache
    from duckctl.console import talk

    rows = []
    for fmt in formats:
        talk(f"{fmt} in cache, one core")
        for body in range(1, 1 + len(BODIES.get(fmt, ("madd",)))):
            rows += [measure_cache(fmt, count, body) for count in tokens]
    return rows


def _memory_rows(
    setup: Setup,
    formats: list[str],
    shapes: list[tuple[int, int]],
    tokens: list[int],
    threads: list[int],
    cache: list[CacheRow],
) -> list[Row]:
    from duckctl.bench.kernels import measure_memory
    from duckctl.console import talk

    rows: list[Row] = []
    for fmt in formats:
        best = {
            count: max(row.gb_s for row in cache if row.fmt == fmt and row.tokens == count)
            for count in tokens
        }
        for shape in shapes:
            talk(f"{fmt}, {shape[0]}x{shape[1]}, {setup.gigabytes:g} GB")
            rows += measure_memory(setup, fmt, shape, tokens, threads, best)
    return rows


def _peer_rows(
    setup: Setup, shapes: list[tuple[int, int]], threads: list[int], library: Path | None
) -> list[PeerRow]:
    from duckctl.bench.peer import FAIR_BUILD, beyond_ducks, find_ggml, ggml_features, measure_ggml
    from duckctl.console import talk, warn

    path = library or find_ggml()
    if extra := beyond_ducks(ggml_features(path)):
        warn(f"{path.name} uses {', '.join(extra)}, which no duck has; build it by: {FAIR_BUILD}")
    rows: list[PeerRow] = []
    for shape in shapes:
        talk(f"ggml, {shape[0]}x{shape[1]}")
        rows += measure_ggml(setup, path, shape, tuple(threads))
    return rows


def _torch_rates(shapes: list[tuple[int, int]], slices: int) -> dict[str, float]:
    from duckctl.bench.peer import measure_torch

    return {f"{hidden}x{rows}": measure_torch((hidden, rows), slices) for hidden, rows in shapes}


def _document(
    setup: Setup,
    cache: list[CacheRow],
    memory: list[Row],
    others: list[PeerRow],
    torch_rates: dict[str, float],
) -> dict[str, Any]:
    from duckctl.bench.harness import cycles_per_second

    return {
        "cycles_per_second": cycles_per_second(),
        "mode": "hot" if setup.hot else "forced-cold",
        "gigabytes": setup.gigabytes,
        "in_cache": [asdict(row) for row in cache],
        "memory": [asdict(row) for row in memory],
        "peer": [asdict(row) for row in others],
        "torch_bf16_gparam_s": torch_rates,
    }


def _print_tables(
    cache: list[CacheRow],
    memory: list[Row],
    others: list[PeerRow],
    torch_rates: dict[str, float],
) -> None:
    from duckctl.console import print_table

    print_table(
        "In cache, one core",
        ("format", "body", "tokens>", "params/cycle>", "GB/s>", "of FMA peak>"),
        [
            (
                r.fmt, r.body, r.tokens, f"{r.params_per_cycle:.2f}", f"{r.gb_s:.1f}",
                f"{r.share_of_fma_peak:.0%}",
            )
            for r in cache
        ],
    )  # fmt: skip
    print_table(
        "From memory",
        ("format", "slice", "tokens>", "threads>", "GB/s>", "Gparam/s>", "read GB/s>",
         "of roofline>", "of bound>", "slices>"),
        [
            (
                r.fmt, f"{r.hidden}x{r.rows}", r.tokens, r.threads, f"{r.gb_s:.1f}",
                f"{r.gparam_s:.1f}", f"{r.roofline_gb_s:.1f}", f"{r.share_of_roofline:.0%}",
                f"{r.share_of_bound:.0%}", r.slices,
            )
            for r in memory
        ],
    )  # fmt: skip
    if others:
        print_table(
            "Against ggml, one token",
            ("format", "peer", "slice", "threads>", "Gparam/s>", "peer>", "ratio>", "slices>"),
            [
                (
                    r.fmt, r.peer, f"{r.hidden}x{r.rows}", r.threads, f"{r.gparam_s:.1f}",
                    f"{r.peer_gparam_s:.1f}", f"{r.ratio:.2f}", r.slices,
                )
                for r in others
            ],
        )  # fmt: skip
    if torch_rates:
        rows = [(shape, f"{rate:.1f}") for shape, rate in torch_rates.items()]
        print_table("torch bfloat16, one token", ("slice", "Gparam/s>"), rows)
