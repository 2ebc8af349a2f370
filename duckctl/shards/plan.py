"""The shard plan: which rows of every expert's MoE intermediate size each duck holds.

Equal slices by default. Uneven slices follow weights (a duck's bandwidth, say) in steps of 32
rows. A slice lists its holders in order of preference: one duck now, replicas later.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from duckctl.shards.architectures import ModelShape
from duckctl.shards.errors import PlanError
from duckctl.shards.layout import (
    BLOCK,
    FORMAT_CODES,
    LOSSLESS_FORMATS,
    PANEL_ROWS,
    RegionLayout,
    valid_duck_counts,
)

PLAN_SCHEMA_VERSION = 1
RUNTIME_MARGIN_BYTES = 1 << 30  # image, kernel, mailbox and network buffers of a duck
GIB = 1 << 30


@dataclass(frozen=True)
class DuckSpec:
    """A duck as planning sees it; ``weight`` is its share relative to the others."""

    name: str
    memory_gib: float | None = None
    weight: float = 1.0


@dataclass(frozen=True)
class SlicePlan:
    """Rows [first_row, first_row + rows) of gate and up, the same columns of down."""

    index: int
    first_row: int
    rows: int
    holders: tuple[str, ...]


@dataclass(frozen=True)
class ShardPlan:
    """All slices of a model in one format; pieces, sizes and keys follow from it."""

    fmt: str
    shape: ModelShape
    slices: tuple[SlicePlan, ...]

    def layout(self, slice_index: int) -> RegionLayout:
        part = self.slices[slice_index]
        return _region(self.shape, self.fmt, part.first_row, part.rows)

    @property
    def layouts(self) -> tuple[RegionLayout, ...]:
        return tuple(self.layout(part.index) for part in self.slices)

    @property
    def total_bytes(self) -> int:
        return sum(layout.region_bytes for layout in self.layouts)

    def to_json(self) -> dict[str, object]:
        """Plan file form: what a slice is and who holds it."""
        return {
            "schema_version": PLAN_SCHEMA_VERSION,
            "format": self.fmt,
            "granularity_rows": PANEL_ROWS,
            "moe_intermediate_size": self.shape.moe_intermediate_size,
            "slices": [
                {
                    "slice": part.index,
                    "first_row": part.first_row,
                    "rows": part.rows,
                    "region_bytes": self.layout(part.index).region_bytes,
                    "holders": list(part.holders),
                }
                for part in self.slices
            ],
        }

    def digest(self) -> str:
        """Digest of what decides the bytes of a cache: not who holds a slice."""
        shape = self.shape
        parts = [
            self.fmt,
            shape.model_type,
            shape.hidden_size,
            shape.moe_intermediate_size,
            shape.expert_count,
            list(shape.layers),
            [[part.first_row, part.rows] for part in self.slices],
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def make_plan(
    shape: ModelShape,
    fmt: str,
    ducks: Sequence[tuple[str, float | None]],
    weights: str | None = None,
) -> ShardPlan:
    """The plan for ducks (name, memory in GiB) and a ``--weights`` text: equal slices without."""
    if weights is None:
        return equal_plan(shape, fmt, [DuckSpec(name, memory) for name, memory in ducks])
    shares = parse_weights(weights, [memory for _, memory in ducks])
    specs = [
        DuckSpec(name, memory, share) for (name, memory), share in zip(ducks, shares, strict=True)
    ]
    return weighted_plan(shape, fmt, specs)


def equal_plan(shape: ModelShape, fmt: str, ducks: Sequence[DuckSpec]) -> ShardPlan:
    """One slice of the same size per duck; refused unless the rows come out in whole panels."""
    counts = valid_duck_counts(shape.moe_intermediate_size)
    if len(ducks) not in counts:
        raise PlanError(
            f"{len(ducks)} ducks cannot share {shape.moe_intermediate_size} rows in equal slices "
            f"of a multiple of {PANEL_ROWS} rows",
            f"valid duck counts: {', '.join(map(str, counts))}; or --weights for uneven slices "
            f"over up to {counts[-1]} ducks",
        )
    rows = shape.moe_intermediate_size // len(ducks)
    return _plan(shape, fmt, ducks, [rows] * len(ducks))


def weighted_plan(shape: ModelShape, fmt: str, ducks: Sequence[DuckSpec]) -> ShardPlan:
    """Uneven slices by largest remainder: at least one panel per duck, none beyond its memory."""
    panels = shape.moe_intermediate_size // PANEL_ROWS
    if len(ducks) > panels:
        raise PlanError(
            f"{len(ducks)} ducks cannot share {panels} panels of {PANEL_ROWS} rows",
            f"use at most {panels} ducks for this model",
        )
    for duck in ducks:
        if not (math.isfinite(duck.weight) and duck.weight > 0):
            raise PlanError(
                f"the weight of duck {duck.name} is {duck.weight}", "weights are numbers above 0"
            )
    limits = [_panels_max(shape, fmt, duck) for duck in ducks]
    if not _holds(limits, panels):
        fitting = [
            other
            for other in FORMAT_CODES
            if _holds([_panels_max(shape, other, duck) for duck in ducks], panels)
        ]
        others = f", or try --format {' or '.join(fitting)}" if fitting else ""
        raise PlanError(
            f"the ducks' memory holds {sum(limits)} of {panels} panels in {fmt}",
            f"add ducks or memory{others}",
        )
    shares = _apportion(panels, [duck.weight for duck in ducks], limits)
    return _plan(shape, fmt, ducks, [share * PANEL_ROWS for share in shares])


def _holds(limits: Sequence[int], panels: int) -> bool:
    """Whether ducks of these limits have room for all panels, at least one each."""
    return sum(limits) >= panels and min(limits) >= 1


def _plan(shape: ModelShape, fmt: str, ducks: Sequence[DuckSpec], rows: Sequence[int]) -> ShardPlan:
    if fmt not in FORMAT_CODES:
        raise PlanError(f"format '{fmt}' is unknown", f"formats: {', '.join(FORMAT_CODES)}")
    slices = []
    first_row = 0
    for index, (duck, count) in enumerate(zip(ducks, rows, strict=True)):
        slices.append(SlicePlan(index, first_row, count, (duck.name,)))
        first_row += count
    plan = ShardPlan(fmt, shape, tuple(slices))
    _check_memory(plan, ducks)
    return plan


def _check_memory(plan: ShardPlan, ducks: Sequence[DuckSpec]) -> None:
    for duck, layout in zip(ducks, plan.layouts, strict=True):
        if duck.memory_gib is None:
            continue
        need = layout.region_bytes + RUNTIME_MARGIN_BYTES
        if need > duck.memory_gib * GIB:
            raise PlanError(
                f"duck {duck.name} has {duck.memory_gib:g} GiB; its slice in {plan.fmt} needs "
                f"{layout.region_bytes / GIB:.1f} GiB and {RUNTIME_MARGIN_BYTES / GIB:g} GiB "
                "for the runtime",
                _fitting_hint(plan.shape, duck.memory_gib),
            )


def _fitting_hint(shape: ModelShape, memory_gib: float) -> str:
    """Formats and counts of equal slices that would fit into that much memory per duck."""
    exact = _fitting_counts(shape, LOSSLESS_FORMATS, memory_gib)
    others = [fmt for fmt in FORMAT_CODES if fmt not in LOSSLESS_FORMATS]
    rounded = _fitting_counts(shape, others, memory_gib)
    if not exact and not rounded:
        return f"nothing fits into {memory_gib:g} GiB per duck; add memory"
    parts = [*exact, *(f"{text} (rounded)" for text in rounded)]
    return f"what fits into {memory_gib:g} GiB per duck: {'; '.join(parts)}"


def _fitting_counts(shape: ModelShape, formats: Sequence[str], memory_gib: float) -> list[str]:
    fitting = []
    for fmt in formats:
        counts = [
            str(count)
            for count in valid_duck_counts(shape.moe_intermediate_size)
            if _region(shape, fmt, 0, shape.moe_intermediate_size // count).region_bytes
            + RUNTIME_MARGIN_BYTES
            <= memory_gib * GIB
        ]
        if counts:
            fitting.append(f"{fmt} on {', '.join(counts)} ducks")
    return fitting


def _region(shape: ModelShape, fmt: str, first_row: int, rows: int) -> RegionLayout:
    return RegionLayout(
        fmt,
        shape.hidden_size,
        shape.moe_intermediate_size,
        shape.expert_count,
        shape.layers,
        first_row,
        rows,
    )


def _panels_max(shape: ModelShape, fmt: str, duck: DuckSpec) -> int:
    """Panels that fit into a duck's memory, or all when its memory is not known."""
    panels = shape.moe_intermediate_size // PANEL_ROWS
    if duck.memory_gib is None:
        return panels
    room = duck.memory_gib * GIB - RUNTIME_MARGIN_BYTES
    fitting = 0
    while fitting < panels:
        # A slice of k panels touches at most one source block more than it fills.
        rows = (fitting + 1) * PANEL_ROWS
        if _region(shape, fmt, BLOCK - PANEL_ROWS, rows).region_bytes > room:
            break
        fitting += 1
    return fitting


