"""Evict what is least likely to be reused soon, by the reuse times of its kind of request."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from framework.interfaces.eviction import BlockView
from framework.types import BlockId, RequestFacts
from framework_research._groups import Floats, Group, GroupedPolicy, Ints

_MOST_TURNS = 16
_PRIOR = 20.0
"""Groups' worth of evidence by which a kind is shrunk to all kinds together."""


class WorkloadAware(GroupedPolicy):
    """Reuse times are exponential by kind of request (category and turn); the least likely to be reused goes first.

    A group of blocks of age a is reused within the next lifetime of a block with probability
    p e^(-a/m) (1 - e^(-life/m)) / (1 - p + p e^(-a/m)), where p is the share of the kind's groups that were reused, m
    the mean time until they were, and `life` the mean age of evicted groups; p and m are shrunk to those of all kinds.
    Within a group the deepest block goes first, so that heads stay. Groups of equal chance: released first goes first.

    O(log n) a group. Source: Wang et al., USENIX ATC 2025, arXiv:2506.02634 (workload-aware eviction). Theirs fits
    kinds offline, from the day before; here they are learnt as the run goes.
    """

    def attach(self, blocks: BlockView) -> None:
        super().attach(blocks)
        self._kinds: dict[tuple[str | None, int], int] = {}
        self._groups, self._reused, self._waited = array("d", [0.0]), array("d", [0.0]), array("d", [0.0])
        self._life, self._num_lives = 0.0, 0
        self._table: tuple[Floats, Floats] = (np.zeros(1), np.ones(1))

    def group(self, blocks: Sequence[BlockId], facts: RequestFacts, gap: float | None) -> None:
        turn = -1 if facts.turn is None else min(facts.turn, _MOST_TURNS)
        kind = self._kinds.setdefault((facts.category, turn), len(self._kinds) + 1)
        if kind == len(self._groups):
            for column in (self._groups, self._reused, self._waited):
                column.append(0.0)
        for number in (0, kind):
            self._groups[number] += 1
        self.add(blocks, kind).record = kind

    def returned(self, group: Group, age: float, used: int) -> None:
        if 2 * used < group.count or group.record < 0:
            return
        for number in (0, group.record):
            self._reused[number] += 1
            self._waited[number] += age
        group.record = -1

    def evicted(self, block: BlockId, now: float) -> None:
        group = self._group_of[block]
        if group is not None:
            self._num_lives += 1
            self._life += (self._clock - group.start - self._life) / min(self._num_lives, self.blocks.num_blocks)
        super().evicted(block, now)

    def refresh(self) -> None:
        groups, reused, waited = (np.array(column) for column in (self._groups, self._reused, self._waited))
        share = (reused[0] + 1) / (groups[0] + 2)
        mean = max(waited[0] / max(reused[0], 1.0), 1e-9)
        shares = (reused + _PRIOR * share) / (groups + _PRIOR)
        self._table = shares, (waited + _PRIOR * share * mean) / (reused + _PRIOR * share)

    def score(self, kinds: Ints, ages: Floats, orders: Ints) -> Floats:
        shares, means = self._table
        known = np.where(kinds < len(shares), kinds, 0)
        share, mean = shares[known], means[known]
        left = share * np.exp(-np.minimum(ages / mean, 700.0))
        chance: Floats = left * -np.expm1(-self._life / mean) / (1 - share + left)
        return chance
