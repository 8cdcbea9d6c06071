"""How far richer features could go: gradient boosting in place of hazard's estimate, in-sample and held out.

A bound, no policy: it is fitted on whole traces beforehand, to groups as they wait under LRU. Needs scikit-learn,
which nothing else here needs.
"""
# Shapes: G groups released  F features  A age bins

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.gap.cells import TRACES, bounds, file_of, sources, stream
from experiments.gap.scoring import closed_at
from experiments.shared import begun, digest, finish, kept, parser_of, table
from framework.types import RequestFacts
from framework_cache_only.reference import replay
from framework_research._groups import Floats, Group, Ints
from framework_research._returns import FIRST_AGE_S, _best_ratio, _from_peak
from framework_research.hazard import BODY, LEFT, Hazard

FRACTIONS = (0.02, 0.06)
FOLDS = 4
FITS = (
    *((trace, fitted) for fitted in ("other runs", "itself") for trace in list(TRACES)[:4]),
    ("conversation", "synthetic mix"), ("synthetic mix", "conversation"),
    ("agentic coding", "agentic coding b"), ("agentic coding b", "agentic coding"),
)  # fmt: skip
"""(replayed, fitted on): `other runs` are the other folds of the same trace's sessions or runs of requests."""
STRONG = {"max_iter": 150, "learning_rate": 0.08, "max_leaf_nodes": 31, "min_samples_leaf": 40}
WEAK = {"max_iter": 80, "learning_rate": 0.08, "max_leaf_nodes": 8, "min_samples_leaf": 400, "l2_regularization": 10.0}
"""Settings of the model that memorises a trace, and of one that is to be of use on others."""
_AGES = 44
_EDGES = FIRST_AGE_S * np.concatenate([[0.0], 2.0 ** (np.arange(_AGES - 1) / 2)])
_WIDTH = np.append(np.diff(_EDGES), _EDGES[-1])


class Scored(Hazard):
    """LRU that notes 21 features of each group; given an index of (group, age bin) it orders by that, unguarded.

    Args:
        index: row 0 for what conversations left behind.
        rows: of a request's number and the number of its group there. A replay with other evictions recognises other
            continuations: a group that it alone has gets row 0.
    """

    def __init__(self, index: Floats | None = None, rows: Mapping[tuple[int, int], int] | None = None) -> None:
        super().__init__(window=1 << 20)
        self.given, self.rows, self.features_of = index, rows or {}, list[list[float]]()
        self.groups, self.records = list[tuple[int, int]](), list[int]()
        self._pasts: dict[int, tuple[Any, ...]] = {}
        self._request, self._nth, self._began, self._of_late, self._answer = -1, 0, math.nan, list[float](), math.nan

    def release(self, blocks: Sequence[Any], now: float) -> None:
        self._request, self._nth = self._request + 1, 0
        super().release(blocks, now)

    def group(self, blocks: Sequence[Any], facts: RequestFacts, gap: float | None) -> None:
        """Notes the conversation's past: when it began, its turns, last gaps, their mean, extremes, sizes."""
        time, tokens = self._clock, facts.prompt_tokens or 0
        self._answer = math.nan if facts.output_tokens is None else facts.output_tokens
        self._began = time if math.isnan(self._began) else self._began
        self._of_late = [earlier for earlier in self._of_late if earlier >= time - 60] + [time]
        last = math.nan if gap is None else math.log(gap + 0.1)
        past = self._pasts.get(self.continued.order) if self.continued is not None else None
        if past is None:
            self._past: tuple[Any, ...] = (time, 0, last, math.nan, last, last, last, tokens, 0)
        else:
            born, turns, before, _, mean, low, high, size, _ = past
            mean = last if math.isnan(mean) else 0.7 * mean + 0.3 * last
            ends = float(np.fmin(low, last)), float(np.fmax(high, last))
            self._past = (born, turns + 1, last, before, mean, *ends, tokens, tokens - size)
        super().group(blocks, facts, gap)

    def _begin(self, blocks: Sequence[Any], kind: int, turn: int = -1) -> Group:
        sort, view, past = int(self._returns._sorts()[kind]), self.blocks, self._past
        group = super()._begin(blocks, kind, turn)
        self.groups.append((self._request, self._nth))
        self._nth += 1
        self._pasts[group.order] = past
        self.records.append(group.record)
        if self.given is None:
            self.features_of.append(
                [sort, self._part if sort == BODY else -1, past[1], *past[2:7], self._clock - past[0], *past[7:],
                 self.num_fresh, len(blocks), view.depth[blocks[0]] + 1, view.depth[blocks[-1]], view.hits[blocks[0]],
                 view.hits[blocks[-1]], len(self._of_late), self._clock - self._began, turn, self._answer]
            )  # fmt: skip
        return group

    def add(self, blocks: Sequence[Any], kind: int) -> Group:
        return super().add(blocks, kind if self.given is None else self.rows.get((self._request, self._nth), 0))

    def _leave(self, group: Group, *, dropped: bool) -> None:
        if self.given is None:
            super()._leave(group, dropped=dropped)
            return
        group.record = group.turn = -1
        if group.size:
            group.kind, group.start = 0, self._clock
            self.place(group)

    def refresh(self) -> None:
        """Nothing is learnt online, and nothing is guarded: without an index the order stays LRU's."""

    def rescore(self) -> None:
        if self.given is not None:
            super().rescore()

    def first_score(self, group: Group) -> float:
        return super().first_score(group) if self.given is None else float(self.given[group.kind, 1])

    def score(self, kinds: Ints, ages: Floats, orders: Ints) -> Floats:
        if self.given is None:
            return super().score(kinds, ages, orders)
        bins = np.minimum(np.searchsorted(_EDGES, ages, side="right") - 1, _AGES - 1)
        return np.asarray(self.given[kinds, np.maximum(bins, 1)], np.float64)


