"""docs/reference/plan-validation.md, as text."""

from __future__ import annotations

from collections.abc import Sequence

from duckctl.plan.predict import Prediction
from duckctl.plan.validate import LabRow, Row, Validation

UNITS = {"decode": " tok/s", "prefill": " tok/s", "ttft": " s", "overlap": "", "gap": " µs"}

HEAD = """# Validation of `duckctl plan`

Made by `duckctl plan --validate FILE`; do not edit. The model is described in [plan](plan.md), its
constants with their sources are in `duckctl/plan/profile.py`, the published figures in
`duckctl/plan/data/published.yaml`.
"""
PUBLISHED = """## The published system

One constant is fitted: `host_us_per_layer`, what the host needs to launch one layer of one lane, is
{host_us:.0f} µs. It is fitted on the two rows marked fit; all other rows are predictions. Structure
that the figures do not tell and that is assumed: both tokens of a step wait for each other in every
layer; prompts run in chunks of 16 that share no weights between tokens, and what is left over runs
token by token; FP8 out and bf16 back on the wire.
"""
LAB = """## Our own runs

Process ducks on one shared machine (archive `{archive}`). The time of a step is taken from the row
marked fit; the others follow from their MTP acceptance alone. Steps are counted at their lower
decile, because other work on the machine only ever adds. The model has no host CPU: what attention
costs on a CPU at longer contexts (en-long-medium) is outside of it.
"""
OURS = """## Our build on the published hardware

Efficiencies that go in are measured where `profile.py` says so: kernels 0.93 to 0.96 of the read
roofline, GPU 1.48 x its bandwidth floor, 3.6 µs per expert call in a CUDA graph. Not measured on
N100 silicon: the read roofline itself (0.86 of the data sheet), handling of a call, jitter. The
band moves all of them together to their bad and to their good end.
"""


def page(
    validation: Validation, plans: Sequence[Prediction], lab: Sequence[LabRow], archive: str
) -> str:
    """The whole page."""
    parts = [HEAD, _published(validation)]
    if lab:
        parts.append(LAB.format(archive=archive) + "\n" + _lab_table(lab))
    return "\n".join([*parts, OURS, _plans(plans)])


def _published(validation: Validation) -> str:
    rows = [_figure_row(row) for row in validation.rows]
    tests = [row for row in validation.rows if row.figure.role == "test"]
    good = sum(row.within for row in tests)
    worst = max(tests, key=lambda row: abs(row.error))
    return "\n".join(
        [
            PUBLISHED.format(host_us=validation.host_us_per_layer),
            "| figure | role | published | predicted | error | |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            f"{good} of {len(tests)} tested figures are within 15 %; the largest error is "
            f"{100 * worst.error:+.1f} % ({worst.figure.name}).",
            "",
        ]
    )


def _figure_row(row: Row) -> str:
    figure = row.figure
    unit = UNITS[figure.quantity]
    remark = "; ".join(
        ([] if row.within else ["**outside 15 %**"]) + [figure.note] * bool(figure.note)
    )
    return (
        f"| {figure.name} | {figure.role} | {figure.value:g}{unit} | {row.predicted:.4g}{unit} | "
        f"{100 * row.error:+.1f} % | {remark} |"
    )


def _lab_table(rows: Sequence[LabRow]) -> str:
    lines = ["| case | measured per token | predicted | error | |", "|---|---|---|---|---|"]
    lines += [
        f"| {row.case} | {row.measured_ms:.2f} ms | {row.predicted_ms:.2f} ms | "
        f"{100 * row.error:+.1f} % | {'fit' if row.fitted else ''} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def _plans(plans: Sequence[Prediction]) -> str:
    heads = "model | ducks | format | decode tok/s | band | overlap | prefill tok/s | TTFT | limit"
    lines = [f"| {heads} |", "|---|---|---|---|---|---|---|---|---|"]
    lines += [_plan_row(plan) for plan in plans]
    lines.append(f"\nPrefill and TTFT are for a prompt of {plans[0].prompt_tokens:,} tokens.")
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


def _plan_row(plan: Prediction) -> str:
    setup = plan.setup
    band = f"{plan.band[0]:.1f} to {plan.band[1]:.1f}" if plan.band else ""
    overlap = "" if plan.overlap is None else f"{plan.overlap:.2f}"
    return (
        f"| {setup.model.name} | {setup.duck_count} | {setup.weight_format} | "
        f"{plan.decode_tokens_per_s:.1f} | {band} | {overlap} | "
        f"{plan.prefill_tokens_per_s:.1f} | {plan.ttft_s:.1f} s | {plan.limit} |"
    )
