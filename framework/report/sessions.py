"""Hits of each session of a trace, from the runs' `requests.jsonl`, in order of time.

A session is what one user or agent sent; where a trace names none, each request is a unit of its own. What a resample
leaves out still passed through the cache: intervals say how much a difference hangs on which sessions were recorded,
not how a cache would fare without them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from framework.errors import FrameworkError
from framework.files.jsonl import iter_objects
from framework.report.statistics import Floats
from framework.results.layout import REQUESTS
from framework.results.metric import is_number
from framework.results.records import Run

_MOST_BYTES = 300_000_000


@dataclass(frozen=True, slots=True)
class Sessions:
    """Sums over each session of one run.

    Attributes:
        named: whether sessions are the trace's own; else each is a request.
        labels: in order of the first request.
        hit_tokens, prompt_tokens: (U,) of each.
        begin_s, end_s: first and last arrival; None where the lines do not say.
    """

    named: bool
    labels: tuple[str, ...]
    hit_tokens: Floats
    prompt_tokens: Floats
    begin_s: float | None = None
    end_s: float | None = None

    @property
    def word(self) -> str:
        """What a unit is called in a report."""
        return "session" if self.named else "request"

    def goes_on_in(self, other: Sessions) -> bool:
        """Whether `other` begins where this ends, in time of one clock: then both were cut from one recording.

        A recording of its own begins at 0, or at a date of its own.
        """
        if self.begin_s is None or self.end_s is None or other.begin_s is None or other.begin_s <= 0:
            return False
        return 0 <= other.begin_s - self.end_s <= 0.1 * (self.end_s - self.begin_s)


def sessions_of(run: Run) -> Sessions | None:
    """None where the run left no line a request, too many of them, or lines that do not say what was hit."""
    path = run.path / REQUESTS
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        lines = sorted(_lines(run), key=lambda line: _number(line.get("request")))
    except (FrameworkError, OSError):
        return None
    hits, prompts = ([line.get(key) for line in lines] for key in ("cached_tokens", "prompt_tokens"))
    if not lines or not all(map(is_number, (*hits, *prompts))) or not any(prompts):
        return None
    names = [line.get("session") for line in lines]
    named = all(name not in (None, "") for name in names)
    places: dict[str, int] = {}
    units = np.array([places.setdefault(str(name if named else i), len(places)) for i, name in enumerate(names)])
    arrivals = [_number(line.get("arrival_s")) for line in lines if is_number(line.get("arrival_s"))]
    hit, prompt = (np.bincount(units, weights=np.array(column, dtype=np.float64)) for column in (hits, prompts))
    times = min(arrivals, default=None), max(arrivals, default=None)
    return Sessions(named, tuple(places), hit.astype(np.float64), prompt.astype(np.float64), *times)


def mean_hits(runs: Sequence[Run], known: dict[str, Sessions | None]) -> Sessions | None:
    """The mean over runs that differ in their seed alone; None unless all have the same sessions."""
    found = []
    for run in runs:
        key = str(run.path)
        if key not in known:
            known[key] = sessions_of(run)
        found.append(known[key])
    first = found[0] if found else None
    if first is None or any(other is None or not alike(first, other) for other in found):
        return None
    hits = np.mean([other.hit_tokens for other in found if other is not None], axis=0)
    return replace(first, hit_tokens=hits)


def alike(one: Sessions, other: Sessions) -> bool:
    """Whether two runs had the same requests."""
    return one.labels == other.labels and bool(np.array_equal(one.prompt_tokens, other.prompt_tokens))


def _lines(run: Run) -> Sequence[Mapping[str, object]]:
    return [line for _, line in iter_objects(run.path / REQUESTS, FrameworkError)]


def _number(value: Any) -> float:
    return float(value) if is_number(value) else 0.0
