"""Evict from a list of once-used or of often-used blocks; what was evicted too early shifts the balance."""

from __future__ import annotations

from collections.abc import Sequence

from framework.types import BlockId
from framework_builtin.eviction._queue import Ghosts, Queue, QueuePolicy


class Arc(QueuePolicy):
    """Adaptive replacement: T1 holds blocks used once, T2 more often, both by recency; B1, B2 the names they lost.

    A block whose name is in B1 raises the target size of T1, one in B2 lowers it, and enters T2. The victim is T1's
    front while T1 is over its target, else T2's; if that one has no candidate, the other's.
    A policy learns what is admitted after it has named the victims, so the target moves one admission later than in
    the paper, and the paper's tie rule for a B2 hit at exactly the target cannot be applied.
    Within one call the deepest is first in its list; pinned blocks keep their place. O(log n) amortised a call.
    Source: Megiddo and Modha, FAST 2003.
    """

    def __init__(self) -> None:
        self._once, self._often = Queue(), Queue()
        self._lost_once, self._lost_often = Ghosts(0), Ghosts(0)
        self._target = 0.0

    def admit(self, blocks: Sequence[BlockId], now: float) -> None:
        for block in blocks:
            recalled = self._learn(block)
            (self._often if recalled else self._once).append(block)
        self._trim()

    def hit(self, blocks: Sequence[BlockId], now: float) -> None:
        for block in blocks:
            if block in self._once:
                self._once.move(block, self._often)
            else:
                self._often.append(block)

    def victim(self, now: float) -> BlockId:
        over = len(self._once) > self._target
        return self._first_of(*((self._once, self._often) if over else (self._often, self._once)))

    def evicted(self, block: BlockId, now: float) -> None:
        lost = self._lost_once if block in self._once else self._lost_often
        lost.add(self.blocks.key[block])
        self._queue_of(block).remove(block)

    def facts(self) -> dict[str, str | int | float]:
        ghosts = len(self._lost_once) + len(self._lost_often)
        sizes = {"once_blocks": len(self._once), "often_blocks": len(self._often), "ghosts": ghosts}
        return {"target_blocks": round(self._target, 3), **sizes}

    def _queue_of(self, block: BlockId) -> Queue:
        return self._once if block in self._once else self._often

    def _learn(self, block: BlockId) -> bool:
        key, once, often = self.blocks.key[block], len(self._lost_once), len(self._lost_often)
        if self._lost_once.pop(key) is not None:
            self._target = min(self.blocks.num_blocks, self._target + max(1.0, often / once))
            return True
        if self._lost_often.pop(key) is not None:
            self._target = max(0.0, self._target - max(1.0, once / often))
            return True
        return False

    def _trim(self) -> None:
        """T1 and B1 together name at most `num_blocks` contents, all four lists twice as many."""
        size = self.blocks.num_blocks
        while len(self._lost_once) and len(self._once) + len(self._lost_once) > size:
            self._lost_once.drop_oldest()
        resident = len(self._once) + len(self._often)
        while len(self._lost_often) and resident + len(self._lost_once) + len(self._lost_often) > 2 * size:
            self._lost_often.drop_oldest()
