"""Orders of eviction across groups, as policies over the columns of `GroupView`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from framework.errors import NoCandidate
from framework.groups.pool import GroupView
from framework.interfaces.eviction import Block, BlockView, EvictionPolicy, ScoredPolicy
from framework.types import BlockId, PolicyTime


class Coupled(ScoredPolicy):
    """Least recently used, but a block that had partners and lost the last of them goes before all others.

    Such a block is what users see as "the KV is resident and the hit is 0".
    """

    needs_groups: ClassVar[bool] = True

    def attach(self, blocks: BlockView) -> None:
        super().attach(blocks)
        assert isinstance(blocks, GroupView)
        self._partners = blocks.partners
        self._had: set[BlockId] = set()

    def score(self, block: Block, now: PolicyTime) -> Any:
        if self._partners[block.id]:
            self._had.add(block.id)
            return (1, block.last_access)
        return (int(block.id not in self._had), block.last_access)

    def evicted(self, block: BlockId, now: PolicyTime) -> None:
        super().evicted(block, now)
        self._had.discard(block)


class Coverage(ScoredPolicy):
    """The block whose loss costs the fewest tokens of recomputation goes first, among equals the least recently used.

    Of a pool of states: those that stand close together are thinned, and each path stays covered to its end. Each
    eviction looks at all candidates and walks up their prefixes.
    """

    time_varying = True
    needs_groups: ClassVar[bool] = True

    def score(self, block: Block, now: PolicyTime) -> Any:
        assert isinstance(self.blocks, GroupView)
        return (self.blocks.replay_cost[block.id], block.last_access)


class Quota(EvictionPolicy):
    """Each group has a share of the bytes; the group that exceeds its share most gives up a block of its own order.

    Args:
        shares: (G,) of the resident bytes, above 0.
        inner: makes the order within a group.
    """

    needs_groups: ClassVar[bool] = True

    def __init__(self, shares: Sequence[float], inner: Callable[[], EvictionPolicy]) -> None:
        self._shares, self._orders = tuple(shares), [inner() for _ in shares]

    def attach(self, blocks: BlockView) -> None:
        super().attach(blocks)
        assert isinstance(blocks, GroupView)
        self._group, self._num_bytes = blocks.group, blocks.num_bytes
        self._candidates, self._held = [0] * len(self._shares), [0] * len(self._shares)
        for order in self._orders:
            order.attach(blocks)

    def admit(self, blocks: Sequence[BlockId], now: PolicyTime) -> None:
        for block in blocks:
            self._held[self._group[block]] += self._num_bytes[block]
        self._each(blocks, now, "admit", 0)

    def hit(self, blocks: Sequence[BlockId], now: PolicyTime) -> None:
        self._each(blocks, now, "hit", 0)

    def pin(self, blocks: Sequence[BlockId], now: PolicyTime) -> None:
        self._each(blocks, now, "pin", -1)

    def release(self, blocks: Sequence[BlockId], now: PolicyTime) -> None:
        self._each(blocks, now, "release", +1)

    def victim(self, now: PolicyTime) -> BlockId:
        able = [g for g, count in enumerate(self._candidates) if count]
        if not able:
            raise NoCandidate("Quota holds no candidate")
        return self._orders[max(able, key=lambda g: self._held[g] / self._shares[g])].victim(now)

    def evicted(self, block: BlockId, now: PolicyTime) -> None:
        group = self._group[block]
        self._held[group] -= self._num_bytes[block]
        self._candidates[group] -= 1
        self._orders[group].evicted(block, now)

    def _each(self, blocks: Sequence[BlockId], now: PolicyTime, hook: str, by: int) -> None:
        for g, order in enumerate(self._orders):
            own = [block for block in blocks if self._group[block] == g]
            if own:
                self._candidates[g] += by * len(own)
                getattr(order, hook)(own, now)
