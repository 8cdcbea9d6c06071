"""Copies of blocks between tiers: the interface of whoever carries them out, and a model of the links."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from framework.types import BlockHash


@dataclass(slots=True, eq=False)
class Copy:
    """One block on its way from tier `source` to tier `target`; 0 is the pool.

    Attributes:
        block: the pool's block that is read or written; 0 where the pool has no part in it.
        failed: why the bytes did not arrive; empty while they may.
        load: what waits for it; belongs to who submitted it.
    """

    key: BlockHash
    source: int
    target: int
    block: int = 0
    failed: str = ""
    load: Any = None


class Transfers(ABC):
    """Carries out copies: a thread over real stores in a serve run, a model of the links in a replay.

    A load goes ahead of stores that wait, but never ahead of what writes or removes its own content. Everything else
    happens in the order of the calls, so that a tier's bytes follow its keys.

    Attributes:
        failure: the first thing that a store did wrong, with its tier; empty while none did. A block that is not there,
            or damaged, is no failure of a store that says so.
        num_pending: copies submitted and not yet returned by `finished`.
    """

    failure = ""
    num_pending = 0

    @abstractmethod
    def submit(self, copies: Sequence[Copy]) -> None:
        """Begin these copies; those of one call are one operation of their links."""

    @abstractmethod
    def remove(self, key: BlockHash, tier: int) -> None:
        """Once all that was submitted before has ended, the tier forgets this content."""

    def release(self, copy: Copy) -> None:  # noqa: B027
        """The pool's block that `copy` reads is about to be overwritten: read it before that happens."""

    @abstractmethod
    def finished(self) -> Sequence[Copy]:
        """The copies that ended since the last call."""

    def discovered(self) -> Sequence[tuple[int, Sequence[BlockHash]]]:
        """(tier, contents) that somebody else may have stored there since the last call."""
        return ()

    @abstractmethod
    def wait(self, until: float | None) -> None:
        """Let time pass until a copy has ended, at most to `until` on the run's clock."""

    @abstractmethod
    def load_times(self, tiers: Sequence[int]) -> tuple[float, ...] | None:
        """Predicted seconds until blocks in these tiers, loaded in this order, are in the pool; None where unknown."""

    @abstractmethod
    def close(self, *, drain: bool) -> None:
        """End. With `drain`, what was submitted is carried out first; else it is dropped. Idempotent."""


Way = Literal["read", "write"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Between the pool and one tier. Each direction carries one operation after another, in the order of asking.

    Attributes:
        bytes_per_s: each way; infinity: in no time.
        operation_s: fixed seconds an operation, which holds all blocks of one load or one store.
    """

    bytes_per_s: float = float("inf")
    operation_s: float = 0.0


class LinkTransfers(Transfers):
    """Transfers that take the time of modelled links on a virtual clock, and move nothing.

    A block that is loaded while it is still being stored waits for that. A copy from one tier to the next occupies the
    upper one's way out and the lower one's way in, at the slower of the two.

    Args:
        links: of the tiers from 1 on.
        now, wait_until: the run's clock. Where it counts steps, links must take no time.
    """

    def __init__(
        self, links: Sequence[Link], block_bytes: int, now: Callable[[], float], wait_until: Callable[[float], None]
    ) -> None:
        self._links, self._bytes, self._now, self._wait_until = tuple(links), block_bytes, now, wait_until
        self._free_s: defaultdict[tuple[Way, int], float] = defaultdict(float)
        self._stored_s: dict[tuple[int, BlockHash], float] = {}
        self._ends: list[tuple[float, int, Copy]] = []
        self._count = 0

    def _block_s(self, tier: int) -> float:
        """Seconds that a block adds to an operation of the tier's link."""
        return self._bytes / self._links[tier - 1].bytes_per_s

    def submit(self, copies: Sequence[Copy]) -> None:
        begun = set[tuple[Way, int]]()
        for copy in copies:
            ends: tuple[tuple[Way, int], ...] = (("read", copy.source), ("write", copy.target))
            ways = [way for way in ends if way[1]]
            free = [self._free_s[way] for way in ways]
            start = max(self._now(), self._stored_s.get((copy.source, copy.key), 0.0), *free)
            each = max(self._block_s(tier) for _, tier in ways)
            if not begun.issuperset(ways):
                each += max(self._links[tier - 1].operation_s for _, tier in ways)
                begun.update(ways)
            for way in ways:
                self._free_s[way] = start + each
            if copy.target:
                self._stored_s[copy.target, copy.key] = start + each
            self._count += 1
            heapq.heappush(self._ends, (start + each, self._count, copy))
            self.num_pending += 1

    def remove(self, key: BlockHash, tier: int) -> None:
        self._stored_s.pop((tier, key), None)

    def finished(self) -> Sequence[Copy]:
        ended, now = list[Copy](), self._now()
        while self._ends and self._ends[0][0] <= now:
            _, _, copy = heapq.heappop(self._ends)
            self._stored_s.pop((copy.target, copy.key), None)
            ended.append(copy)
        self.num_pending -= len(ended)
        return ended

    def wait(self, until: float | None) -> None:
        if self._ends:
            self._wait_until(self._ends[0][0] if until is None else min(self._ends[0][0], until))

    def load_times(self, tiers: Sequence[int]) -> tuple[float, ...]:
        now, free, times = self._now(), dict[int, float](), list[float]()
        done = now
        for tier in tiers:
            if tier:
                if tier not in free:
                    free[tier] = max(now, self._free_s["read", tier]) + self._links[tier - 1].operation_s
                free[tier] += self._block_s(tier)
                done = max(done, free[tier])
            times.append(done - now)
        return tuple(times)

    def close(self, *, drain: bool) -> None:
        self._ends.clear()
        self.num_pending = 0
