"""The facts of another engine's paged pool, by its own block ids, and the policy that reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from framework.guard.policy import GuardedPolicy
from framework.interfaces.eviction import EvictionPolicy
from framework.paged.index import PrefixIndex
from framework.paged.last_requests import LastRequests
from framework.paged.pool import BlockPool
from framework.paged.victims import Victims
from framework.types import BlockHash, BlockId, RequestFacts, RequestInfo


class PoolFacts:
    """Keeps what a policy may read of each block, in the columns that our own allocators use, and drives the policy.

    The host says what happens: `admit`, `hit`, `release`, `victim`, `drop`. Blocks are its ids, 1 to `num_blocks`;
    lists are root first, as tables are, and the policy gets them deepest first.

    Args:
        policy: fresh; it is attached here.
        clock: the policy's `now`, non-decreasing.

    Attributes:
        pool: the columns. `pool.candidate` marks blocks that the policy may name, `pool.block_hash` published ones.
        num_candidates: blocks that the policy may name.
    """

    def __init__(self, policy: EvictionPolicy, num_blocks: int, block_size: int, clock: Callable[[], float]) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.clock = clock
        self.policy = GuardedPolicy(policy)
        self.requests = LastRequests(num_blocks + 1) if self.policy.needs_requests else None
        self.index = PrefixIndex(self.pool, compares_tokens=False, keeps_duplicates=True)
        self.num_candidates, self.leaf_only = 0, False
        self._victims = Victims(self)
        self._tenants: dict[str, int] = {"": 0}
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
            self.requests.used([block for block in blocks if self.pool.block_hash[block] is not None], request)

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
            if pool.block_hash[block] is not None:  # the block's content was promoted to another key
                self.drop(block)
        pool.describe_all(blocks, depths, 0, priority, tenant)
        for block, parent, key in zip(blocks, parents, keys, strict=True):
            name = BlockHash(key)
            self.index.insert(-1, parent if pool.block_hash[parent] is not None else 0, name, b"", block)
            pool.block_hash[block] = name
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
        self.num_candidates -= len(pinned)
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
        self.num_candidates -= 1
        self.policy.pin((block,), self.clock())

    def release(self, blocks: Sequence[int]) -> list[int]:
        """Nobody uses these published blocks, deepest first, any more. Returns those that the policy would not keep."""
        pool, now = self.pool, self.clock()
        declined = []
        if self.policy.wants_keep:
            declined = [block for block in blocks if not self.policy.keep(block, now)]
            for block in declined:
                self.drop(block)
            blocks = [block for block in blocks if pool.block_hash[block] is not None]
        last, access = pool.last_access, pool.access
        for block in blocks:
            last[block] = access
        pool.mark(blocks)
        self.num_candidates += len(blocks)
        if blocks:
            self.policy.release(blocks, now)
        return declined

    @property
    def now(self) -> float:
        """The policy's time."""
        return self.clock()

    def is_leaf(self, block: int) -> bool:
        """Whether no published block lies below this one."""
        return not self.pool.children[block]

    def victims(self, count: int) -> list[int]:
        """The candidates that the policy gives up, at most `num_candidates`; their contents are forgotten."""
        blocks = self._victims.take(count)
        self.num_candidates -= count
        self.index.remove(blocks)
        return blocks

    def drop(self, block: int) -> None:
        """The content of this published block is gone."""
        pool = self.pool
        self.num_candidates -= pool.candidate[block]
        pool.candidate[block] = 0
        self.policy.evicted(BlockId(block), self.clock())  # which may read the block's facts
        self.index.remove((block,))

    def drop_all(self) -> None:
        """Nothing is published any more."""
        self.tick()
        published = [block for block, key in enumerate(self.pool.block_hash) if key is not None]
        for block in sorted(published, key=self.pool.depth.__getitem__, reverse=True):
            self.drop(block)
