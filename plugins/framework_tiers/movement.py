"""Moves between the pool and the tiers below it when a request uses its blocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import ClassVar

from framework_tiers.guarded import GuardedTiering
from framework_tiers.tier import Contents, Key, Tier
from framework_tiers.tiering import Event, LoadOffer, TierBlock, Tiering


class Moves:
    """Moves the bytes that belong to the keys; itself: there are none, as in a cache-only replay.

    In the order of the calls, as far as one content is concerned.
    """

    pins: ClassVar[bool] = False
    """Whether a content that is copied is pinned where it goes until the copy has ended."""

    def copy(self, key: Key, source: int, target: int) -> None:
        """Copy a content from one tier to the next, which holds its key."""

    def remove(self, key: Key, tier: int) -> None:
        """The tier holds this content no longer."""


Costs = Callable[[Sequence[int], Sequence[int], int], tuple[tuple[float, ...] | None, tuple[float, ...] | None]]
"""(tiers, num_tokens, cached_tokens) of a LoadOffer -> its load_s and recompute_s."""


class LowerTiers:
    """The tiers below the pool, moved by one rule. Keys only: `moves` moves the bytes, where there are any.

    A cache-only replay, for each request, in this order: `find` says how much of it is cached; `begin` marks what it
    uses; then the pool may evict others' blocks (`evicted`); `settle`, when its blocks are in the pool, asks the rule
    about them; `end`. An engine, whose requests overlap, uses `find`, `use`, `ask` and `evicted`.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        rule: Tiering,
        contents: Contents,
        moves: Moves | None = None,
        costs: Costs | None = None,
    ) -> None:
        self.tiers, self.rule, self._contents = tuple(tiers), GuardedTiering(rule), contents
        self._moves, self._costs = moves or Moves(), costs
        self._held: list[list[Key]] = [[] for _ in tiers]

    def where(self, key: Key) -> int:
        """The uppermost of these tiers that holds the content; 0 where none does."""
        return next((tier.number for tier in self.tiers if key in tier), 0)

    def find(self, path: Sequence[Key], in_pool: Sequence[object], now: float) -> list[int]:
        """The tier of each block of the longest prefix to be had, as far as the rule loads it; 0 is the pool.

        Args:
            path: the request's blocks in prompt order. in_pool: whether the pool holds each, as truth values.
        """
        places: list[int] = []
        for key, present in zip(path, in_pool, strict=True):
            place = 0 if present else self.where(key)
            if not present and not place:
                break
            places.append(place)
        if not self.rule.wants_load or not any(places):
            return places
        first = next(number for number, place in enumerate(places) if place)
        return places[: first + self.rule.load(self.offer(path, places, first), now)]

    def offer(self, path: Sequence[Key], places: Sequence[int], first: int) -> LoadOffer:
        """What a rule may know of the blocks from `first` on that lie in `places`."""
        tokens = self._contents.num_tokens
        offered, ends = tuple(places[first:]), tuple(tokens(key) for key in path[first : len(places)])
        cached = tokens(path[first - 1]) if first else 0
        load_s, recompute_s = (None, None) if self._costs is None else self._costs(offered, ends, cached)
        return LoadOffer(offered, ends, cached, tokens(path[-1]), load_s, recompute_s)

    def count_hits(self, path: Sequence[Key], places: Sequence[int]) -> None:
        """A request's cached prefix lies in these places."""
        for key, place in zip(path, places, strict=False):
            if place:
                tier = self.tiers[place - 1]
                tier.hit(key)
                tier.counts.read += 1

    def begin(self, path: Sequence[Key], places: Sequence[int], now: float) -> None:
        """Count the hits of a request and mark its blocks in all tiers.

        Where the rule is exclusive, its blocks leave the lower tiers: the pool will have them, loaded or recomputed.
        Else they are used where they lie, and pinned until `end`.
        """
        self.count_hits(path, places)
        for tier, pinned in zip(self.tiers, self._held, strict=True):
            keys = [key for key in reversed(path) if key in tier]
            if keys and self.rule.exclusive:
                self.drop(tier, keys, now)
            elif keys:
                tier.use(keys, now)
                pinned += keys

    def drop(self, tier: Tier, keys: Sequence[Key], now: float) -> None:
        """These contents, not pinned, leave the tier."""
        tier.drop(keys, now)
        for key in keys:
            self._moves.remove(key, tier.number)

    def settle(self, path: Sequence[Key], written: Collection[Key], now: float) -> None:
        """The request's blocks are in the pool, `written` of them since it came: ask the rule about each edge."""
        for key in path:
            self.ask(key, "written" if key in written else "used", now, pinned=True)

    def ask(self, key: Key, event: Event, now: float, *, pinned: bool) -> None:
        """The pool holds this content, written or used by a request: ask the rule about each edge."""
        self._ask(0, key, event, now, pinned=pinned)
        for tier in self.tiers[:-1]:
            if key in tier:
                self._ask(tier.number, key, "used", now, pinned=pinned)

    def evicted(self, key: Key, now: float) -> None:
        self._ask(0, key, "evicted", now, pinned=False)

    def end(self, now: float) -> None:
        """The request is over: nothing of it is pinned any more."""
        for tier, pinned in zip(self.tiers, self._held, strict=True):
            if pinned:
                tier.unpin(pinned, now)
                pinned.clear()

    def check(self) -> None:
        """Raise AssertionError where any tier's blocks do not add up."""
        for tier in self.tiers:
            tier.check()

    def lift(self, key: Key, source: int, now: float) -> bool:
        """Copy a content from a lower tier to tier 1, which does not hold it; False if there is no room for it."""
        first = self.tiers[0]
        if not self._make_room(first, now):
            return False
        self.tiers[source - 1].counts.read += 1
        first.insert(key, now, pinned=True)
        self._moves.copy(key, source, 1)
        return True

    def _make_room(self, tier: Tier, now: float) -> bool:
        """Evict until there is room for one more; False, and counted, where everything is pinned."""
        while len(tier) >= tier.num_blocks:
            victim = tier.victim(now)
            if victim is None:
                tier.counts.refused += 1
                return False
            self._ask(tier.number, victim, "evicted", now, pinned=False)
            self._moves.remove(victim, tier.number)
        return True

    def _ask(self, number: int, key: Key, event: Event, now: float, *, pinned: bool) -> None:
        """Store in the tier below `number` what lies in that one, if the rule says so."""
        if number == len(self.tiers) or key in self.tiers[number]:
            return
        facts = self._contents
        block = TierBlock(facts.name(key), number, facts.depth(key), facts.num_tokens(key), facts.uses(key))
        if not self.rule.store(block, event, now):
            return
        below = self.tiers[number]
        if not self._make_room(below, now):
            return
        if number:
            self.tiers[number - 1].counts.read += 1
        below.insert(key, now, pinned=pinned or self._moves.pins)
        self._moves.copy(key, number, below.number)
        if pinned and not self._moves.pins:
            self._held[number].append(key)
        self._ask(below.number, key, "written", now, pinned=pinned)
