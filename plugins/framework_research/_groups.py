"""Blocks released together as one group: what policies that judge whole requests order, learn from and evict."""

from __future__ import annotations

import heapq
from abc import abstractmethod
from array import array
from collections import OrderedDict, deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from framework.errors import NoCandidate
from framework.interfaces.eviction import BlockView, EvictionPolicy
from framework.types import BlockHash, BlockId, RequestFacts

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_RESCORE = 64
"""All groups are scored anew whenever this part of the capacity was evicted: an age changes little meanwhile."""

_BLOCKS_A_SCORE = 1
"""And not before a block was evicted for each two groups: scoring costs time by groups."""

_MOST_NAMES = 16_384
"""Groups whose return is still seen long after their eviction: one name each."""


class Group:
    """Blocks of one request that were released together and wait for the same thing.

    Attributes:
        blocks: as released, shallowest first; those used or evicted since are skipped.
        kind: which class it belongs to; up to the policy.
        start: when it was released, on the policy's clock.
        order: counts groups: larger was released later.
        size: candidates left. `count`: blocks that no later request has used, those evicted and remembered included.
        name: of its deepest block.
        shadow: blocks that LRU would still hold. `shadow_hits`: those it would have hit since the last release.
        record: number of its record in the policy's history; -1 without.
        turn: of its conversation, from 0, where the policy counts turns; -1 where that says nothing.
        below: the group of the same request whose blocks are deeper, where the policy made two.
        score: as it stands in the heap; entries of other scores are stale.
    """

    __slots__ = (
        "below",
        "blocks",
        "count",
        "kind",
        "name",
        "order",
        "record",
        "score",
        "shadow",
        "shadow_hits",
        "size",
        "start",
        "turn",
    )

    def __init__(self, blocks: array[int], kind: int, start: float, order: int) -> None:
        self.blocks, self.kind, self.start, self.order = blocks, kind, start, order
        self.size = self.count = self.shadow = len(blocks)
        self.record = self.turn = -1
        self.shadow_hits = 0
        self.name: BlockHash | None = None
        self.below: Group | None = None
        self.score: float = 0.0


