"""Any candidate, all alike."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from typing import Any

from framework.errors import NoCandidate
from framework.interfaces.eviction import BlockView, EvictionPolicy
from framework.types import BlockId


class DrawnPolicy(EvictionPolicy):
    """Keeps the candidates and where each stands, O(1) every call; what `victim` chose is forgotten when they change.

    `_members` are the candidates in any order, `_place` each block's index there or -1, `_choice` is the subclass's.
    """

    def attach(self, blocks: BlockView) -> None:
        super().attach(blocks)
        self._members: list[BlockId] = []
        self._place = array("i", [-1]) * len(blocks.depth)
        self._choice: Any = None

    def pin(self, blocks: Sequence[BlockId], now: float) -> None:
        for block in blocks:
            self._remove(block)

    def release(self, blocks: Sequence[BlockId], now: float) -> None:
        for block in blocks:
            self._place[block] = len(self._members)
            self._members.append(block)
        self._choice = None

    def evicted(self, block: BlockId, now: float) -> None:
        if self._place[block] >= 0:
            self._remove(block)

    def _remove(self, block: BlockId) -> None:
        place, last = self._place[block], self._members.pop()
        if last != block:
            self._members[place] = last
            self._place[last] = place
        self._place[block] = -1
        self._choice = None


class Random(DrawnPolicy):
    """Uniform over the candidates, from a generator of its own: the same seed and calls, the same victims anywhere.

    O(1) every call; 12 bytes a block. The baseline that a policy must beat to have learnt anything.

    Args:
        seed: of the generator.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def victim(self, now: float) -> BlockId:
        if self._choice is None:  # asking twice gives the same answer
            if not self._members:
                raise NoCandidate("Random holds no candidate")
            self._choice = self._members[int(self._random.random() * len(self._members))]
        chosen: BlockId = self._choice
        return chosen
