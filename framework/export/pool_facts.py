"""The facts of another engine's paged pool, by its own block ids, and the policy that reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from framework.guard.policy import PolicyHost
from framework.interfaces.eviction import EvictionPolicy
from framework.paged.index import PrefixIndex
from framework.paged.last_requests import LastRequests
from framework.paged.pool import BlockPool
from framework.types import BlockHash, RequestFacts, RequestInfo


class PoolFacts:
    """Keeps what a policy may read of each block, in the columns that our own allocators use, and drives the policy.

    The host says what happens: `admit`, `hit`, `release`, `victim`, `drop`. Blocks are its ids, 1 to `num_blocks`;
    lists are root first, as tables are, and the policy gets them deepest first.

    Args:
        policy: fresh; it is attached here.
        clock: the policy's `now`, non-decreasing.

    Attributes:
        pool: the columns. `pool.candidate` marks blocks that the policy may name, `pool.block_hash` published ones.
        policy: the guarded policy. num_candidates: blocks that it may name.
    """

    def __init__(self, policy: EvictionPolicy, num_blocks: int, block_size: int, clock: Callable[[], float]) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.clock = clock
        self._host = PolicyHost(policy, self.pool.candidate)
        self.policy = self._host.policy
        self.requests = LastRequests(num_blocks + 1) if self.policy.needs_requests else None
        self.index = PrefixIndex(self.pool, compares_tokens=False, keeps_duplicates=True)
        self.num_candidates = 0
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

    def ended(self, blocks: Iterable[int], request: RequestFacts | None, num_tokens: int) -> None:
        """This request, which has `num_tokens` tokens by now, is about to release these blocks."""
        if self.requests is not None and request is not None:
            published = [block for block in blocks if self.pool.block_hash[block] is not None]
            self.requests.ended(published, request, num_tokens)

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
        if self.requests is not None and request is not None:
            self.requests.used(blocks, request)
        self._timed().admit(blocks[::-1])

    def hit(self, blocks: Sequence[int], priority: int = 0) -> None:
        """A request found these blocks; the candidates among them are none from here on."""
        pool = self.pool
        hits, last, access = pool.hits, pool.last_access, pool.access
        pinned = [block for block in reversed(blocks) if pool.candidate[block]]
        for block in blocks:
            hits[block] += 1
            last[block] = access
        self.num_candidates -= len(pinned)
        if priority > pool.least_priority:
            pool.varied = True
            for block in blocks:
                pool.priority[block] = max(pool.priority[block], priority)
        host = self._timed()
        host.pin(pinned)
        host.hit(blocks[::-1])

    def pin(self, block: int) -> None:
        """A candidate is in use, though no request found it."""
        self.num_candidates -= 1
        self._timed().pin((block,))

    def release(self, blocks: Sequence[int]) -> list[int]:
        """Nobody uses these published blocks, deepest first, any more. Returns those that the policy would not keep."""
        host, last, access = self._timed(), self.pool.last_access, self.pool.access
        kept = host.kept([*blocks], lambda block: self.index.remove((block,)))
        for block in kept:
            last[block] = access
        self.num_candidates += len(kept)
        host.release(kept)
        return [block for block in blocks if self.pool.block_hash[block] is None]

    def _timed(self) -> PolicyHost:
        """The host, at the time of now."""
        self._host.now = self.clock()
        return self._host

    def victims(self, count: int) -> list[int]:
        """The candidates that the policy gives up, at most `num_candidates`; their contents are forgotten."""
        blocks = self._timed().victims(count)
        self.num_candidates -= count
        self.index.remove(blocks)
        return blocks

    def drop(self, block: int) -> None:
        """The content of this published block is gone."""
        self.num_candidates -= self.pool.candidate[block]
        self._timed().drop(block)  # the policy may read the block's facts
        self.index.remove((block,))

    def drop_all(self) -> None:
        """Nothing is published any more."""
        self.tick()
        published = [block for block, key in enumerate(self.pool.block_hash) if key is not None]
        for block in sorted(published, key=self.pool.depth.__getitem__, reverse=True):
            self.drop(block)
