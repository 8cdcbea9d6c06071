"""Evict what is least likely to be used again for the time that it takes up."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

import numpy as np

from framework.errors import InvalidArgument
from framework.interfaces.eviction import BlockView
from framework.types import BlockId, RequestFacts
from framework_research._groups import Floats, Group, GroupedPolicy, Ints, Shadow
from framework_research._returns import FIRST_AGE_S, Returns

BODY, TAIL, LEFT, SHARED = range(4)
FIRST, NEW, SEEN = range(3)  # parts of a prompt: nothing of it seen before; never seen before; the rest
_MOVED_ON = 2  # is added when the conversation went on without its last blocks
_TURNS = (0, 1, 2, 3, 4, 5, 5, 5, 5, 5)  # bins of the turn; from 10 on 6
_MOST_CATEGORIES = 16
_LONG_ANSWER = 256  # tokens
_RECENT = 100  # times the capacity: block references that the guard looks back on
_LRU_LAST = 2.0**52  # added to the score of what LRU would hold, to keep it: above every index


class Hazard(GroupedPolicy):
    """Learns online, from nothing, when requests come back, and keeps what gives most hits for its time in the cache.

    Blocks released together are a group, by what they are: *shared* by more requests than the conversation has turns;
    *body*, the full blocks of a prompt, those never seen before apart from the rest; *tail*, a partial last block;
    *left*, the rest of a group when its conversation went on, with most of it or without (*dropped*). For each the
    hazard of a return is estimated by age and, for bodies, by the last gap, the turn, the prompt's size, its blocks
    never seen before, its category, whether its answer was long and which part of it they are (`Returns`). The group
    with the lowest Gittins index (the best ratio, over how long to hold it, of the chance of a return to the time held)
    goes first, its deepest block first.

    NOTE 1. What LRU would hit is counted beside it, and so are the blocks given up: those that LRU would hold and
    this policy has evicted. No more are given up while the hits that it stands to lose by them exceed those that it
    still may: `tolerance` of the block references of late, less what it is behind LRU. It stands to lose the share of
    blocks given up that LRU went on to hit, 1 at first and then learnt, and a standard deviation more, for a group
    returns as a whole or not at all. Meanwhile it evicts, by index, what LRU would hold no longer, then as LRU does.
    So its own order is taken up in steps that the steps before have paid for. "Of late" are references weighted by
    how long ago they were, 100 times the capacity in all.
    NOTE 2. Turn and new blocks are counted from what was ever seen, where that says more than the facts: what the cache
    happens to have lost says nothing of a conversation (3 points of the gap on the conversation trace).
    NOTE 3. Blocks never seen before are a group of their own because conversations often go on without them: a prompt
    is edited, sent again, or only its opening is shared. Where that has happened before, 21 % of such blocks are used
    again although the conversation continues, against 99 % of those seen before (counted on the conversation trace).
    NOTE 4. Facts that are unknown, such as the turn behind an allocator that keeps none, are a value of their own.
    NOTE 5. In an engine a request looks its prefix up, takes room and publishes at different times, and others do so
    between. LRU's hits are counted when a block is pinned or published, so the room that earlier requests took is
    settled before the next one takes some: left until the next release, LRU was credited with up to 9 % more hits
    than it had, and this policy kept to LRU's order. A return is when its request arrived, not when it was done.
    NOTE 6. Of an agent's request the answer's length says more of the time to the next one than the last gap does (10
    and 4 % of the variance of its logarithm, on both agentic traces). Two levels: with one for each power of two, each
    combination of features is seen too seldom (1 point of the gap on the conversation trace).

    Args:
        tolerance: hits that it may lose to LRU, as a share of those block references.
        window: groups remembered for learning.

    Raises:
        InvalidArgument: a tolerance below 0, a window below 64.

    Costs: stated in experiments/gap; memory about 24 bytes a remembered group and one name a block of capacity.
    Source: ours; index of Gittins 1979, J. R. Stat. Soc. B 41; its use for caches: Beckmann et al., LHD, NSDI 2018;
    turn and age as predictors: arXiv:2506.02634.
    """

    def __init__(self, tolerance: float = 0.0025, window: int = 65_536) -> None:
        if not tolerance >= 0:
            raise InvalidArgument(f"tolerance must be at least 0, found {tolerance}")
        if window < 64:
            raise InvalidArgument(f"window must be at least 64, found {window}")
        self.tolerance, self.window = tolerance, window

    def attach(self, blocks: BlockView) -> None:
        super().attach(blocks)
        self._returns = Returns(4, self.window)
        self._categories: dict[str, int] = {}
        self._shadow = Shadow()
        self._behind = 0.0  # hits that LRU would have had more of late
        self._recent = 0.0  # block references of late
        self._found = bytearray(len(blocks.depth))  # of blocks in use: 1 was resident before, 2 and a hit, 0 neither
        self._room: int | None = None  # candidates that the last eviction left, until the shadow is shrunk to them
        self._room_at = 0.0  # when that was
        self._restricted = True  # to what LRU would not hold, and then to LRU's order
        self._part = FIRST

    def admit(self, blocks: Sequence[BlockId], now: float) -> None:
        super().admit(blocks, now)
        self._use_shadow(blocks, resident=False)

    def pin(self, blocks: Sequence[BlockId], now: float) -> None:
        self._settle()
        super().pin(blocks, now)
        for block in blocks:
            self._found[block] = 1
        self._use_shadow(blocks, resident=True)

    def hit(self, blocks: Sequence[BlockId], now: float) -> None:
        depth, found = self.blocks.depth, self._found
        if depth[blocks[0]] != len(blocks) - 1:  # blocks whose ancestors are gone are used again, and are no hits
            placed = enumerate((*reversed(blocks), 0))
            num_hits = next(index for index, block in placed if not block or depth[block] != index)
            blocks = blocks[len(blocks) - num_hits :]
        for block in blocks:
            if found[block]:
                found[block] = 2

    def _use_shadow(self, blocks: Sequence[BlockId], *, resident: bool) -> None:
        for group, used in Counter(map(self._group_of.__getitem__, blocks)).items():
            if group is not None:
                self._shadow.use(group, used, resident=resident)

    def release(self, blocks: Sequence[BlockId], now: float) -> None:
        found = self._found
        for block in blocks:
            if found[block]:  # once for each time in use, as LRU's hits are counted
                self._behind -= found[block] == 2
                found[block] = 0
        self._room = None
        super().release(blocks, now)
        self._shadow.before.clear()
        left, shadow = math.exp(-len(blocks) / (_RECENT * self.blocks.num_blocks)), self._shadow
        self._behind, self._recent = self._behind * left, self._recent * left + len(blocks)
        shadow.lost, shadow.spared = shadow.lost * left, shadow.spared * left
        if self._returns.due:
            self.rescore()

    def victims(self, count: int, now: float) -> list[BlockId]:
        if now > self._room_at:
            self._settle()
        chosen = super().victims(count, now)
        for group, number in Counter(self._ghosts.get(self.blocks.key[block]) for block in chosen).items():
            if group is not None:
                self._shadow.before.setdefault(group, group.size + number)
        self._room, self._room_at = self._num_candidates, now
        return chosen

    def evicted(self, block: BlockId, now: float) -> None:
        if now > self._room_at:
            self._settle()
        self._found[block] = 0
        group = self._group_of[block]
        if group is not None:
            self._shadow.before.setdefault(group, group.size)
        super().evicted(block, now)
        self._room, self._room_at = self._num_candidates, now

    def _settle(self) -> None:
        """LRU's shadow gives up the room that others have taken since the last release; see NOTE 5."""
        if self._room is not None:
            self._shadow.shrink(self._room)
            self._shadow.before.clear()
            self._room = None

    def features(self, facts: RequestFacts, num_blocks: int, gap: float | None) -> tuple[int, ...]:
        """What a body's hazard depends on, the first by shape; every value an integer, -1 for unknown."""
        known = self.num_fresh if facts.new_blocks is None else min(facts.new_blocks, self.num_fresh)
        turn = self._turn(facts)
        size = (facts.prompt_tokens or num_blocks).bit_length()
        category = -1 if facts.category is None else self._category(facts.category)
        return (
            self._gap(gap),
            _TURNS[turn] if turn < len(_TURNS) else 6,
            (known + 1).bit_length(),
            size,
            category,
            -1 if facts.output_tokens is None else int(facts.output_tokens >= _LONG_ANSWER),
            self._part,
        )

    def foretold(self, facts: RequestFacts) -> int:
        """What a client says of a return, as a level from 0, never, to 4, certainly; -1 for nothing."""
        return -1

    def shared_features(self, gap: float | None) -> tuple[int, ...]:
        """The same for shared blocks: only the gap says something of them."""
        return (self._gap(gap), 0, 0, 0, 0, 0, 0)

    def _turn(self, facts: RequestFacts) -> int:
        """How many turns came before, of those that the facts tell and of those seen."""
        before = self.continued
        return max(facts.turn or 0, before.turn + 1 if before is not None and before.turn >= 0 else 0)

    def _category(self, name: str) -> int:
        """Categories by number; those that come late share one."""
        if len(self._categories) < _MOST_CATEGORIES:
            return self._categories.setdefault(name, len(self._categories))
        return self._categories.get(name, _MOST_CATEGORIES)

    def _gap(self, gap: float | None) -> int:
        if gap is None:
            return -1
        return min(10, max(0, int(math.log2(gap / FIRST_AGE_S + 1e-9))) // 2)

    def group(self, blocks: Sequence[BlockId], facts: RequestFacts, gap: float | None) -> None:
        view = self.blocks
        num_tails = 0
        while num_tails < len(blocks) and view.partial[blocks[num_tails]]:
            num_tails += 1
        others = blocks[num_tails:]
        turn = self._turn(facts)
        most = 1 + turn  # a conversation's own turns hit its blocks so often
        first_shared = bisect_left(others, True, key=lambda block: view.hits[block] > most)
        if num_tails:
            self._begin(blocks[:num_tails], TAIL)
        if first_shared:
            num_new = min(max(self.num_fresh - num_tails, 0), first_shared)
            self._bodies(others[:first_shared], num_new, turn, facts, gap)
        if first_shared < len(others):
            kind = self._returns.kind_of(SHARED, self.shared_features(gap))
            self._begin(others[first_shared:], kind)

    def _bodies(
        self, blocks: Sequence[BlockId], num_new: int, turn: int, facts: RequestFacts, gap: float | None
    ) -> None:
        """The groups of a prompt's full blocks, deepest first: those never seen before, then the others."""
        moved_on, below = self._moved_on(), None
        for part, part_blocks in ((NEW, blocks[:num_new]), (SEEN, blocks[num_new:])):
            if not part_blocks:
                continue
            self._part = FIRST if self.continued is None else part + _MOVED_ON * moved_on
            features = self.features(facts, self.blocks.depth[blocks[0]] + 1, gap)
            group = self._begin(part_blocks, self._returns.kind_of(BODY, features, self.foretold(facts)), turn)
            group.below, below = below, group

    def _moved_on(self) -> bool:
        """Whether the conversation went on without the last full blocks that it had; these are left."""
        before = self.continued
        if before is None or before.turn < 0:
            return False
        rest = before if before.below is None or not before.below.count else before.below
        if rest.count and rest.turn >= 0:
            self._returns.stop(rest.record, max(rest.start, self.asked))
            self._leave(rest, dropped=True)
        return rest.count > 0

    def _leave(self, group: Group, *, dropped: bool) -> None:
        """What remains of the group waits for something else from here on, and says nothing of turns."""
        group.record = group.turn = -1
        if group.size:
            group.kind = self._returns.kind_of(LEFT, (dropped, 0, 0, 0, 0, 0, 0))
            group.start, group.record = self._clock, self._returns.begin(group.kind, self._clock)
            self.place(group)

    def _begin(self, blocks: Sequence[BlockId], kind: int, turn: int = -1) -> Group:
        group = self.add(blocks, kind)
        group.turn = turn
        group.record = self._returns.begin(kind, self._clock)
        self._shadow.add(group)
        self._shadow.shrink(self._num_candidates)
        return group

    def returned(self, group: Group, age: float, used: int) -> None:
        self._behind += group.shadow_hits
        group.shadow_hits = 0
        if 2 * used < group.count or group.record < 0:
            return
        self._returns.end(group.record, max(group.start, self.asked))
        group.record = -1
        if used < group.count:
            self._leave(group, dropped=False)

    def refresh(self) -> None:
        if self._returns.due:
            self._returns.learn(self._clock)
        self._restricted = self.restricted()

    def restricted(self) -> bool:
        """Whether no more may be given up of what LRU would hold; see NOTE 1."""
        allowed, given_up = self.tolerance * self._recent, self._shadow.given_up()
        lost, spared = self._shadow.lost, self._shadow.spared
        share = (lost + allowed) / max(lost + spared + allowed, 1.0)  # as if what is allowed had been lost before
        deviation = math.sqrt(share * (1 - share) * sum(count * count for count in given_up))
        return share * sum(given_up) + deviation >= allowed - self._behind

    def first_score(self, group: Group) -> float:
        return _LRU_LAST + group.order if self._restricted else self._returns.first_score(group.kind)

    def score(self, kinds: Ints, ages: Floats, orders: Ints) -> Floats:
        index = self._returns.scores(kinds, ages)
        if self._restricted:
            index = np.where(orders < self._shadow.oldest, index, _LRU_LAST + orders)
        return index

    def facts(self) -> dict[str, str | int | float]:
        return {
            "groups": self._order,
            "kinds": self._returns.num_kinds,
            "restricted": self._restricted,
            "given_up_blocks": sum(self._shadow.given_up()),
            "behind_lru_blocks": round(self._behind),
        }
