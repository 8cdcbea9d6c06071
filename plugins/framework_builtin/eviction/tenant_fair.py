"""Evict from the tenant that holds the most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from framework.errors import NoCandidate
from framework.interfaces.eviction import EvictionPolicy
from framework.types import BlockId
from framework_builtin.eviction._queue import Recency


class TenantFair(EvictionPolicy):
    """The tenant with the most cached blocks, in use or not, loses its least recently used candidate.

    A block counts for the tenant that admitted it. Ties: the lowest tenant number; within a tenant the deepest of one
    call first. With one tenant it is LRU. O(1) a block, O(tenants) an eviction.
    Source: max-min fair sharing; compare FairRide, Pu et al., NSDI 2016.
    """

    def __init__(self) -> None:
        self._tenant: dict[BlockId, int] = {}
        self._held: defaultdict[int, int] = defaultdict(int)
        self._candidates: defaultdict[int, Recency] = defaultdict(Recency)

    def admit(self, blocks: Sequence[BlockId], now: float) -> None:
        for block in blocks:
            tenant = self._tenant[block] = self.blocks.tenant[block]
            self._held[tenant] += 1

    def pin(self, blocks: Sequence[BlockId], now: float) -> None:
        for block in blocks:
            self._candidates[self._tenant[block]].hide(block)

    def release(self, blocks: Sequence[BlockId], now: float) -> None:
        for block in blocks:
            self._candidates[self._tenant[block]].show([block])

    def victim(self, now: float) -> BlockId:
        best: tuple[int, int, BlockId] | None = None
        for tenant, candidates in self._candidates.items():
            block = candidates.front()
            if block is not None and (best is None or (-self._held[tenant], tenant) < best[:2]):
                best = (-self._held[tenant], tenant, block)
        if best is None:
            raise NoCandidate("TenantFair holds no candidate")
        return best[2]

    def evicted(self, block: BlockId, now: float) -> None:
        tenant = self._tenant.pop(block)
        self._held[tenant] -= 1
        self._candidates[tenant].hide(block)
        if not self._held[tenant]:
            del self._held[tenant], self._candidates[tenant]

    def facts(self) -> dict[str, str | int | float]:
        return {"tenants": len(self._held), "most_blocks_of_a_tenant": max(self._held.values(), default=0)}