def _apportion(total: int, weights: Sequence[float], limits: Sequence[int]) -> list[int]:
    """Integers >= 1 that add up to total, near the weights' shares, none above its limit.

    Starts with one each and gives the next panel to the duck that is furthest behind its share,
    the first of equals: deterministic, and at most 64 steps for the largest model.
    """
    shares = [1] * len(weights)
    for _ in range(total - len(weights)):
        open_ducks = [i for i in range(len(weights)) if shares[i] < limits[i]]
        chosen = min(open_ducks, key=lambda i: ((shares[i] + 1) / weights[i], i))
        shares[chosen] += 1
    return shares


def parse_weights(text: str, memory_gib: Sequence[float | None]) -> list[float]:
    """'2,1,1' -> one number per duck; 'memory' -> each duck's memory."""
    duck_count = len(memory_gib)
    if text == "memory":
        known = [value for value in memory_gib if value is not None]
        if len(known) != duck_count:
            raise PlanError(
                "--weights memory needs the memory of every duck",
                "write duck_memory_gib into the inventory",
            )
        return known
    try:
        weights = [float(part) for part in text.split(",")]
    except ValueError:
        raise PlanError(
            f"--weights '{text}' is not a list of numbers", "write e.g. --weights 2,1,1"
        ) from None
    if len(weights) != duck_count:
        raise PlanError(
            f"--weights has {len(weights)} numbers for {duck_count} ducks",
            "give one number per duck, in slot order",
        )
    return weights
