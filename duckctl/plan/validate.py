"""Tests the model: fits its one free constant on some published figures, predicts the others."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from duckctl.plan.catalogue import Catalogue, CatalogueError, package_text
from duckctl.plan.predict import Prediction, tokens_per_s
from duckctl.plan.profile import LAUNCH_US_BEFORE, REFERENCE, Profile
from duckctl.plan.setup import Setup
from duckctl.plan.simulate import decode, overlap_ratio, prefill_s, round_trip_s

ERROR_MAX = 0.15
FIT_ROUNDS = 14  # halvings of the interval: below 0.1 us
FIT_RANGE_US = (50.0, 1500.0)
UNITS = {"decode": "tok/s", "prefill": "tok/s", "ttft": "s", "overlap": "", "gap": "µs"}


@dataclass(frozen=True)
class Figure:
    """A published figure and how to reproduce it."""

    name: str
    quantity: str
    value: float
    role: str
    model: str
    ducks: int
    acceptance: float = 0.0
    context: int = 256
    prompt: int = 0
    launch: str = "after"
    note: str = ""


@dataclass(frozen=True)
class Row:
    """A figure with its prediction."""

    figure: Figure
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.figure.value - 1

    @property
    def within(self) -> bool:
        return abs(self.error) <= ERROR_MAX


@dataclass(frozen=True)
class Validation:
    """The fitted constant and every row."""

    host_us_per_layer: float
    rows: tuple[Row, ...]


def published() -> list[Figure]:
    """The figures of published.yaml."""
    import yaml

    document = yaml.safe_load(package_text("published.yaml"))
    return [Figure(**entry) for entry in document["figures"]]


def reference_setup(figure: Figure, profile: Profile, catalogue: Catalogue) -> Setup:
    """The reference's hardware with one of its models."""
    if figure.launch == "before":
        profile = replace(profile, launch_us=LAUNCH_US_BEFORE)
    return Setup(
        model=catalogue.model(figure.model),
        duck=catalogue.duck("n100"),
        duck_count=figure.ducks,
        domain_count=4,
        nic_mbps=2500,
        host_nic_mbps=25000,
        gpu=catalogue.gpu("rtx5090"),
        weight_format="fp9",
        profile=profile,
        acceptance=figure.acceptance,
        context=figure.context,
    )


def predict_figure(figure: Figure, profile: Profile, catalogue: Catalogue) -> float:
    """The model's value for a figure."""
    setup = reference_setup(figure, profile, catalogue)
    if figure.quantity == "decode":
        return tokens_per_s(setup, decode(setup))
    if figure.quantity == "overlap":
        return overlap_ratio(setup)
    if figure.quantity == "gap":
        round_trip, kernel_s = round_trip_s(setup)
        return (round_trip - kernel_s) * 1e6
    seconds = prefill_s(setup, figure.prompt)
    return seconds if figure.quantity == "ttft" else figure.prompt / seconds


def fit_host_time(figures: Sequence[Figure], catalogue: Catalogue) -> float:
    """Host time per layer (µs) at which the errors of the fit's figures cancel out."""
    chosen = [figure for figure in figures if figure.role == "fit"]

    def mean_error(host_us: float) -> float:
        profile = replace(REFERENCE, host_us_per_layer=host_us)
        ratios = (predict_figure(f, profile, catalogue) / f.value for f in chosen)
        return sum(math.log(ratio) for ratio in ratios)

    low, high = FIT_RANGE_US
    for _ in range(FIT_ROUNDS):
        middle = (low + high) / 2
        if mean_error(middle) > 0:  # predicted too fast: the host takes longer
            low = middle
        else:
            high = middle
    return round((low + high) / 2, 1)


def validate(catalogue: Catalogue) -> Validation:
    """Fits, then predicts every published figure."""
    figures = published()
    host_us = fit_host_time(figures, catalogue)
    profile = replace(REFERENCE, host_us_per_layer=host_us)
    rows = tuple(Row(f, predict_figure(f, profile, catalogue)) for f in figures)
    return Validation(host_us, rows)


# ---- our own runs


@dataclass(frozen=True)
class LabRow:
    """A case of an archive: measured TPOT and the one from the stages of another case."""

    case: str
    measured_ms: float
    predicted_ms: float
    fitted: bool

    @property
    def error(self) -> float:
        return self.predicted_ms / self.measured_ms - 1


def lab_rows(archive: Path) -> list[LabRow]:
    """Predicts the cases of a `bench serve` archive from the stages of its first one.

    A step = host time + calls x round trip. Host time per step and time per call come from the
    first case; a case's tokens per step (MTP acceptance) are its own.
    """
    try:
        document = json.loads((archive / "run.json").read_text(encoding="utf-8"))
        cases = [case for case in document["cases"] if case["summary"].get("tpot_ms")]
        first = cases[0]
        step_ms = first["summary"]["tpot_ms"]["median"] * _tokens_per_step(first)
        return [
            LabRow(
                case=str(case["name"]),
                measured_ms=float(case["summary"]["tpot_ms"]["median"]),
                predicted_ms=step_ms / _tokens_per_step(case),
                fitted=case is first,
            )
            for case in cases
        ]
    except OSError as error:
        raise CatalogueError(f"can't read {archive}/run.json: {error.strerror}") from None
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise CatalogueError(
            f"{archive}/run.json is no archive of `bench serve`: {error}"
        ) from None


