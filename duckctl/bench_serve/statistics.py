"""Spread of repeats, and whether two sets of repeats differ by more than it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

SMALLEST_CHANGE = 0.02
"""Differences below 2 % are called noise whatever the statistics say."""
# Student's t for 95 %, two-sided, by degrees of freedom; the last for more.
STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 8: 2.31, 10: 2.23, 20: 2.09}

Verdict = Literal["faster", "slower", "noise", "one repeat"]


@dataclass(frozen=True)
class Summary:
    """Median and spread of repeats."""

    median: float
    smallest: float
    largest: float
    deviation: float  # standard deviation of the sample; 0 for one value
    count: int

    @property
    def spread(self) -> float:
        """(largest - smallest) / median."""
        return (self.largest - self.smallest) / self.median if self.median else 0.0

    def document(self) -> dict[str, float | int]:
        return {
            "median": self.median,
            "min": self.smallest,
            "max": self.largest,
            "deviation": self.deviation,
            "count": self.count,
        }


def summarise(values: Sequence[float]) -> Summary:
    """The summary of at least one value."""
    return Summary(
        median=statistics.median(values),
        smallest=min(values),
        largest=max(values),
        deviation=statistics.stdev(values) if len(values) > 1 else 0.0,
        count=len(values),
    )


def judge(old: Sequence[float], new: Sequence[float], higher_is_better: bool) -> Verdict:
    """Welch's test at 95 %, and at least SMALLEST_CHANGE between the means."""
    if len(old) < 2 or len(new) < 2:
        return "one repeat"
    mean_old, mean_new = statistics.fmean(old), statistics.fmean(new)
    difference = mean_new - mean_old
    parts = [statistics.variance(values) / len(values) for values in (old, new)]
    error = math.sqrt(sum(parts))
    freedom = _freedom(parts, (len(old), len(new)))
    if abs(difference) < max(_student(freedom) * error, SMALLEST_CHANGE * abs(mean_old)):
        return "noise"
    return "faster" if (difference > 0) == higher_is_better else "slower"


def _freedom(parts: Sequence[float], counts: Sequence[int]) -> float:
    """Welch-Satterthwaite."""
    below = sum(part**2 / (count - 1) for part, count in zip(parts, counts, strict=True))
    return sum(parts) ** 2 / below if below else float(sum(counts) - 2)


def _student(freedom: float) -> float:
    """For the next smaller tabulated number of degrees: on the careful side."""
    return STUDENT[max((known for known in STUDENT if known <= freedom), default=1)]