class Watched:
    """What became of a trace's groups: (G, F) features, (G,) age bin of the end, whether it was a return, and fold."""

    def __init__(self, trace: str) -> None:
        source = stream(trace)
        policy = Scored()
        replay(source.paths, policy, bounds(trace, FRACTIONS).capacities[1])
        kept_of, records = policy._returns, np.array(policy.records)
        start, end = np.frombuffer(kept_of._start), np.frombuffer(kept_of._end)
        stopped, sorts = (
            np.frombuffer(kept_of._stopped, np.uint8),
            kept_of._sorts()[np.frombuffer(kept_of._kind, np.int32)],
        )
        now = policy._clock
        age = np.minimum(end, now) - start
        back = (end <= now) & (stopped == 0)
        self.bins = np.minimum(np.searchsorted(_EDGES, age, side="right") - 1, _AGES - 1)
        left = sorts == LEFT  # one hazard for all of what conversations left behind
        exposure = np.clip(age[left][:, None] - _EDGES, 0, _WIDTH).sum(0) + 30 * _WIDTH
        self.left = (
            np.bincount(self.bins[left & back], minlength=_AGES) + 0.3 / (_EDGES + 30) * 30 * _WIDTH
        ) / exposure
        self.features, self.back, self.bins = np.array(policy.features_of, float), back[records], self.bins[records]
        units = source.units[[request for request, _ in policy.groups]]
        self.rows = {group: row for row, group in enumerate(policy.groups, 1)}
        self.fold = np.random.default_rng(0).permutation(units.max() + 1)[units] % FOLDS

    def fit(self, chosen: Any, *, memorise: bool) -> Any:
        """A classifier of a return in an age bin, given that there was none before, from these groups.

        Args:
            memorise: as strong as is of use in-sample; else as weak as is of use on other groups.
        """
        from sklearn.ensemble import HistGradientBoostingClassifier

        rows = np.repeat(np.flatnonzero(chosen), self.bins[chosen] + 1)
        ages = np.concatenate([np.arange(last + 1) for last in self.bins[chosen]])
        last = ages == self.bins[rows]
        use = ~last | self.back[rows]  # the bin in which the watch ended says nothing
        size: dict[str, Any] = STRONG if memorise else WEAK
        model = HistGradientBoostingClassifier(**size, early_stopping=False, random_state=0)
        return model.fit(np.column_stack([self.features[rows], ages])[use], (last & self.back[rows])[use])

    def chances(self, model: Any, chosen: Any) -> Floats:
        """(G, A) chance of a return in each age bin."""
        rows, found = self.features[chosen], np.zeros((int(np.sum(chosen)), _AGES))
        for age in range(int(self.bins.max()) + 1):
            found[:, age] = model.predict_proba(np.column_stack([rows, np.full(len(rows), age)]))[:, 1]
        return found


def closed(trace: str, by: str) -> dict[str, Any]:
    """Share of the gap that the order by these chances closes at each capacity."""
    mine, every = Watched(trace), slice(None)
    chances = np.zeros((len(mine.back), _AGES))
    if by == "other runs":
        for fold in range(FOLDS):
            chances[mine.fold == fold] = mine.chances(mine.fit(mine.fold != fold, memorise=False), mine.fold == fold)
    else:
        other = mine if by == "itself" else Watched(by)
        model = other.fit(np.ones(len(other.back), bool), memorise=by == "itself")
        chances[every] = mine.chances(model, np.ones(len(mine.back), bool))
    hazard = -np.log1p(-np.clip(chances, 1e-6, 1 - 1e-6)) / _WIDTH
    if by != "itself":  # as hazard's own estimate: what rises again at an old age is noise
        hazard = np.array([_from_peak(row, _WIDTH) for row in hazard])
    hazard = np.vstack([mine.left, hazard])
    index = np.concatenate([_best_ratio(hazard[start : start + 2000], _WIDTH) for start in range(0, len(hazard), 2000)])
    field = bounds(trace, FRACTIONS)
    hits = [
        field.by_unit(replay(field.paths, Scored(index, mine.rows), size).request_hits) for size in field.capacities
    ]
    return {"closed": closed_at(field, np.stack(hits)).tolist(), "groups": len(mine.back)}


def main() -> int:
    """Fit, replay and write the table."""
    options = begun(parser_of(__doc__, "gap.bound"), None, "results/bound")
    header = ["trace", "fitted on", *(f"gap closed at {100 * part:g} %, %" for part in FRACTIONS)]
    files, rows = [Path(__file__), *sources(Hazard)], []
    for trace, by in FITS:
        key = digest(trace, by, files=[*files, *filter(None, (file_of(trace),))])
        found = kept(options.home / "results" / "cells" / f"bound-{trace}-{by}.json".replace(" ", "_"), key,
                     lambda trace=trace, by=by: closed(trace, by))  # fmt: skip
        rows.append({"trace": trace, "fitted_on": by, **dict(zip(map(str, FRACTIONS), found["closed"], strict=True))})
        body = [[r["trace"], r["fitted_on"], *(f"{100 * r[str(part)]:.0f}" for part in FRACTIONS)] for r in rows]
        traces = {file_of(name) for row in rows for name in (row["trace"], row["fitted_on"]) if name in TRACES}
        finish(options, {"bound": rows}, {"bound": table(header, body)}, filter(None, traces))
    return 0


if __name__ == "__main__":
    sys.exit(main())
