"""Paging that shares every common prefix, to the token."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container, Sequence

import numpy as np

from framework.errors import InvalidArgument
from framework.interfaces.allocator import Hit
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.hash import HashScheme
from framework.paged.allocator import PagedAllocator
from framework.paged.index import PrefixIndex
from framework.paged.pool import BlockPool
from framework.paged.table import count_of
from framework.types import BlockHash, BlockId, Namespace, RequestInfo, TokenArray, as_tokens


class RadixAllocator(PagedAllocator):
    """Full blocks across requests and all blocks among forks, as `prefix_cow`; and a hit may end inside a block.

    After the full blocks that a prompt shares, the tree is asked for the block below them with the longest common
    beginning. The request refers to it and copies it with its first `extend`: the leading tokens are a hit, the rest is
    overwritten. So a system prompt that ends inside a block is shared to its last token, at one block copy a request.
    Sharing by copy costs a block more than a plain hit; where the pool has none to spare the hit ends at a full block.
    What is published, and so what can be hit, are full blocks: a finished request's unfilled tail is not kept.

    Contents are compared token by token, whatever the hash. Costs: as PagedAllocator, and O(log k) a lookup, O(k) moved
    pointers a publication and an eviction among k siblings.

    Args:
        page_size: a hit's tokens are a multiple of this, which divides `block_size`. `block_size` makes it
            `prefix_cow`.

    Raises:
        InvalidArgument: `page_size` below 1, or no divisor of `block_size`.

    Source: Zheng et al. 2024, SGLang, arXiv:2312.07104 §3 (RadixAttention), on blocks in place of single tokens.
    """

    drops_tokens = False  # a hit ends inside a block, whose tokens its tree knows by their place
    share_prefix = True
    share_forks = "all"

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        hash: HashScheme,
        eviction: EvictionPolicy,
        watermark: float = 0.01,
        leaf_only: bool = False,
        page_size: int = 1,
    ) -> None:
        super().__init__(
            num_blocks=num_blocks,
            block_size=block_size,
            hash=hash,
            eviction=eviction,
            watermark=watermark,
            leaf_only=leaf_only,
        )
        if block_size % count_of("page_size", page_size, 1):
            raise InvalidArgument(f"page_size {page_size} does not divide block_size {block_size}")
        assert isinstance(self.cache.index, RadixIndex)
        self._page_size, self._tree = page_size, self.cache.index
        self._partial_hit_tokens = 0

    @staticmethod
    def _index(pool: BlockPool, *chosen: object, **options: object) -> RadixIndex:
        return RadixIndex(pool)

    def lookup(self, tokens: TokenArray, namespace: Namespace, previous: Hit | None = None) -> Hit:
        tokens = as_tokens(tokens)
        hit = super().lookup(tokens, namespace, previous)
        rest = tokens[hit.num_tokens : min(hit.num_tokens + self.block_size, len(tokens)) - 1]
        if len(rest) < self._page_size:
            return hit
        rest = self.hasher.comparable(rest, namespace, len(hit.blocks))
        _, anchor = self.hasher.root(namespace)
        # What this step has yet to compute has no KV to copy: only blocks shared whole may be.
        block, common = self._tree.nearest(anchor, hit.blocks[-1] if hit.blocks else 0, rest, self.ahead)
        common -= common % self._page_size
        if not common:
            return hit
        longer = Hit(hit.num_tokens + common, (*hit.blocks, BlockId(block)), hit.hashes, hit.version)
        need, have, reserve = self._shortage(len(tokens), longer)
        return longer if need + 1 + reserve <= have else hit

    def _check_hit(self, request: RequestInfo, tokens: TokenArray, hit: Hit) -> None:
        full = hit.num_tokens // self.block_size
        if len(hit.blocks) != -(-hit.num_tokens // self.block_size) or (hit.blocks and hit.num_tokens >= len(tokens)):
            raise InvalidArgument(f"a hit of {hit.num_tokens} tokens in {len(hit.blocks)} blocks is not of this prompt")
        super()._check_hit(request, tokens, Hit(full * self.block_size, hit.blocks[:full], hit.hashes, hit.version))

    def allocate(self, request: RequestInfo, tokens: TokenArray, hit: Hit, num_tokens: int | None = None) -> None:
        super().allocate(request, tokens, hit, num_tokens)
        table = self.tables[request.id]
        table.published = hit.num_tokens // self.block_size
        table.shared = len(hit.blocks) > table.published
        self._partial_hit_tokens += hit.num_tokens % self.block_size

    def facts(self) -> dict[str, str | int | float]:
        """`partial_hit_tokens`: what hits that end inside a block add to those of full blocks."""
        return {**super().facts(), "partial_hit_tokens": self._partial_hit_tokens}


class RadixIndex(PrefixIndex):
    """An exact trie that also finds the child with the longest common beginning: siblings are kept in order.

    Among sorted contents the longest common beginning with a probe is that of one of the two neighbours of its place.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._siblings: dict[int, list[tuple[bytes, int]]] = {}  # parent node or anchor -> (tokens, block), in order
        super().__init__(pool, compares_tokens=True)

    def nearest(self, anchor: int, parent: int, probe: TokenArray, skip: Container[int] = ()) -> tuple[int, int]:
        """The block published below `parent` (0: the root) that begins most like `probe`, (n,) int32, and how many
        tokens they share; not one of `skip`. (0, 0) when there is none. Pure.
        """
        siblings = self._siblings.get(self._node[parent] if parent else anchor, ())
        if skip:
            siblings = [entry for entry in siblings if entry[1] not in skip]
        place = bisect_left(siblings, (probe.tobytes(),))
        best = (0, 0)
        for data, block in siblings[max(0, place - 1) : place + 1]:
            content = np.frombuffer(data, dtype=np.int32)[: len(probe)]
            differ = np.flatnonzero(content != probe[: len(content)])
            common = int(differ[0]) if len(differ) else len(content)
            if common > best[1]:
                best = (block, common)
        return best

    def insert(self, anchor: int, parent: int, block_hash: BlockHash, data: bytes, block: int) -> int:
        published = self._pool.block_hash[block] is not None
        holder = super().insert(anchor, parent, block_hash, data, block)
        if holder == block and not published:
            above, entry = self._place(block)
            insort(self._siblings.setdefault(above, []), entry)
        return holder

    def _insert_new(self, above: int, hashes: Sequence[BlockHash], data: bytes, blocks: Sequence[int]) -> None:
        super()._insert_new(above, hashes, data, blocks)
        for block in blocks:
            above, entry = self._place(block)
            insort(self._siblings.setdefault(above, []), entry)

    def remove(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            above, entry = self._place(block)
            siblings = self._siblings[above]
            del siblings[bisect_left(siblings, entry)]
            if not siblings:
                del self._siblings[above]
        super().remove(blocks)

    def _place(self, block: int) -> tuple[int, tuple[bytes, int]]:
        """The parent node of a published block, or its anchor, and the block's entry among the siblings there."""
        node = self._node[block]
        return self._above[node], (self._tokens()[node].tobytes(), block)

    def audit(self) -> list[str]:
        faults = super().audit()
        listed = {block: (above, data) for above, kin in self._siblings.items() for data, block in kin}
        for above, kin in self._siblings.items():
            if not kin or kin != sorted(kin):
                faults.append(f"I20: the {len(kin)} siblings below node {above} are out of order")
        published = {block for block in range(1, self._pool.num_blocks + 1) if self._pool.block_hash[block] is not None}
        if set(listed) != published:
            faults.append(
                f"I20: blocks {sorted(set(listed) ^ published)} are published or listed as siblings, not both"
            )
        for block in set(listed) & published:
            above, (data, _) = self._place(block)
            if listed[block] != (above, data):
                faults.append(f"I20: block {block} is listed as a sibling of another place or content")
        return faults
