"""What moves between the pool and the tiers below it when a request uses its blocks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from framework.guard.tiering import GuardedTiering
from framework.interfaces.tiering import Event, LoadOffer, TierBlock, Tiering
from framework.tiers.tier import Contents, Key, Tier


class LowerTiers:
    """The tiers below the pool, moved by one rule. Keys only: who calls it moves the bytes.

    For each request, in this order: `find` says how much of it is cached; `begin` marks what it uses; then the pool may
    evict others' blocks (`evicted`); `settle`, when its blocks are in the pool, asks the rule about them; `end`.
    """

    def __init__(self, tiers: Sequence[Tier], rule: Tiering, contents: Contents) -> None:
        self.tiers, self.rule, self._contents = tuple(tiers), GuardedTiering(rule), contents

    def where(self, key: Key) -> int:
        """The uppermost of these tiers that holds the content; 0 where none does."""
        return next((tier.number for tier in self.tiers if key in tier), 0)

    def find(self, path: Sequence[Key], in_pool: Sequence[object], now: float) -> list[int]:
        """The tier of each block of the longest prefix to be had, as far as the rule loads it; 0 is the pool.

        Args:
            path: the request's blocks in prompt order. in_pool: whether the pool holds each, as truth values.
        """
        places: list[int] = []
        for key, held in zip(path, in_pool, strict=True):
            place = 0 if held else self.where(key)
            if not held and not place:
                break
            places.append(place)
        if not self.rule.wants_load or not any(places):
            return places
        first = next(number for number, place in enumerate(places) if place)
        tokens = self._contents.num_tokens
        offer = LoadOffer(
            tiers=tuple(places[first:]),
            num_tokens=tuple(tokens(key) for key in path[first : len(places)]),
            cached_tokens=tokens(path[first - 1]) if first else 0,
            prompt_tokens=tokens(path[-1]),
        )
        return places[: first + self.rule.load(offer, now)]

    def begin(self, path: Sequence[Key], places: Sequence[int], own_tokens: Sequence[int], now: float) -> None:
        """Count the hits of a request and mark its blocks in all tiers.

        Where the rule is exclusive, its blocks leave the lower tiers: the pool will have them, loaded or recomputed.
        Else they are used where they lie, and pinned until `end`.
        """
        for key, place, tokens in zip(path, places, own_tokens, strict=False):
            if place:
                tier = self.tiers[place - 1]
                tier.hit(key, tokens)
                tier.counts.read += 1
        for tier in self.tiers:
            held = [key for key in reversed(path) if key in tier]
            if held and self.rule.exclusive:
                tier.drop(held, now)
            elif held:
                tier.use(held, now)

    def settle(self, path: Sequence[Key], written: Collection[Key], now: float) -> None:
        """The request's blocks are in the pool, `written` of them since it came: ask the rule about each edge."""
        for key in path:
            self._ask(0, key, "written" if key in written else "used", now, pinned=True)
            for tier in self.tiers[:-1]:
                if key in tier:
                    self._ask(tier.number, key, "used", now, pinned=True)

    def evicted(self, key: Key, now: float) -> None:
        """The pool gave up this content."""
        self._ask(0, key, "evicted", now, pinned=False)

    def end(self, now: float) -> None:
        """The request is over: nothing of it is pinned any more."""
        for tier in self.tiers:
            tier.unpin(now)

    def check(self) -> None:
        """Raise AssertionError where any tier's blocks do not add up."""
        for tier in self.tiers:
            tier.check()

    def _ask(self, number: int, key: Key, event: Event, now: float, *, pinned: bool) -> None:
        """Store in the tier below `number` what lies in that one, if the rule says so."""
        if number == len(self.tiers) or key in self.tiers[number]:
            return
        facts = self._contents
        block = TierBlock(facts.name(key), number, facts.depth(key), facts.num_tokens(key), facts.uses(key))
        if not self.rule.store(block, event, now):
            return
        below = self.tiers[number]
        while len(below) >= below.num_blocks:
            victim = below.victim(now)
            if victim is None:
                below.counts.refused += 1
                return
            self._ask(below.number, victim, "evicted", now, pinned=False)
        if number:
            self.tiers[number - 1].counts.read += 1
        below.insert(key, now, pinned=pinned)
        self._ask(below.number, key, "written", now, pinned=pinned)
