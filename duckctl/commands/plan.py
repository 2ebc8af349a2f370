"""``duckctl plan``: what a fleet would give, before anything is bought or re-cabled."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from duckctl.console import human_bytes, print_json, print_table, talk, warn
from duckctl.errors import UsageError

app = typer.Typer()

SWEEP_POINTS = 14  # of a range, beside the counts with equal slices
DUCKS = "32"
PROMPT_TOKENS = 1481  # of the reference's longer published case


@app.command()
def plan(
    model: str = typer.Option("deepseek-v3.2", "--model", help="Model of the catalogue."),
    ducks: str | None = typer.Option(
        None, "--ducks", help="Number of ducks, or a sweep such as 8..64.  [default: 32]"
    ),
    duck: str = typer.Option("n100", "--duck", help="Kind of duck, e.g. n100, n150, n305."),
    nic: str = typer.Option("2.5g", "--nic", help="Link of each duck: 1g, 2.5g, 10g, 25g."),
    domains: int = typer.Option(4, "--domains", help="Domains that the ducks are spread over."),
    host_nic: str = typer.Option("25g", "--host-nic", help="The host's port in each domain."),
    gpu: str = typer.Option("rtx5090", "--gpu", help="GPU of the host, e.g. rtx4090, h200."),
    weight_format: str = typer.Option("fp9", "--format", help="fp9, fp8, fp7, q6 or q4."),
    mtp: float | None = typer.Option(
        None, "--mtp", help="Share of accepted drafts; 0 = without.  [default: the model's]"
    ),
    prompt: int = typer.Option(PROMPT_TOKENS, "--prompt", min=1, help="Prompt tokens, for TTFT."),
    context: int = typer.Option(2048, "--context", min=1, help="Tokens in the cache."),
    mtu: int = typer.Option(9000, "--mtu", help="1500 or 9000."),
    seed: int = typer.Option(1, "--seed", help="Of routing and jitter."),
    hardware: Path | None = typer.Option(None, "--hardware", help="YAML on top of the catalogue."),
    from_fleet: Path | None = typer.Option(
        None, "--from-fleet", help="Output of `duckctl health --json`: real ducks' figures."
    ),
    plot: Path | None = typer.Option(
        None, "--plot", help="With a sweep: write this name plus .png and .svg."
    ),
    trace: Path | None = typer.Option(
        None, "--trace", help="Write one simulated step for chrome://tracing or ui.perfetto.dev."
    ),
    validate: Path | None = typer.Option(
        None, "--validate", help="Test the model on published figures; write this page."
    ),
    archive: Path | None = typer.Option(
        None, "--archive", help="With --validate: own runs, a folder made by `bench serve`."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Predict memory, speed, load time and power of a fleet, its limit, and what would help most.

    The model is a simulation of the step pipeline; docs/reference/plan.md describes it. Hardware is
    described in YAML: see duckctl/plan/data/hardware.yaml.

    \b
    Examples:
      duckctl plan --model deepseek-v3.2 --ducks 32 --duck n100 --gpu rtx5090 --format fp8
      duckctl plan --ducks 8..64 --plot sweep
      duckctl plan --model qwen3-30b-a3b --ducks 24 --nic 1g --json
      duckctl plan --from-fleet health.json --format fp8
      duckctl plan --validate docs/reference/plan-validation.md
    """
    from duckctl.plan.catalogue import load_catalogue

    catalogue = load_catalogue(hardware)
    is_sweep = ducks is not None and ".." in ducks
    _check_outputs(validate is not None, is_sweep, plot, trace, archive)
    if from_fleet is not None and ducks is not None and not is_sweep:
        raise UsageError(
            f"--from-fleet tells the number of ducks, and --ducks {ducks} another",
            "leave out --ducks, or give a range: --ducks 8..64",
        )
    if validate is not None:
        _validate(catalogue, validate, archive, as_json)
        return
    counts = _counts(ducks or DUCKS, catalogue.model(model))
    setup = _setup(
        catalogue,
        names=(model, duck, nic, host_nic, gpu, weight_format),
        numbers=(counts[0], domains, context, mtu, seed),
        mtp=mtp,
    )
    if from_fleet is not None:
        setup = _with_fleet(setup, from_fleet)
    if len(counts) > 1:
        _sweep(setup, counts, plot, as_json)
        return
    _predict(setup, catalogue, prompt, trace, as_json)


