"""The extension point for eviction policies: the order in which cached, unreferenced blocks are evicted."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar

from framework.errors import NoCandidate, PluginError
from framework.types import UNKNOWN_REQUEST, BlockHash, BlockId, PolicyTime, RequestFacts


class ConstantColumn(Sequence[Any]):
    """A column that has the same value for every block. `length` 0: one that was never filled."""

    __slots__ = ("_length", "_value")

    def __init__(self, value: Any, length: int = 0) -> None:
        self._value, self._length = value, length

    def __getitem__(self, block: Any) -> Any:
        return self._value

    def __len__(self) -> int:
        return self._length


class ComputedColumn(Sequence[Any]):
    """A column of `length` rows that is worked out when it is read."""

    __slots__ = ("_fact", "_length")

    def __init__(self, fact: Callable[[int], Any], length: int) -> None:
        self._fact, self._length = fact, length

    def __getitem__(self, block: Any) -> Any:
        return [*map(self._fact, range(*block.indices(self._length)))] if type(block) is slice else self._fact(block)

    def __len__(self) -> int:
        return self._length


_NOT_KNOWN = ConstantColumn(None)
_NO_REQUEST = ConstantColumn(UNKNOWN_REQUEST)


@dataclass(frozen=True, slots=True)
class BlockView:
    """What a policy may read of blocks: one read-only column a fact, indexed by block id, `num_blocks + 1` long.

    Valid for every block between its `admit` and its `evicted`. Columns are live views of the allocator's.

    Attributes:
        depth: blocks between the root and this block; 0 for a prompt's first block.
        num_tokens: tokens up to and including this block: what recomputing it from nothing would prefill.
        admitted: access count when it was published.
        last_access: access count when a request last used it (admitted, hit or released it). Blocks touched by one
            call share a count; a later call has a larger one.
        hits: requests that found it in the cache since it was admitted.
        priority: the highest of the requests that used it since it was admitted.
        tenant: small integer naming the tenant that admitted it; 0: none was named.
        children: cached or in-use blocks published directly below it.
        next_use: the number, from 1 in order of arrival, of the next request for it; replay of a trace only, else
            infinity.
        key: the content's block hash: equal contents have equal ones, also across evictions. For ghost lists.
        parent: the block published directly above it, 0 when that is the root or gone. None where nobody knows.
        partial: whether it holds fewer tokens than a block has: a prompt's last block, which later prompts rarely
            share. None where nobody knows.
        last_request: the request that was the last to publish or to release it. While `pin` and `hit` run it is still
            the one before, so that a policy sees what came of it. Kept for policies with `needs_requests`, else
            nothing is known of it.
    """

    depth: Sequence[int]
    num_tokens: Sequence[int]
    admitted: Sequence[int]
    last_access: Sequence[int]
    hits: Sequence[int]
    priority: Sequence[int]
    tenant: Sequence[int]
    children: Sequence[int]
    next_use: Sequence[float]
    key: Sequence[BlockHash | None]
    parent: Sequence[int | None] = _NOT_KNOWN
    partial: Sequence[bool | None] = _NOT_KNOWN
    last_request: Sequence[RequestFacts] = _NO_REQUEST

    @property
    def num_blocks(self) -> int:
        """The pool's capacity in blocks: the cache size of policies that divide it among queues. Known at `attach`."""
        return len(self.depth) - 1


@dataclass(frozen=True, slots=True)
class SizedView(BlockView):
    """A view with more or fewer rows than the cache has blocks."""

    capacity: int = 0

    @property
    def num_blocks(self) -> int:
        return self.capacity


