"""Line charts as PNG and SVG, by matplotlib (the extra ``plots``); loaded when first used.

The same data give the same bytes: no dates, fixed ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duckctl.errors import DuckError

WIDTH_IN, HEIGHT_IN, DPI = 8.0, 3.8, 100
SUFFIXES = (".png", ".svg")


@dataclass(frozen=True)
class Series:
    """One line or set of points of a chart."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    style: str = "-"  # matplotlib's format: "-" a line, "." points, "--" dashed


@dataclass(frozen=True)
class Chart:
    """What to draw. ``y_max`` cuts the axis where outliers would hide the rest."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    y_max: float | None = None
    notes: Sequence[str] = ()


def require_plots() -> None:
    """Raises DuckError when matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise DuckError(
            "plots need matplotlib, which is not installed",
            "pip install 'duckctl[plots]', or leave plots out",
        ) from None


def save_chart(chart: Chart, base: Path) -> list[Path]:
    """Writes ``base``.png and ``base``.svg; gives their paths."""
    require_plots()
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    paths = [base.with_name(base.name + suffix) for suffix in SUFFIXES]
    with matplotlib.rc_context({"svg.hashsalt": "duckctl", "svg.fonttype": "none"}):
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        _draw(figure.add_subplot(), chart)
        figure.savefig(paths[0], metadata={"Software": None})
        figure.savefig(paths[1], metadata={"Date": None, "Creator": None})
    return paths


def _draw(axes: Any, chart: Chart) -> None:
    for series in chart.series:
        axes.plot(series.x, series.y, series.style, label=series.label, linewidth=1.3, markersize=5)
    axes.set_title(chart.title, loc="left", fontsize=11)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.set_ylim(bottom=0, top=chart.y_max)
    axes.grid(True, alpha=0.3)
    for edge in ("top", "right"):
        axes.spines[edge].set_visible(False)
    if len(chart.series) > 1:
        axes.legend(frameon=False, fontsize=8, loc="best")
    if chart.notes:
        axes.set_title(", ".join(chart.notes), loc="right", fontsize=8)
