"""The facts of another engine's paged pool, of one or several groups of KV, and the policy that reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from framework.groups.pool import ROOT
from framework.guard.policy import PolicyHost
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.groups import KVGroup
from framework.paged.index import PrefixIndex
from framework.paged.pool import BlockPool, LastRequests
from framework.types import UNKNOWN_REQUEST, BlockHash, RequestFacts, RequestInfo
from framework_builtin.memory.one_pool import OnePool


class PoolFacts:
    """Keeps what a policy may read of each block, in the columns that our own allocators use, and drives the policy.

    The host says what happens: `admit`, `hit`, `release`, `victim`, `drop`. Blocks are its ids, 1 to `num_blocks`;
    lists are root first, as tables are, and the policy gets them deepest first.

    Args:
        policy: fresh; it is attached here.
        clock: the policy's `now`, non-decreasing.

    Attributes:
        candidate: 1 for blocks that the policy may name. names: of the contents of published blocks, else None.
        policy: the guarded policy. num_candidates: blocks that it may name.
    """

    num_candidates: int
    names: Sequence[bytes | None]

    def __init__(self, policy: EvictionPolicy, num_blocks: int, block_size: int, clock: Callable[[], float]) -> None:
        self.clock, self.block_size = clock, block_size
        self.requests = LastRequests(num_blocks + 1) if policy.needs_requests else None
        self._tenants: dict[str, int] = {"": 0}
        self._open(policy, num_blocks)
        self.policy = self._host.policy

    def _open(self, policy: EvictionPolicy, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks, self.block_size)
        self.names, self.candidate, self.num_candidates = self.pool.block_hash, self.pool.candidate, 0
        self._depth: Sequence[int] = self.pool.depth
        self.index = PrefixIndex(self.pool, compares_tokens=False, keeps_duplicates=True)
        self._host = PolicyHost(policy, self.candidate)
        self._host.policy.attach(self.pool.view(self.requests))

    def tokens_of(self, name: bytes) -> int:
        """Tokens of a block with this content."""
        return self.block_size

    def tenant(self, name: str) -> int:
        """The small integer of a tenant; 0 is whoever has no name."""
        return self._tenants.setdefault(name, len(self._tenants))

    def tick(self) -> None:
        """A call of the host's that touches blocks begins: what it touches shares an access count."""
        self.pool.access += 1

    def request_of(self, info: RequestInfo, num_tokens: int, names: Sequence[bytes], hit_blocks: int) -> RequestFacts:
        """What is known of a request that is admitted with so many tokens, `hit_blocks` blocks of them found."""
        assert self.requests is not None, "asked for only where the policy reads the last request"
        return self.requests.admitted(info, num_tokens, names, hit_blocks, self.block_size)

    def ended(self, blocks: Iterable[int], request: RequestFacts | None, num_tokens: int) -> None:
        """This request, which has `num_tokens` tokens by now, is about to release these blocks."""
        if self.requests is not None and request is not None:
            published = [block for block in blocks if self.names[block] is not None]
            self.requests.ended(published, request, num_tokens)

    def admit(
        self, blocks: Sequence[int], depths: Sequence[int], parents: Sequence[int], keys: Sequence[bytes], *,
        priority: int = 0, tenant: int = 0, request: RequestFacts | None = None, chain: Sequence[bytes] = (),
    ) -> None:  # fmt: skip
        """The contents of these blocks, root first, were published; they are in use until released.

        Args:
            depths: of each.
            parents: the block above each; 0 for none.
            keys: names of the contents.
            chain: names of the request's prefixes of 1, 2 and more units, where several groups share the pool.
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

    def hit(self, blocks: Sequence[int], priority: int = 0) -> int:
        """A request found these blocks; the candidates among them are none from here on. Returns how far they reach."""
        pool = self.pool
        hits, last, access = pool.hits, pool.last_access, pool.access
        pinned = [block for block in reversed(blocks) if pool.candidate[block]]
        for block in blocks:
            hits[block] += 1
            last[block] = access
        self.num_candidates -= len(pinned)
        if priority > pool.least_priority:
            for block in blocks:
                pool.priority[block] = max(pool.priority[block], priority)
        host = self._timed()
        host.pin(pinned)
        host.hit(blocks[::-1])
        return len(blocks)

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
        published = [block for block, name in enumerate(self.names) if name is not None]
        for block in sorted(published, key=self._depth.__getitem__, reverse=True):
            self.drop(block)


class GroupFacts(PoolFacts):
    """The same of a pool whose blocks are of several groups of KV, with the columns of `GroupView`.

    The pool is the one of the replay over groups, but that its blocks are taken and freed by the host. A content's name
    ends with its group in 4 bytes, before which are those of the hash of its whole prefix; 8 bytes of that tell
    prefixes apart. The prefixes known are those of resident contents and all shorter ones, and some that are gone.

    Args:
        groups: of the host's model, in its order.
        unit: tokens from one name of a prefix to the next.
    """

    def __init__(
        self, policy: EvictionPolicy, groups: Sequence[KVGroup], num_blocks: int, unit: int, clock: Callable[[], float]
    ) -> None:
        self._groups, self._parents, self._most = groups, dict[int, int](), 16 * num_blocks
        super().__init__(policy, num_blocks, unit, clock)

    def _open(self, policy: EvictionPolicy, num_blocks: int) -> None:
        page = max(group.block_bytes for group in self._groups)
        self._memory = OnePool().open(
            self._groups, lambda _: policy, num_bytes=num_blocks * page, parents=self._parents, unit=self.block_size
        )
        self._pool = self._memory.pools[0]
        self._host, self.candidate, self._depth = self._pool.host, self._pool.candidate, self._pool.depth
        self._names: list[bytes | None] = [None] * (num_blocks + 1)
        self.names, self._found = self._names, list[int]()
        if self.requests is not None:
            assert isinstance(self._pool.last_request, list)
            self.requests.column = self._pool.last_request

    @property
    def num_candidates(self) -> int:  # type: ignore[override]
        """Blocks that the policy may name."""
        return self._pool.unreferenced

    def tokens_of(self, name: bytes) -> int:
        return self._groups[_group_of(name)].block_tokens

    def tick(self) -> None:
        """Nothing: the pool counts accesses itself."""

    def request_of(self, info: RequestInfo, num_tokens: int, names: Sequence[bytes], hit_blocks: int) -> RequestFacts:
        """As of one group; the blocks found are its own from here on: a window may leave them early."""
        request = super().request_of(info, num_tokens, names, hit_blocks)
        self.requests.used(self._found, request)  # type: ignore[union-attr]
        self._found.clear()
        return request

    def admit(
        self, blocks: Sequence[int], depths: Sequence[int], parents: Sequence[int], keys: Sequence[bytes], *,
        priority: int = 0, tenant: int = 0, request: RequestFacts | None = None, chain: Sequence[bytes] = (),
    ) -> None:  # fmt: skip
        """As of one group; `parents` are not read, since a window's block may be resident without those above it."""
        self._timed()
        pool, clock = self._pool, self._memory.clock
        if len(self._parents) > self._most:
            self._forget_prefixes()
        clock.facts = request or UNKNOWN_REQUEST
        for block, depth, key in zip(blocks, depths, keys, strict=True):
            if self._names[block] is not None:  # the block's content was promoted to another key
                self.drop(block)
            group, node = _group_of(key), _number(key[:-4])
            wide = self._groups[group].block_tokens // self.block_size
            above = _number(chain[depth * wide - 1]) if chain and depth else -1
            self._know(node, chain, (depth + 1) * wide - 1)
            pool.ref[block], pool.priority[block], pool.tenant[block] = 1, priority, tenant
            self._names[block] = key
            self._memory.publish(group, block, {depth * wide - 1: above, (depth + 1) * wide - 1: node}, depth)
        clock.facts = UNKNOWN_REQUEST

    def hit(self, blocks: Sequence[int], priority: int = 0) -> int:
        pool = self._pool
        for block in blocks:
            if priority > pool.priority[block]:
                pool.priority[block] = priority
        self._timed()
        pool.pin(blocks[::-1])
        if self.requests is not None:
            self._found += blocks
        return pool.end[blocks[-1]] // self.block_size

    def pin(self, block: int) -> None:
        self._timed()
        self._pool.pin((block,), hit=False)

    def release(self, blocks: Sequence[int]) -> list[int]:
        self._timed()
        for block in blocks:
            self._pool.ref[block] = 1
        self._pool.release(blocks)
        return self._gone([block for block in blocks if self._pool.node[block] == ROOT])

    def _timed(self) -> PolicyHost:
        self._memory.clock.now = self.clock()
        return self._pool.host

    def victims(self, count: int) -> list[int]:
        """One at a time: what a block's partners are worth changes with it."""
        host, blocks = self._timed(), list[int]()
        for _ in range(count):
            blocks.append(host.victim())
            self._pool.discard(blocks[-1])
        return self._gone(blocks)

    def drop(self, block: int) -> None:
        self._timed()
        self._pool.discard(block)
        self._gone([block])

    def _gone(self, blocks: list[int]) -> list[int]:
        """The same blocks, without content from here on; the host has them."""
        self._pool.free.clear()
        for block in blocks:
            self._names[block] = None
        return blocks

    def _know(self, node: int, chain: Sequence[bytes], depth: int) -> None:
        """Enter a prefix, `chain[depth]`, and those above it that are not known."""
        while node not in self._parents:
            depth -= 1
            self._parents[node] = node = _number(chain[depth]) if chain and depth >= 0 else -1
            if node < 0:
                return

    def _forget_prefixes(self) -> None:
        """Keep the prefixes of what is resident, and those above them."""
        kept: dict[int, int] = {}
        for _, node in self._pool.index:
            while node >= 0 and node not in kept:
                kept[node] = node = self._parents[node]
        self._parents.clear()
        self._parents.update(kept)
        self._most = max(self._most, 2 * len(kept))


def _group_of(name: bytes) -> int:
    return int.from_bytes(name[-4:], "big")


def _number(prefix: bytes) -> int:
    return int.from_bytes(prefix[-8:], "big")