def _check_outputs(
    is_validation: bool,
    is_sweep: bool,
    plot: Path | None,
    trace: Path | None,
    archive: Path | None,
) -> None:
    """Refuses options that nothing would come of, before anything is computed."""
    if archive is not None and not is_validation:
        raise UsageError("--archive belongs to --validate", "name the page too: --validate FILE")
    if is_validation and (plot is not None or trace is not None):
        raise UsageError("--validate writes a page only", "leave out --plot and --trace")
    if trace is not None and is_sweep:
        raise UsageError("--trace shows one fleet", "give one number of ducks: --ducks 32")
    if plot is not None and not is_sweep:
        raise UsageError("--plot draws a sweep", "give a range of ducks: --ducks 8..64")
    for option, path in (("--plot", plot), ("--trace", trace)):
        if path is not None and not path.parent.is_dir():
            raise UsageError(
                f"{option}: there is no folder {path.parent}", f"make it: mkdir -p {path.parent}"
            )


def _counts(text: str, model: Any) -> list[int]:
    """Duck counts: one, or points of a range with all that give equal slices."""
    from duckctl.plan.setup import valid_duck_counts

    first, dots, last = text.partition("..")
    try:
        low, high = int(first), int(last) if dots else int(first)
    except ValueError:
        raise UsageError(
            f"--ducks is '{text}'", "expected a number or a range such as 8..64"
        ) from None
    if not dots:
        return [low]
    if not 1 <= low < high:
        raise UsageError(f"--ducks {text} is no range", "expected the smaller number first: 8..64")
    equal = {count for count in valid_duck_counts(model) if low <= count <= high}
    between = range(low, high + 1, max(1, (high - low) // SWEEP_POINTS))
    return sorted(equal | set(between))


def _setup(
    catalogue: Any,
    names: tuple[str, str, str, str, str, str],
    numbers: tuple[int, int, int, int, int],
    mtp: float | None,
) -> Any:
    from duckctl.plan.catalogue import FORMAT_BITS
    from duckctl.plan.profile import OURS
    from duckctl.plan.setup import FRAGMENT_BYTES, Setup

    model_name, duck, nic, host_nic, gpu, weight_format = names
    count, domains, context, mtu, seed = numbers
    shape = catalogue.model(model_name)
    if weight_format not in FORMAT_BITS:
        raise UsageError(f"unknown format '{weight_format}'", f"known: {', '.join(FORMAT_BITS)}")
    if mtu not in FRAGMENT_BYTES:
        raise UsageError(f"--mtu is {mtu}", "expected 1500 or 9000")
    if mtp is not None and not 0 <= mtp <= 1:
        raise UsageError(f"--mtp is {mtp:g}", "expected a share of accepted drafts from 0 to 1")
    if context > shape.context:
        raise UsageError(
            f"--context {context} is more than {shape.title} can do", f"at most {shape.context}"
        )
    return Setup(
        model=shape,
        duck=catalogue.duck(duck),
        duck_count=count,
        domain_count=domains,
        nic_mbps=catalogue.link(nic).mbps,
        host_nic_mbps=catalogue.link(host_nic).mbps,
        gpu=catalogue.gpu(gpu),
        weight_format=weight_format,
        profile=OURS,
        acceptance=shape.acceptance if mtp is None else mtp,
        context=context,
        mtu=mtu,
        seed=seed,
    )


def _with_fleet(setup: Any, path: Path) -> Any:
    from duckctl.plan.fleet_facts import read_fleet

    facts = read_fleet(path, setup.duck)
    for note in facts.notes:
        warn(note)
    return replace(
        setup,
        duck=facts.duck,
        duck_count=facts.count,
        domain_count=min(setup.domain_count, facts.count),
        nic_mbps=facts.nic_mbps or setup.nic_mbps,
        duck_rates=facts.rates,
    )


def _predict(setup: Any, catalogue: Any, prompt: int, trace: Path | None, as_json: bool) -> None:
    from duckctl.plan.predict import band, levers, predict

    if prompt > setup.model.context:
        raise UsageError(
            f"--prompt {prompt} is more than {setup.model.title} can do",
            f"at most {setup.model.context}",
        )
    result = predict(setup, prompt)
    result = replace(result, band=band(setup), levers=levers(setup, catalogue))
    if trace is not None:
        _write_trace(setup, trace)
    if as_json:
        print_json(result.document())
        return
    print_table("", ("", "value", ""), _lines(result))
    if result.levers:
        rows = [
            (i, item.change, f"{item.decode_tokens_per_s:.1f}", f"{100 * item.gain:+.0f} %")
            for i, item in enumerate(result.levers, 1)
        ]
        print_table("what would help most", ("", "change", "decode tok/s>", "gain>"), rows)


def _lines(result: Any) -> list[tuple[str, str, str]]:
    setup, fit, layer, costs = result.setup, result.fit, result.layer, result.costs
    panels = setup.panels()
    rows = f"{32 * panels[0]} rows each"
    if panels[0] != panels[-1]:
        rows = f"{32 * panels[-1]} or {32 * panels[0]} rows each: uneven slices"
    low, high = result.band
    lines = [
        ("model", setup.model.title, f"{setup.duck_count} x {setup.duck.title}, {rows}"),
        (
            "memory of a duck",
            human_bytes(fit.duck_needed),
            f"of {human_bytes(fit.duck_available)} for weights, {setup.weight_format}",
        ),
        (
            "memory of the GPU",
            human_bytes(fit.gpu_needed),
            f"of {human_bytes(fit.gpu_available)}; up to {fit.context_max:,} tokens fit",
        ),
        ("decode", f"{result.decode_tokens_per_s:.1f} tok/s", f"{low:.1f} to {high:.1f}"),
        ("step", f"{result.step_ms:.1f} ms", _overlap_text(result)),
        (
            f"prompt of {result.prompt_tokens:,} tokens",
            f"TTFT {result.ttft_s:.2f} s",
            f"{result.prefill_tokens_per_s:.1f} tok/s, limited by {result.prefill_limit}",
        ),
        (
            "one token, one layer",
            f"kernel {layer.kernel_us:.0f} µs",
            f"reads {human_bytes(layer.weight_bytes)}; out {layer.dispatch_us:.0f} µs, "
            f"back {layer.result_us:.0f} µs, launch gap {layer.gap_us:.0f} µs, "
            f"GPU {layer.gpu_us:.0f} µs",
        ),
        (
            "busy",
            ", ".join(f"{name} {100 * share:.0f} %" for name, share in result.shares.items()),
            "",
        ),
        ("limit", result.limit, ""),
        ("boot, then load", f"{result.boot_s:.0f} s + {result.load_s:.0f} s", "all ducks at once"),
        (
            "power",
            f"{costs.load_w:.0f} W",
            f"ducks and GPU under load; {costs.wh_per_1000_tokens:.1f} Wh per 1,000 tokens",
        ),
    ]
    if costs.price is not None:
        lines.append(("price", f"{costs.price:,.0f}", "ducks and GPU"))
    return lines


def _overlap_text(result: Any) -> str:
    if result.overlap is None:
        return "one lane, nothing overlaps"
    accepted = f"{100 * result.setup.acceptance:.0f} % of drafts accepted"
    return f"two lanes, {accepted}, overlap {result.overlap:.2f}"


def _sweep(setup: Any, counts: list[int], plot: Path | None, as_json: bool) -> None:
    from duckctl.plan.predict import sweep

    points = sweep(setup, counts)
    paths = [str(path) for path in _plot_sweep(setup, points, plot)] if plot else []
    if as_json:
        print_json(
            {
                "model": setup.model.name,
                "format": setup.weight_format,
                "points": [
                    {
                        "ducks": p.ducks,
                        "decode_tokens_per_s": p.decode_tokens_per_s,
                        "limit": p.limit,
                    }
                    for p in points
                ],
                "plots": paths,
            }
        )
        return
    rows = [
        (p.ducks, "-" if p.decode_tokens_per_s is None else f"{p.decode_tokens_per_s:.1f}", p.limit)
        for p in points
    ]
    print_table("", ("ducks>", "decode tok/s>", "limit"), rows)
    for path in paths:
        talk(f"wrote {path}")


def _plot_sweep(setup: Any, points: list[Any], base: Path) -> list[Path]:
    from duckctl.plots import Chart, Series, save_chart

    fits = [p for p in points if p.decode_tokens_per_s is not None]
    if not fits:
        raise UsageError("nothing to plot: the model fits on none of these fleets")
    x = [float(p.ducks) for p in fits]
    y = [p.decode_tokens_per_s for p in fits]
    linear = [y[0] * count / x[0] for count in x]
    chart = Chart(
        f"{setup.model.title}, {setup.weight_format}, {setup.duck.title}, {setup.gpu.title}",
        "ducks",
        "decode, tokens per second",
        [Series("predicted", x, y, "o-"), Series("proportional to ducks", x, linear, "--")],
    )
    try:
        return save_chart(chart, base)
    except OSError as error:
        raise UsageError(f"can't write {base}.png: {error.strerror}") from None


def _write_trace(setup: Any, path: Path) -> None:
    from duckctl.plan.simulate import traced_step
    from duckctl.tracing import Bar, trace_document

    slices = traced_step(setup).slices
    bars = [Bar("simulated step", s.resource, s.label, s.start_s, s.duration_s) for s in slices]
    try:
        path.write_text(json.dumps(trace_document(bars)), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"can't write {path}: {error.strerror}") from None
    talk(f"wrote {path}: open it in https://ui.perfetto.dev")


def _validate(catalogue: Any, path: Path, archive: Path | None, as_json: bool) -> None:
    from duckctl.plan import validate as validation
    from duckctl.plan.page import page

    result = validation.validate(catalogue)
    lab = validation.lab_rows(archive) if archive else []
    plans = _our_plans(catalogue)
    text = page(result, plans, lab, str(archive or ""))
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"can't write {path}: {error.strerror}") from None
    if as_json:
        print_json(
            {
                "host_us_per_layer": result.host_us_per_layer,
                "figures": [
                    {
                        "name": row.figure.name,
                        "role": row.figure.role,
                        "published": row.figure.value,
                        "predicted": row.predicted,
                        "error": row.error,
                        "within": row.within,
                    }
                    for row in result.rows
                ],
            }
        )
        return
    rows = [
        (
            r.figure.name,
            r.figure.role,
            r.figure.value,
            f"{r.predicted:.4g}",
            f"{100 * r.error:+.1f} %",
        )
        for r in result.rows
    ]
    print_table("", ("figure", "role", "published>", "predicted>", "error>"), rows)
    talk(f"wrote {path}")


def _our_plans(catalogue: Any) -> list[Any]:
    """Our build on the published hardware: each format, and the two small models."""
    from duckctl.plan.catalogue import FORMAT_BITS
    from duckctl.plan.predict import band, levers, predict

    cases = [("deepseek-v3.2", 32, name) for name in FORMAT_BITS]
    cases += [("qwen3-30b-a3b", 24, "fp8"), ("qwen3.5-35b-a3b", 16, "fp8")]
    plans = []
    for model, count, weight_format in cases:
        names = (model, "n100", "2.5g", "25g", "rtx5090", weight_format)
        setup = _setup(catalogue, names, (count, 4, 2048, 9000, 1), None)
        result = replace(predict(setup, PROMPT_TOKENS), band=band(setup))
        if weight_format == "fp8" and model == "deepseek-v3.2":
            result = replace(result, levers=levers(setup, catalogue))
        plans.append(result)
    return plans
