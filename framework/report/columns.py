"""Numbers of one metric as a column: one unit in the head, one precision for all cells."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from framework.report.statistics import Mean
from framework.results.catalogue import find, title

_SECONDS = (("s", 1.0), ("ms", 1e3), ("us", 1e6))
_BYTES_PER_S = (("GB/s", 1e-9), ("MB/s", 1e-6), ("B/s", 1.0))
_BYTES = (("TiB", 2**-40), ("GiB", 2**-30), ("MiB", 2**-20), ("KiB", 2**-10), ("B", 1.0))
_MOST_DECIMALS = 3
_HEADS = {"hit_rate": "hit rate by tokens"}
"""Metric -> its name beside others, where its title leaves out what those say: gaps are by blocks."""


@dataclass(frozen=True, slots=True)
class Column:
    """How one metric is written.

    Attributes:
        head: the metric's title and unit.
        unit: of the cells; empty for counts.
        scale: factor from the metric's own unit.
        decimals: of every cell.
    """

    head: str
    unit: str
    scale: float
    decimals: int

    def number(self, value: float) -> str:
        """One value, thousands apart."""
        return f"{self.scale * value:,.{self.decimals}f}"

    def signed(self, value: float) -> str:
        """A difference, with its sign."""
        return f"{self.scale * value:+,.{self.decimals}f}"

    def mean(self, value: Mean | None, between: str = " ± ") -> str:
        """A mean with its half-width, where runs differ."""
        if value is None:
            return "-"
        return self.number(value.value) + ("" if value.half_width is None else between + self.number(value.half_width))


def column(metric: str, values: Iterable[float]) -> Column:
    """The column that tells these values apart, with as few decimals as that takes."""
    numbers = [abs(value) for value in values if math.isfinite(value)]
    declared = find(metric)
    unit = declared.unit if declared is not None else ""
    name = _HEADS.get(metric) or title(metric)
    if unit == "share":
        return Column(f"{name}, %", "%", 100.0, _decimals(numbers, 100.0, least=1))
    if unit == "s":
        word, scale = _largest_unit(_SECONDS, numbers)
        return Column(f"{name}, {word}", word, scale, _decimals(numbers, scale, least=1))
    if unit in ("bytes", "bytes/s"):
        word, scale = _largest_unit(_BYTES if unit == "bytes" else _BYTES_PER_S, numbers)
        return Column(f"{name}, {word}", word, scale, _decimals(numbers, scale, least=1))
    if all(value.is_integer() for value in numbers):
        return Column(name, "", 1.0, 0)
    return Column(name, "", 1.0, _decimals(numbers, 1.0, least=0))


def differences(metric: str, values: Sequence[float]) -> Column:
    """The column of paired differences: shares in percentage points."""
    made = column(metric, values)
    unit = "points" if made.unit == "%" else made.unit
    return Column(title(metric), unit, made.scale, made.decimals)


def _largest_unit(units: Sequence[tuple[str, float]], numbers: Sequence[float]) -> tuple[str, float]:
    largest = max(numbers, default=0.0)
    return next(((word, scale) for word, scale in units if largest * scale >= 1), units[0 if not largest else -1])


def _decimals(numbers: Sequence[float], scale: float, *, least: int) -> int:
    """Enough for three digits of the largest, and for values that differ in four digits to look different."""
    scaled = [float(f"{scale * number:.4g}") for number in numbers]
    distinct = len(set(scaled))
    magnitude = math.floor(math.log10(max(scaled))) if scaled and max(scaled) > 0 else 0
    start = max(least, min(_MOST_DECIMALS, 2 - magnitude))
    choices = range(start, _MOST_DECIMALS)
    return next((d for d in choices if len({f"{number:.{d}f}" for number in scaled}) >= distinct), _MOST_DECIMALS)
