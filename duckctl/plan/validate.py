"""Tests the model: fits its one free constant on some published figures, predicts the others."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from duckctl.plan.catalogue import Catalogue, CatalogueError, package_text
from duckctl.plan.predict import tokens_per_s
from duckctl.plan.profile import LAUNCH_US_BEFORE, REFERENCE, Profile
from duckctl.plan.setup import Setup
from duckctl.plan.simulate import decode, overlap_ratio, prefill_s, round_trip_s

ERROR_MAX = 0.15
FIT_ROUNDS = 14  # halvings of the interval: below 0.1 us
FIT_RANGE_US = (50.0, 1500.0)


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
    """A case of an archive: measured time per token and the one from the steps of another case."""

    case: str
    measured_ms: float
    predicted_ms: float
    fitted: bool

    @property
    def error(self) -> float:
        return self.predicted_ms / self.measured_ms - 1


def lab_rows(archive: Path) -> list[LabRow]:
    """Predicts the cases of a `bench serve` archive from the steps of its first one.

    The time of a step is that of the first case; a case's tokens per step (MTP acceptance) are its
    own. Steps are counted at their lower decile: other work on the machine only ever adds.
    """
    try:
        document = json.loads((archive / "run.json").read_text(encoding="utf-8"))
        cases = [case for case in document["cases"] if case["step_ms"]]
        first_ms = float(cases[0]["step_ms"]["p10"])
        return [
            LabRow(
                case=str(case["name"]),
                measured_ms=float(case["step_ms"]["p10"]) / _tokens_per_step(case),
                predicted_ms=first_ms / _tokens_per_step(case),
                fitted=case is cases[0],
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