class EvictionPolicy(ABC):
    """Orders the eviction candidates: blocks that are cached and that no request uses. Full control.

    The allocator calls, for each block: `admit` once when its content is published (a request is using it, so it is
    no candidate yet); `release` when its last user lets go: it is a candidate from here; `pin` when a request uses it
    again; `hit` right after, when that use was a prefix hit; `evicted` once when the content is gone; `keep` before a
    `release`: on False the content is given up at once.
    A victim whose eviction was called off (another plugin call failed) comes back by `admit` and `release`.
    Each list is deepest block first and never empty. `now` is a PolicyTime, non-decreasing: seconds in a replay, steps
    in a serve run; `last_request.arrival` is in the same unit.

    A policy owns its own order and nothing else. It must be deterministic given its constructor's seed, may not
    keep or change the lists it is handed, and reads facts only through `self.blocks`.
    """

    blocks: BlockView

    needs_future: ClassVar[bool] = False
    """True when the policy reads `blocks.next_use`, so that a replay makes the extra pass that fills it."""

    needs_requests: ClassVar[bool] = False
    """True when the policy reads `blocks.last_request`, which is kept for such policies only."""

    needs_groups: ClassVar[bool] = False
    """True when the policy reads what `blocks` says of groups of KV, where there are any: a block is then also pinned
    and released anew whenever that changes."""

    bypass: ClassVar[bool] = False
    """True when the policy may decline new content: in a cache-only replay the blocks of the request at hand are
    candidates too, and the policy trims the cache after they were released. An engine never asks it to: blocks of a
    running request are in use there."""

    recency_stack: ClassVar[bool] = False
    """True when, whatever the capacity, the least recently used block goes first, deepest first among equals, so that
    a larger cache holds all that a smaller one does: one pass then gives a curve over all capacities."""

    def attach(self, blocks: BlockView) -> None:
        """Called once by the allocator, before anything else."""
        self.blocks = blocks

    def admit(self, blocks: Sequence[BlockId], now: PolicyTime) -> None:  # noqa: B027
        """These blocks were published. They are in use: not candidates until released."""

    def hit(self, blocks: Sequence[BlockId], now: PolicyTime) -> None:  # noqa: B027
        """A request found these blocks in the cache and now uses them. Already pinned if they were candidates."""

    @abstractmethod
    def pin(self, blocks: Sequence[BlockId], now: PolicyTime) -> None:
        """These blocks are candidates no longer: a request uses them."""

    @abstractmethod
    def release(self, blocks: Sequence[BlockId], now: PolicyTime) -> None:
        """Nobody uses these blocks any more: they are candidates."""

    def keep(self, block: BlockId, now: PolicyTime) -> bool:
        """Whether this block, which nobody uses any more, is worth keeping. Asked just before its `release`.

        False: its content is given up at once. The block is free, the policy gets `evicted` and not `release`, and the
        log an eviction. Blocks in use are never asked for, so one that is hit while in use is an ordinary hit.
        Under `leaf_only` a block with resident children stays and is not asked for. Not overridden, it costs nothing.
        """
        return True

    @abstractmethod
    def victim(self, now: PolicyTime) -> BlockId:
        """The candidate to evict next. Does not remove it: the allocator answers with `evicted`.

        Raises:
            NoCandidate: there is none.
        """

    @abstractmethod
    def evicted(self, block: BlockId, now: PolicyTime) -> None:
        """This candidate's content is gone; it is a candidate no longer.

        A reset calls it for every published block, those in use included, which are no candidates: forget all of it.
        Such a block is not released afterwards, unless other content is published in it.
        """

    def victims(self, count: int, now: PolicyTime) -> list[BlockId]:
        """The next `count` victims in order, evicted: as `victim` and `evicted` by turns. Override it for speed only.

        The same blocks in the same order, and the same memory of them: whoever calls this does not call `evicted`.

        Raises:
            NoCandidate: there are fewer.
        """
        chosen = []
        for _ in range(count):
            block = self.victim(now)
            self.evicted(block, now)
            chosen.append(block)
        return chosen

    def parameters(self) -> dict[str, float]:
        """How this policy is set: what its class in another language needs to decide as it does. Default: nothing."""
        return {}

    def facts(self) -> dict[str, str | int | float]:
        """What the policy learned or settled on (a target, sizes of queues), for the results. Default: nothing.

        Asked after the work, of a policy that was attached; changes nothing. Kept as `eviction_<name>`.
        """
        return {}


def _fact(name: str) -> Any:
    """A property of Block: its entry in the view's column of that name."""
    column = attrgetter(f"_view.{name}")
    return property(lambda block: column(block)[block.id])


class Block:
    """The facts of one block, by name, as BlockView has them: what `ScoredPolicy.score` is given. Do not keep it."""

    __slots__ = ("_view", "id")

    depth: int = _fact("depth")
    num_tokens: int = _fact("num_tokens")
    admitted: int = _fact("admitted")
    last_access: int = _fact("last_access")
    hits: int = _fact("hits")
    priority: int = _fact("priority")
    tenant: int = _fact("tenant")
    children: int = _fact("children")
    next_use: float = _fact("next_use")
    key: BlockHash | None = _fact("key")
    parent: int | None = _fact("parent")
    partial: bool | None = _fact("partial")
    last_request: RequestFacts = _fact("last_request")

    def __init__(self, view: BlockView) -> None:
        self._view = view
        self.id = BlockId(0)


class ScoredPolicy(EvictionPolicy):
    """The short base class: `score(block, now)`, lowest goes first; ties go deepest first, then by lowest id.

    The score is taken when a block becomes a candidate and holds until it is used again: O(log n) an operation.
    A score that changes while nothing happens to the block needs `time_varying = True`: every eviction then scores
    all candidates afresh, O(n).
    """

    time_varying: ClassVar[bool] = False

    @abstractmethod
    def score(self, block: Block, now: PolicyTime) -> Any:
        """How much this block is worth keeping: a number, or a tuple compared in order.

        Not NaN, which is refused with a PluginError.

        `now` is a PolicyTime; `block.admitted` and `block.last_access` count accesses: never mix the two.
        """

    def attach(self, blocks: BlockView) -> None:
        super().attach(blocks)
        self._facts = Block(blocks)
        self._scores: dict[BlockId, Any] = {}
        self._heap: list[tuple[Any, int, BlockId]] = []

    def _entry(self, block: BlockId, now: PolicyTime) -> tuple[Any, int, BlockId]:
        self._facts.id = block
        score = self.score(self._facts, now)
        if score != score:  # NaN has no place in an order: the block would never be found again
            raise PluginError(f"{type(self).__name__}.score gave {score!r} for block {block}, which nothing orders")
        return (score, -self.blocks.depth[block], block)

    def pin(self, blocks: Sequence[BlockId], now: PolicyTime) -> None:
        for block in blocks:
            del self._scores[block]

    def release(self, blocks: Sequence[BlockId], now: PolicyTime) -> None:
        for block in blocks:
            entry = self._entry(block, now)
            self._scores[block] = entry[0]
            if not self.time_varying:
                heapq.heappush(self._heap, entry)
        if len(self._heap) > 64 + 4 * len(self._scores):
            self._heap = [(score, -self.blocks.depth[block], block) for block, score in self._scores.items()]
            heapq.heapify(self._heap)

    def victim(self, now: PolicyTime) -> BlockId:
        if not self._scores:
            raise NoCandidate(f"{type(self).__name__} holds no candidate")
        if self.time_varying:
            return min(self._entry(block, now) for block in self._scores)[2]
        while True:
            score, above, block = self._heap[0]
            if block in self._scores and self._scores[block] == score and self.blocks.depth[block] == -above:
                return block
            heapq.heappop(self._heap)

    def evicted(self, block: BlockId, now: PolicyTime) -> None:
        self._scores.pop(block, None)
