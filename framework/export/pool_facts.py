"""The facts of another engine's paged pool, by its own block ids, and the policy that reads them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence

from framework.guard.policy import GuardedPolicy
from framework.interfaces.eviction import EvictionPolicy
from framework.paged.last_requests import LastRequests
from framework.paged.pool import BlockPool
from framework.types import BlockHash, BlockId, RequestFacts, RequestInfo


class PoolFacts:
    """Keeps what a policy may read of each block, in the columns that our own allocators use, and drives the policy.

    The host says what happens: `admit`, `hit`, `release`, `victim`, `drop`. Blocks are its ids, 1 to `num_blocks`;
    lists are root first, as tables are, and the policy gets them deepest first.

    Args:
        policy: fresh; it is attached here.
        clock: the policy's `now`, non-decreasing.

    Attributes:
        pool: the columns. `pool.candidate` marks the blocks that the policy may name, `pool.key` those published.
    """

    def __init__(self, policy: EvictionPolicy, num_blocks: int, block_size: int, clock: Callable[[], float]) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.clock = clock
        self.policy = GuardedPolicy(policy)
        self.requests = LastRequests(num_blocks + 1) if self.policy.needs_requests else None
        self._parent = array("i", [0]) * (num_blocks + 1)
        self._tenants: dict[str, int] = {"": 0}
        self.pool.parent_of = self._parent.__getitem__
        self.pool.count_children = self._count_children
        self._below: dict[int, set[int]] = {}
        self.policy.attach(self.pool.view(self.requests))

    def tenant(self, name: str) -> int:
        """The small integer of a tenant; 0 is whoever has no name."""
        return self._tenants.setdefault(name, len(self._tenants))

    def tick(self) -> None:
        """A call of the host's that touches blocks begins: what it touches shares an access count."""
        self.pool.access += 1

    def request_of(self, info: RequestInfo, num_tokens: int, names: Sequence[bytes], hit_blocks: int) -> RequestFacts:
        """What is known of a request that is admitted with so many tokens, `hit_blocks` blocks of them found."""
        assert self.requests is not None, "asked for only where the policy reads the last request"
        return self.requests.admitted(info, num_tokens, names, hit_blocks, self.pool.block_size)

    def used_by(self, blocks: Iterable[int], request: RequestFacts | None) -> None:
        """This request published these blocks, or is about to release them."""
        if self.requests is not None and request is not None:
            self.requests.used([block for block in blocks if self.pool.key[block] is not None], request)

    def admit(
        self,
        blocks: Sequence[int],
        depths: Sequence[int],
        parents: Sequence[int],
        keys: Sequence[bytes],
        *,
        priority: int = 0,
        tenant: int = 0,
        request: RequestFacts | None = None,
    ) -> None:
        """The contents of these blocks, root first, were published; they are in use until released.

        Args:
            depths: of each.
            parents: the block above each; 0 for none.
            keys: names of the contents.
        """
        pool = self.pool
        for block in blocks:
            if pool.key[block] is not None:  # the block's content was promoted to another key
                self.drop(block)
        pool.describe_all(blocks, depths, 0, priority, tenant)
        for block, parent, key in zip(blocks, parents, keys, strict=True):
            pool.key[block] = BlockHash(key)
            self._set_parent(block, parent)
        self.used_by(blocks, request)
        if self.policy.wants_admit:
            self.policy.admit(blocks[::-1], self.clock())

    def hit(self, blocks: Sequence[int], priority: int = 0) -> None:
        """A request found these blocks; the candidates among them are none from here on."""
        pool = self.pool
        candidate, hits, last, access = pool.candidate, pool.hits, pool.last_access, pool.access
        pinned = [block for block in blocks if candidate[block]]
        for block in blocks:
            hits[block] += 1
            last[block] = access
        for block in pinned:
            candidate[block] = 0
        if priority > pool.least_priority:
            pool.varied = True
            for block in blocks:
                pool.priority[block] = max(pool.priority[block], priority)
        now = self.clock()
        if pinned:
            self.policy.pin(pinned[::-1], now)
        if self.policy.wants_hit:
            self.policy.hit(blocks[::-1], now)

    def pin(self, block: int) -> None:
        """A candidate is in use, though no request found it."""
        self.pool.candidate[block] = 0
        self.policy.pin((block,), self.clock())

    def release(self, blocks: Sequence[int]) -> list[int]:
        """Nobody uses these published blocks, deepest first, any more. Returns those that the policy would not keep."""
        pool, now = self.pool, self.clock()
        declined = []
        if self.policy.wants_keep:
            declined = [block for block in blocks if not self.policy.keep(block, now)]
            for block in declined:
                self.drop(block)
            blocks = [block for block in blocks if pool.key[block] is not None]
        last, access = pool.last_access, pool.access
        for block in blocks:
            last[block] = access
        pool.mark(blocks)
        if blocks:
            self.policy.release(blocks, now)
        return declined

    def victim(self) -> int:
        """The candidate that the policy gives up; its content is forgotten."""
        block = self.policy.victim(self.clock(), self.pool.candidate)
        self.drop(block)
        return block

    def drop(self, block: int) -> None:
        """The content of this published block is gone."""
        pool = self.pool
        pool.candidate[block] = 0
        self.policy.evicted(BlockId(block), self.clock())  # which may read the block's facts
        pool.key[block] = None
        self._set_parent(block, 0)
        for child in self._below.pop(block, ()):
            self._parent[child] = 0
        if "children" in pool.__dict__:
            pool.children[block] = 0

    def drop_all(self) -> None:
        """Nothing is published any more."""
        self.tick()
        published = [block for block, key in enumerate(self.pool.key) if key is not None]
        for block in sorted(published, key=self.pool.depth.__getitem__, reverse=True):
            self.drop(block)

    def _set_parent(self, block: int, parent: int) -> None:
        if parent and self.pool.key[parent] is None:
            parent = 0
        before = self._parent[block]
        if before == parent:
            return
        counted = self.pool.children if "children" in self.pool.__dict__ else None
        if before:
            siblings = self._below[before]
            siblings.discard(block)
            if not siblings:
                del self._below[before]
            if counted is not None:
                counted[before] -= 1
        if parent:
            self._below.setdefault(parent, set()).add(block)
            if counted is not None:
                counted[parent] += 1
        self._parent[block] = parent

    def _count_children(self, children: array[int]) -> None:
        for parent, below in self._below.items():
            children[parent] = len(below)
