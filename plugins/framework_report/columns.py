"""Numbers of one metric as a column: one unit in the head, one precision for all cells."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from framework.results.catalogue import find, title
from framework.results.metric import SCALES, scale
from framework_report.statistics import Estimate
from framework_report.study import Study

_MOST_DECIMALS = 3
_LOPSIDED = 1.1  # of the nearer end's distance: from there on both ends are written
_TITLES = {"hit_rate": "hit rate by tokens"}
"""Metric -> its name beside others, where its title leaves out what those say: gaps are by blocks."""


@dataclass(frozen=True, slots=True)
class Column:
    """How one metric is written.

    Attributes:
        title: of the metric.
        unit: of the cells; empty for counts.
        scale: factor from the metric's own unit.
        decimals: of every cell.
    """

    title: str
    unit: str
    scale: float
    decimals: int

    @property
    def head(self) -> str:
        """Title and unit."""
        return f"{self.title}, {self.unit}" if self.unit else self.title

    def number(self, value: float) -> str:
        """One value, thousands apart."""
        return f"{self.scale * value:,.{self.decimals}f}"

    def signed(self, value: float) -> str:
        """A difference, with its sign."""
        return f"{self.scale * value:+,.{self.decimals}f}"

    def mean(self, estimate: Estimate | None) -> str:
        """A mean with the half-width of its interval, or with its ends where one is farther off, where runs differ."""
        if estimate is None or estimate.interval is None:
            return "-" if estimate is None else self.number(estimate.value)
        low, high = estimate.interval
        if high - estimate.value > _LOPSIDED * (estimate.value - low):
            return f"{self.number(estimate.value)} ({self.number(low)} to {self.number(high)})"
        return f"{self.number(estimate.value)} ± {self.number(high - estimate.value)}"

    def scaled(self, interval: tuple[float, float] | None) -> tuple[float, float] | None:
        """An interval as a figure draws it; None for none."""
        return None if interval is None else (self.scale * interval[0], self.scale * interval[1])


def column(metric: str, values: Iterable[float]) -> Column:
    """The column that tells these values apart, with as few decimals as that takes."""
    numbers = [abs(value) for value in values if math.isfinite(value)]
    declared = find(metric)
    unit, factor = "", 1.0
    if declared is not None and declared.unit in SCALES:
        unit, factor = scale(declared.unit, max(numbers, default=0.0))
    whole = not unit and all(value.is_integer() for value in numbers)
    decimals = 0 if whole else _decimals([factor * value for value in numbers], least=1 if unit else 0)
    return Column(_TITLES.get(metric) or title(metric), unit, factor, decimals)


def column_of_differences(study: Study) -> Column:
    """One unit and one precision for every difference of a study; shares in percentage points."""
    made = column(study.metric, [number for entry in study.comparisons for number in entry.by_setting.values()])
    return replace(made, title=title(study.metric), unit="points" if made.unit == "%" else made.unit)


def _decimals(numbers: Sequence[float], *, least: int) -> int:
    """Enough for three digits of the largest, and for values that differ in four digits to look different."""
    rounded = [float(f"{number:.4g}") for number in numbers]
    magnitude = math.floor(math.log10(max(rounded))) if rounded and max(rounded) > 0 else 0
    choices = range(max(least, min(_MOST_DECIMALS, 2 - magnitude)), _MOST_DECIMALS)
    distinct = len(set(rounded))
    return next((d for d in choices if len({f"{number:.{d}f}" for number in rounded}) >= distinct), _MOST_DECIMALS)
