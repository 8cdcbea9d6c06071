"""Hits of each session of a trace, from the runs' `requests.jsonl`, for resampling.

A session is what one user or agent sent; requests without one are taken in runs of 50 in order of arrival. Sessions
are drawn with replacement, the same draw for all policies and capacities of a trace. What a resample leaves out still
passed through the cache: intervals say how much a difference hangs on which sessions were recorded, not how a cache
would fare without them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from framework.errors import FrameworkError
from framework.files.jsonl import iter_objects
from framework.report.statistics import Floats
from framework.results.layout import REQUESTS
from framework.results.metric import is_number
from framework.results.records import Run

RUN_OF_REQUESTS = 50
_MOST_BYTES = 300_000_000


@dataclass(frozen=True, slots=True)
class Sessions:
    """Sums over each session of one run.

    Attributes:
        named: whether sessions are the trace's own; else they are runs of consecutive requests.
        labels: in order of appearance.
        hit_tokens, prompt_tokens: (U,) of each.
    """

    named: bool
    labels: tuple[str, ...]
    hit_tokens: Floats
    prompt_tokens: Floats

    @property
    def unit(self) -> str:
        """What a session is called in a report."""
        return "session" if self.named else f"run of {RUN_OF_REQUESTS} requests"


def sessions_of(run: Run) -> Sessions | None:
    """None where the run left no line a request, too many of them, or lines that do not say what was hit."""
    path = run.path / REQUESTS
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        rows = [(line.get("session"), line.get("cached_tokens"), line.get("prompt_tokens")) for line in _lines(run)]
    except (FrameworkError, OSError):
        return None
    if not rows or not all(is_number(hit) and is_number(prompt) for _, hit, prompt in rows):
        return None
    named = all(session not in (None, "") for session, _, _ in rows)
    labels = [str(session) if named else str(number // RUN_OF_REQUESTS) for number, (session, _, _) in enumerate(rows)]
    places: dict[str, int] = {}
    units = np.array([places.setdefault(label, len(places)) for label in labels])
    hits, prompts = (
        np.bincount(units, weights=np.array([row[column] for row in rows], dtype=np.float64)).astype(np.float64)
        for column in (1, 2)
    )
    return Sessions(named, tuple(places), hits, prompts)


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
    return Sessions(first.named, first.labels, hits, first.prompt_tokens)


def alike(one: Sessions, other: Sessions) -> bool:
    """Whether two runs had the same requests."""
    return one.labels == other.labels and bool(np.array_equal(one.prompt_tokens, other.prompt_tokens))


def _lines(run: Run) -> Sequence[Mapping[str, object]]:
    return [line for _, line in iter_objects(run.path / REQUESTS, FrameworkError)]
