"""The declaration of one result key, and how its value is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

Better = Literal["higher", "lower", ""]

SCALES = {
    "share": (("%", 100.0),),
    "s": (("s", 1.0), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)),
    "bytes": (("TiB", 2**-40), ("GiB", 2**-30), ("MiB", 2**-20), ("KiB", 2**-10), ("B", 1.0)),
    "bytes/s": (("TB/s", 1e-12), ("GB/s", 1e-9), ("MB/s", 1e-6), ("kB/s", 1e-3), ("B/s", 1.0)),
    "FLOP/s": (("TFLOP/s", 1e-12), ("GFLOP/s", 1e-9), ("MFLOP/s", 1e-6), ("FLOP/s", 1.0)),
}
"""Unit -> (word, factor) of its scales, the largest first."""
_LONGEST_INT = 10**18


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One key of `result.json`, declared once in `framework.results.metrics`.

    Attributes:
        key: snake_case; ends in its unit where it has one.
        unit: `share` (0 to 1, written in percent), `s`, `bytes`, `tokens/s` and other rates a second, a thing that is
            counted (`blocks`, `tokens`, `requests`, `steps`, `sequences`), or `text`, `flag`, `list`, `table`.
        better: which direction is better; empty where neither is.
        section: heading that it stands under; one of `catalogue.SECTIONS`.
        title: how tables name it.
        definition: what is counted, over what, from when to when. One sentence for docs/results.md and W&B.
        note: the few words beside the value in the table of a run.
        of: key of the whole that this is a part of; printed as `part of whole` where both are there.
        row: key of the metric on whose line of the table this one stands.
        when: whether the table of a run with this result shows the metric at all; None for always.
        hide_zero: whether the table of a run leaves out a 0, a no and an empty list.
        wall: whether two runs of one command differ in it, because it measures wall time.
        fails: a run that has it counts as failed, for this reason, whose details its value says; empty for most.
    """

    key: str
    unit: str
    better: Better
    section: str
    title: str
    definition: str
    note: str = ""
    of: str = ""
    row: str = ""
    when: Callable[[Mapping[str, Any]], bool] | None = None
    hide_zero: bool = False
    wall: bool = False
    fails: str = ""

    @property
    def numeric(self) -> bool:
        """Whether its values can be ranked and averaged."""
        return self.unit not in ("text", "flag", "list", "table")

    def text(self, value: Any) -> str:
        """A value with its unit, as tables show it."""
        return _FORMATS.get(self.unit, plain)(value)


def is_number(value: Any) -> bool:
    """A finite int or float that tables and plots can hold; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < _LONGEST_INT if isinstance(value, int) else math.isfinite(value)


def plain(value: Any) -> str:
    """Any JSON value in words."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if is_number(value) else "an integer beyond 10^18"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{plain(str(key))} {plain(item)}" for key, item in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(plain(item) for item in value) or "none"
    return str(value).encode("utf-8", "replace").decode("utf-8")  # a lone surrogate cannot be written


def _numeric(write: Callable[[float], str]) -> Callable[[Any], str]:
    return lambda value: write(value) if is_number(value) else plain(value)


def scale(unit: str, largest: float) -> tuple[str, float]:
    """(word, factor) of the unit that suits a size: the first of its scales in which it is 1 or more, the unit itself
    for 0."""
    scales = SCALES[unit]
    if not largest:
        return next((pair for pair in scales if pair[1] == 1), scales[0])
    return next((pair for pair in scales if largest * pair[1] >= 1), scales[-1])


def in_scale(value: float, unit: str) -> str:
    """A value in the scale that suits it, three digits: 4.21 GB/s."""
    word, factor = scale(unit, abs(value))
    scaled = factor * value
    return f"{scaled:,.0f} {word}" if abs(scaled) >= 1000 else f"{scaled:.3g} {word}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


_FORMATS: Mapping[str, Callable[[Any], str]] = {
    "share": _numeric(lambda value: f"{100 * value:.1f} %"),
    "tokens/s": _numeric(_rate),
    "requests/s": _numeric(_rate),
    **{unit: _numeric(partial(in_scale, unit=unit)) for unit in ("s", "bytes", "bytes/s")},
}


def _metric(section: str, key: str, unit: str, better: Better, title: str, definition: str, **more: Any) -> Metric:
    return Metric(key=key, unit=unit, better=better, section=section, title=title, definition=definition, **more)


def section(name: str, **defaults: Any) -> Callable[..., Metric]:
    """Declares metrics of this section: (key, unit, better, title, definition, **more)."""
    return partial(_metric, name, **defaults)


def text(section: str, key: str, title: str, definition: str, **more: Any) -> Metric:
    """A metric that is words."""
    return _metric(section, key, "text", "", title, definition, **more)


def on_cuda(result: Mapping[str, Any]) -> bool:
    """Whether the run used a CUDA device."""
    return str(result.get("device", "")).startswith("cuda")


def never(result: Mapping[str, Any]) -> bool:
    """For facts of every result that the table of a run leaves to `provenance.json` and reports."""
    return False