class GroupedPolicy(EvictionPolicy):
    """Evicts the group of the lowest score, its deepest block first; ties go to the group released first.

    A subclass says into which groups a release falls (`group`), what it learns when a group's blocks are used again
    (`returned`), and scores groups by kind and age (`score`). The policy's clock is the latest arrival seen, or `now`
    where arrivals are unknown. Names of evicted blocks are remembered, at most twice the capacity, and one name a group
    for longer, so that a return after an eviction is seen too. O(1) Python steps a block, O(log n) a group; scoring is
    NumPy work over the groups.
    """

    needs_requests = True

    def attach(self, blocks: BlockView) -> None:
        super().attach(blocks)
        rows = len(blocks.depth)
        self._group_of: list[Group | None] = [None] * rows
        self._candidate = bytearray(rows)
        self._num_candidates = 0
        self._heap: list[tuple[float, int, Group]] = []
        self._ghosts: OrderedDict[BlockHash | None, Group] = OrderedDict()
        self._names: OrderedDict[BlockHash | None, Group] = OrderedDict()  # of deepest blocks, after their ghosts
        self._clock, self._arrivals, self._order = 0.0, True, 0
        self.continued: Group | None = None
        """While `group` runs: the group of the deepest block that had been seen before."""
        self.num_fresh = 0
        """While `group` runs: the deepest blocks, none of which had been seen before."""
        self.asked = 0.0
        """While `group` and `returned` run: when the request arrived; others may have arrived while it ran."""
        self._evicted, self._stale = 0, False
        self._most_ghosts, self._rescore_after = 2 * blocks.num_blocks, blocks.num_blocks // _RESCORE

    # What a subclass says

    @abstractmethod
    def group(self, blocks: Sequence[BlockId], facts: RequestFacts, gap: float | None) -> None:
        """Call `add` for each group that these released blocks, deepest first, fall into.

        Args:
            gap: time since the deepest block that was found had been released; None when none was found.
        """

    @abstractmethod
    def score(self, kinds: Ints, ages: Floats, orders: Ints) -> Floats:
        """(G,) scores of groups by kind, age and order of release; the lowest goes first."""

    def first_score(self, group: Group) -> float:
        """The score of a group that begins to wait now: as `score`, at age 0. Override it for speed only."""
        return float(self.score(np.array([group.kind]), np.zeros(1), np.array([group.order]))[0])

    def returned(self, group: Group, age: float, used: int) -> None:
        """A request used `used` of the group's `count` blocks after `age`."""

    def refresh(self) -> None:
        """Called before all groups are scored anew."""

    # Groups

    def add(self, blocks: Sequence[BlockId], kind: int) -> Group:
        """These released blocks, deepest first, are a group of this kind from here on."""
        self._order += 1
        packed = array("i", blocks)
        packed.reverse()
        group = Group(packed, kind, self._clock, self._order)
        group.name = self.blocks.key[blocks[0]]
        group_of = self._group_of
        for block in blocks:
            group_of[block] = group
        self.place(group)
        return group

    def place(self, group: Group) -> None:
        """Enter the group by its score now: after it was made, or its kind changed."""
        group.score = self.first_score(group)
        heapq.heappush(self._heap, (group.score, group.order, group))

    def rescore(self) -> None:
        """All groups are scored anew before the next victim."""
        self._stale = True

    def _score_all(self) -> None:
        self._stale, self._evicted = False, 0
        self.refresh()
        groups = [group for score, _, group in self._heap if group.size and group.score == score]
        if not groups:
            self._heap = []
            return
        kinds = np.array([group.kind for group in groups])
        ages = self._clock - np.array([group.start for group in groups])
        orders = np.array([group.order for group in groups])
        scores = self.score(kinds, ages, orders)
        for group, score in zip(groups, scores.tolist(), strict=True):
            group.score = score
        self._heap = [(group.score, group.order, group) for group in groups]
        heapq.heapify(self._heap)
        self._rescore_after = max(self.blocks.num_blocks // _RESCORE, len(groups) // _BLOCKS_A_SCORE)

    # Callbacks

    def _tick(self, facts: RequestFacts, now: float) -> None:
        if facts.arrival is None:
            self._arrivals = self._arrivals and self._order > 0  # unknown from the first on: count by `now`
        time = facts.arrival if self._arrivals else now
        if time is not None and time > self._clock:
            self._clock = time

    def admit(self, blocks: Sequence[BlockId], now: float) -> None:
        self._tick(self.blocks.last_request[blocks[0]], now)
        ghosts, names, group_of, key = self._ghosts, self._names, self._group_of, self.blocks.key
        for block in blocks:
            name = key[block]
            group_of[block] = ghosts.pop(name, None) or names.pop(name, None)

    def pin(self, blocks: Sequence[BlockId], now: float) -> None:
        group_of, candidate = self._group_of, self._candidate
        for block in blocks:
            if candidate[block]:
                candidate[block] = 0
                self._num_candidates -= 1
                group_of[block].size -= 1  # type: ignore[union-attr]

    def release(self, blocks: Sequence[BlockId], now: float) -> None:
        facts = self.blocks.last_request[blocks[0]]
        self._tick(facts, now)
        group_of, candidate = self._group_of, self._candidate
        before: dict[Group, int] = {}
        deepest: Group | None = None
        run, length = group_of[blocks[0]], 0
        for block in blocks:
            candidate[block] = 1
            group = group_of[block]
            if group is run:
                length += 1
            else:
                if run is not None:
                    before[run] = before.get(run, 0) + length
                    deepest = deepest or run
                run, length = group, 1
        if run is not None:
            before[run] = before.get(run, 0) + length
            deepest = deepest or run
        self._num_candidates += len(blocks)
        self.continued = deepest
        self.asked = facts.arrival if self._arrivals and facts.arrival is not None else self._clock
        gap = max(0.0, self.asked - deepest.start) if deepest is not None else None
        for group, used in before.items():
            self.returned(group, max(0.0, self.asked - group.start), used)
            group.count -= used
        self.num_fresh = next((index for index, block in enumerate(blocks) if group_of[block] is not None), len(blocks))
        self.group(blocks, facts, gap)
        if len(self._heap) > 64 + 4 * self._num_candidates:
            self._stale = True

    def victim(self, now: float) -> BlockId:
        if not self._num_candidates:
            raise NoCandidate(f"{type(self).__name__} holds no candidate")
        if self._stale:
            self._score_all()
        heap, group_of, candidate = self._heap, self._group_of, self._candidate
        while True:
            score, _, group = heap[0]
            if group.size and group.score == score:
                blocks = group.blocks
                while blocks:
                    block = blocks[-1]
                    if group_of[block] is group and candidate[block]:
                        return BlockId(block)
                    blocks.pop()
            heapq.heappop(heap)

    def victims(self, count: int, now: float) -> list[BlockId]:
        chosen: list[BlockId] = []
        group_of, candidate, key = self._group_of, self._candidate, self.blocks.key
        ghosts, most = self._ghosts, self._most_ghosts
        while len(chosen) < count:
            group = group_of[self.victim(now)]
            assert group is not None, "a victim lies in a group"
            blocks, before = group.blocks, len(chosen)
            while blocks and len(chosen) < count and not self._stale:
                block = blocks.pop()
                if group_of[block] is group and candidate[block]:
                    group_of[block], candidate[block] = None, 0
                    ghosts[key[block]] = group
                    chosen.append(BlockId(block))
                    self._evicted += 1
                    self._stale = self._evicted > self._rescore_after
            group.size -= len(chosen) - before
            self._num_candidates -= len(chosen) - before
            if len(ghosts) > most:
                self._forget()
        return chosen

    def evicted(self, block: BlockId, now: float) -> None:
        group = self._group_of[block]
        self._group_of[block] = None
        if self._candidate[block]:
            self._candidate[block] = 0
            self._num_candidates -= 1
            if group is not None:
                group.size -= 1
        if group is not None:
            self._remember(self.blocks.key[block], group)

    def _remember(self, key: BlockHash | None, group: Group) -> None:
        """Keep what is known of an evicted block, by its name."""
        self._ghosts[key] = group
        self._forget()
        self._evicted += 1
        if self._evicted > self._rescore_after:
            self._stale = True

    def _forget(self) -> None:
        """The oldest names above the limit; of each group one stays for longer."""
        ghosts = self._ghosts
        for _ in range(len(ghosts) - self._most_ghosts):
            name, forgotten = ghosts.popitem(last=False)
            if name != forgotten.name:
                forgotten.count -= 1
            elif forgotten.record >= 0:
                self._names[name] = forgotten
                if len(self._names) > _MOST_NAMES:
                    self._names.popitem(last=False)


class Shadow:
    """What LRU would hold, counted by groups: what a policy compares itself with.

    Attributes:
        lost: blocks that LRU would have hit and the policy had evicted.
        spared: blocks that the policy had evicted before LRU would have, and nobody asked for until LRU would have too.
        before: sizes of groups before blocks of them were evicted for a request for which LRU would evict as well.
    """

    def __init__(self) -> None:
        self.lost = self.spared = 0.0
        self.before: dict[Group, int] = {}
        self._held = 0
        self._queue: deque[Group] = deque()

    def use(self, group: Group, used: int, *, resident: bool) -> None:
        """A request takes blocks of a group into use. Those that LRU would have held are its hits and stay."""
        hits = min(used, group.shadow)
        group.shadow -= hits
        group.shadow_hits += hits
        self._held -= hits
        if not resident:
            self.lost += hits

    def add(self, group: Group) -> None:
        """The group is the most recent now."""
        self._queue.append(group)
        self._held += group.shadow

    def shrink(self, most: int) -> None:
        """LRU would hold no more than `most` blocks that are not in use."""
        while self._held > most:
            oldest = self._queue[0]
            gone = min(oldest.shadow, self._held - most)
            self.spared += max(0, min(gone, oldest.shadow - self.before.get(oldest, oldest.size)))
            oldest.shadow -= gone
            self._held -= gone
            if not oldest.shadow:
                self._queue.popleft()

    @property
    def oldest(self) -> int:
        """The order of the oldest group of which LRU would hold a block; 0 when it would hold none."""
        return self._queue[0].order if self._queue else 0

    def given_up(self) -> list[int]:
        """Blocks that LRU would hold and the policy has evicted, by group. O(groups)."""
        return [group.shadow - group.size for group in self._queue if group.shadow > group.size]
