"""Keep what waits for a tool for as long as that pays, by the kind of call."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence

import numpy as np

from framework.errors import InvalidArgument
from framework.interfaces.eviction import BlockView
from framework.types import BlockId, RequestFacts
from framework_research._groups import Floats, Group, GroupedPolicy, Ints

_REMEMBERED = 256  # returns a kind


class ToolTtl(GroupedPolicy):
    """Blocks are protected for a time to live that their kind of request (its category) has shown to pay.

    The time to live t of a kind is the one with the most returns within t for the time held until t, over its recent
    returns and all it released: p F(t) / E[min(return, t)]. Blocks past their time go first, then the protected ones,
    each least recently used first, so without a kind that returns it is LRU. Learnt as the run goes.
    Within a group the deepest block goes first. O(log n) a group.

    Args:
        quantile: a time to live covers at least this share of a kind's returns, so that few early ones do not decide.

    Raises:
        InvalidArgument: a quantile outside 0 to 1.

    Source: Li et al. 2025, Continuum, arXiv:2511.02230 (pin for an optimal time to live at tool calls). Theirs pins,
    and knows the tool's name; here the request's category stands for it, and nothing is pinned: no engine may stall.
    """

    def __init__(self, quantile: float = 0.5) -> None:
        if not 0 <= quantile <= 1:
            raise InvalidArgument(f"quantile must be from 0 to 1, found {quantile}")
        self._quantile = quantile

    def attach(self, blocks: BlockView) -> None:
        super().attach(blocks)
        self._kinds: dict[str | None, int] = {}
        self._gaps: list[deque[float]] = []
        self._released, self._returns = array("d"), array("d")
        self._lives = np.zeros(0)

    def group(self, blocks: Sequence[BlockId], facts: RequestFacts, gap: float | None) -> None:
        kind = self._kinds.setdefault(facts.category, len(self._kinds))
        if kind == len(self._gaps):
            self._gaps.append(deque(maxlen=_REMEMBERED))
            self._released.append(0.0)
            self._returns.append(0.0)
        self._released[kind] += 1
        self.add(blocks, kind).record = 0

    def returned(self, group: Group, age: float, used: int) -> None:
        if 2 * used < group.count or group.record < 0:
            return
        group.record = -1
        self._returns[group.kind] += 1
        self._gaps[group.kind].append(age)

    def refresh(self) -> None:
        self._lives = np.array([self._best_life(kind) for kind in range(len(self._gaps))])

    def _best_life(self, kind: int) -> float:
        if not self._gaps[kind]:
            return 0.0
        gaps = np.sort(np.array(self._gaps[kind]))
        share = self._returns[kind] / self._released[kind]
        within = np.arange(1, len(gaps) + 1) / len(gaps)
        until = np.cumsum(gaps) / len(gaps) + gaps * (1 - within)  # E[min(return, t)] of those that return
        ratio = share * within / np.maximum(share * until + (1 - share) * gaps, 1e-12)
        ratio[within < self._quantile] = -1.0
        return float(gaps[int(np.argmax(ratio))])

    def score(self, kinds: Ints, ages: Floats, orders: Ints) -> Floats:
        lives = np.zeros(len(kinds))
        known = kinds < len(self._lives)
        lives[known] = self._lives[kinds[known]]
        protected = (ages < lives) | ~known
        return np.asarray(protected * float(2**52) + orders, dtype=np.float64)

    def facts(self) -> dict[str, str | int | float]:
        lives = zip(self._kinds, self._lives.tolist(), strict=False)
        return {"kinds": len(self._kinds), "lives": ", ".join(f"{kind} {life:.6g}" for kind, life in lives)}
