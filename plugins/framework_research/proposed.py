"""Orders of eviction that threads of vLLM, SGLang and llama.cpp propose in a few lines, as they are proposed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from framework.errors import InvalidArgument
from framework.interfaces.eviction import Block, ScoredPolicy
from framework.types import BlockId, RequestFacts
from framework_research._groups import Floats, GroupedPolicy, Ints

_PARTS, _MOST = 4096, 1 << 22  # of a hit a block, and the most of them: with the order below 2^31 exact in a float


class NeverHitFirst(ScoredPolicy):
    """Blocks that were never hit go before those that were, each least recently used first.

    Ties: deepest first, then lowest id. O(log n) a call. Source: vLLM pull requests 51348 and 51909.
    """

    def score(self, block: Block, now: float) -> tuple[bool, int]:
        return (block.hits > 0, block.last_access)


class Lease(ScoredPolicy):
    """A hit gives a block a lease of `length` accesses of the cache; the lease that ends first goes first.

    Blocks without a hit have none, so that 0 is LRU. Counted, not timed: it needs no clock.
    Ties: deepest first, then lowest id. O(log n) a call.
    Source: the bounded protection of what was hit in vLLM pull request 42985; leases for agents as in llm-d-router's
    issue 2273, there in seconds and by the client's word.
    """

    def __init__(self, length: int = 1000) -> None:
        if length < 0:
            raise InvalidArgument(f"lease.length must be at least 0 accesses, found {length}")
        self._length = length

    def score(self, block: Block, now: float) -> int:
        return block.last_access + self._length * (block.hits > 0)


class DensestInterior(ScoredPolicy):
    """Least recently used, and of one request's blocks every second one first, then every fourth; the ends last.

    A rule for checkpoints of recurrent state, each of which can be resumed from; blocks of attention behind a hole
    cannot be hit.
    Ties: deepest first, then lowest id. O(log n) a call. Source: llama.cpp's limit on checkpoints of a context.
    """

    def score(self, block: Block, now: float) -> tuple[int, bool, int]:
        depth = block.depth
        return (block.last_access, not depth or not block.children, depth & -depth)


class HitsPerToken(GroupedPolicy):
    """The stretch of a prompt with the fewest hits for its length goes first; ties least recently used first.

    Blocks released together that were hit equally often are a stretch, as they are a node in a radix tree.
    Within it the deepest block goes first. O(log n) a stretch. Source: SGLang pull request 30300.
    """

    def group(self, blocks: Sequence[BlockId], facts: RequestFacts, gap: float | None) -> None:
        hits, start = self.blocks.hits, 0
        for end in range(1, len(blocks) + 1):
            if end == len(blocks) or hits[blocks[end]] != hits[blocks[start]]:
                self.add(blocks[start:end], min(_MOST - 1, hits[blocks[start]] * _PARTS // (end - start)))
                start = end

    def score(self, kinds: Ints, ages: Floats, orders: Ints) -> Floats:
        return np.asarray(kinds * float(1 << 31) + orders, dtype=np.float64)