def _tokens_per_step(case: Mapping[str, Any]) -> float:
    return 1 + float(case["summary"].get("acceptance") or 0.0)


# ---- the page


def page(
    validation: Validation,
    plans: Sequence[Prediction],
    lab: Sequence[LabRow],
    archive: Path | None,
) -> str:
    """docs/reference/plan-validation.md."""
    parts = [_HEAD, _published_table(validation)]
    if lab:
        parts.append(_lab_table(lab, archive))
    parts.append(_plans(plans))
    return "\n".join(parts)


_HEAD = """# Validation of `duckctl plan`

Made by `duckctl plan --validate FILE`; do not edit. The model is described in [plan](plan.md), its
constants with their sources are in `duckctl/plan/profile.py`, the published figures in
`duckctl/plan/data/published.yaml`.
"""


def _published_table(validation: Validation) -> str:
    lines = [
        "## The published system\n",
        "One constant is fitted: `host_us_per_layer` (what the host needs to launch one layer of one",
        f"lane) = {validation.host_us_per_layer:.0f} µs, on the two rows marked fit. All other rows "
        "are predictions. Structure that the",
        "figures do not tell and that is assumed: both tokens of a step wait for each other in every",
        "layer; prompts run in chunks of 16 without sharing weights between tokens, and what is left",
        "over token by token; FP8 out and bf16 back on the wire.\n",
        "| figure | role | published | predicted | error | |",
        "|---|---|---|---|---|---|",
    ]
    for row in validation.rows:
        figure = row.figure
        unit = f" {UNITS[figure.quantity]}".rstrip()
        verdict = "" if row.within else "**outside 15 %**; "
        lines.append(
            f"| {figure.name} | {figure.role} | {figure.value:g}{unit} | {row.predicted:.4g}{unit} | "
            f"{100 * row.error:+.1f} % | {verdict}{figure.note} |"
        )
    tests = [row for row in validation.rows if row.figure.role == "test"]
    good = sum(row.within for row in tests)
    worst = max(tests, key=lambda row: abs(row.error))
    lines.append(
        f"\n{good} of {len(tests)} tested figures are within 15 %; the largest error is "
        f"{100 * worst.error:+.1f} % ({worst.figure.name})."
    )
    return "\n".join(lines) + "\n"


def _lab_table(rows: Sequence[LabRow], archive: Path | None) -> str:
    lines = [
        "## Our own runs\n",
        f"Process ducks on one shared machine, archive `{archive.name if archive else ''}`. The time "
        "of a step is taken from the row",
        "marked fit; the others follow from their MTP acceptance alone.\n",
        "| case | measured TPOT | predicted | error | |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.case} | {row.measured_ms:.2f} ms | {row.predicted_ms:.2f} ms | "
        f"{100 * row.error:+.1f} % | {'fit' if row.fitted else ''} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def _plans(plans: Sequence[Prediction]) -> str:
    lines = [
        "## Our build on the published hardware\n",
        "Efficiencies that go in are measured where `profile.py` says so (kernels 0.94 to 0.96 of the",
        "read roofline, GPU 1.48 x its bandwidth floor, 3.6 µs per expert call in a CUDA graph). Not",
        "measured on N100 silicon: the read roofline itself (0.86 of the data sheet), handling of a",
        "call, jitter. The band moves all of them to their bad and to their good end.\n",
        "| model | ducks | format | decode tok/s | band | overlap | prefill 1,481 tok/s | TTFT | limit |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for plan in plans:
        setup = plan.setup
        band = f"{plan.band[0]:.1f} to {plan.band[1]:.1f}" if plan.band else ""
        overlap = "" if plan.overlap is None else f"{plan.overlap:.2f}"
        lines.append(
            f"| {setup.model.name} | {setup.duck_count} | {setup.weight_format} | "
            f"{plan.decode_tokens_per_s:.1f} | {band} | {overlap} | "
            f"{plan.prefill_tokens_per_s:.1f} | {plan.ttft_s:.1f} s | {plan.limit} |"
        )
    with_levers = next((plan for plan in plans if plan.levers), None)
    if with_levers:
        setup = with_levers.setup
        lines.append(f"\nTop levers for {setup.model.name} in {setup.weight_format}:\n")
        lines += [
            f"{index}. {lever.change}: {lever.decode_tokens_per_s:.1f} tok/s "
            f"({100 * lever.gain:+.0f} %)"
            for index, lever in enumerate(with_levers.levers, 1)
        ]
    return "\n".join(lines) + "\n"
