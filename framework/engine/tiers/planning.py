"""Plans of loads: which blocks of a waiting request come from the tiers below the pool."""

from __future__ import annotations

from framework.engine.request import Sequence as Row
from framework.engine.tiers.placement import Placement
from framework.engine.tiers.records import Plan
from framework.interfaces.allocator import Hit
from framework.types import RequestId


class Planner:
    """Asks the rule what to load for a request, and what to bring up while it waits for room."""

    def __init__(self, placement: Placement) -> None:
        self._places = placement
        self._waiting: RequestId | None = None  # last asked about for a prefetch

    def plan(self, seq: Row, hit: Hit) -> Plan | None:
        """What to load for `seq` beyond the pool's hit; None if nothing."""
        at, size = self._places, self._places.block_size
        full, limit = hit.num_tokens // size, (len(seq.tokens) - 1) // size
        if full >= limit or len(hit.hashes) < limit or at.off:
            return None
        path = list(hit.hashes[:limit])
        if not at.holds(path[full]):
            return None
        places = list[int]()
        with at.sound():
            if at.rule.wants_load:
                at.contents.learn(path)
            places = at.lower.find(path, [n < full or key in at.pool for n, key in enumerate(path)], at.now)
        places = places[full:]
        while places and not places[-1]:
            places.pop()
        if not places:
            return None
        whole = Hit(full * size, hit.blocks[:full], hit.hashes, hit.version)
        return Plan(whole, path[full : full + len(places)], places)

    def prefetch(self, seq: Row, hit: Hit) -> None:
        """`seq` is first in line and the pool has no room: bring its blocks up to tier 1 as far as the rule says."""
        at = self._places
        if not at.rule.wants_prefetch or self._waiting == seq.id or (plan := self.plan(seq, hit)) is None:
            return
        self._waiting = seq.id
        path, first = list(hit.hashes), plan.hit.num_tokens // at.block_size
        with at.sound():
            at.contents.learn(path)
            offer = at.lower.offer(path, [0] * first + plan.places, first)
            count = at.rule.prefetch(offer, at.now)
            held = {key: place for key, place in zip(plan.keys, plan.places, strict=True) if place}
            pins = [(tier, [key for key in reversed(held) if key in tier]) for tier in at.lower.tiers]
            for tier, keys in pins:  # none of them is evicted for another
                tier.pin(keys, at.now)
            for key in plan.keys[:count]:
                if held.get(key, 0) > 1 and key not in at.lower.tiers[0]:
                    at.lower.lift(key, held[key], at.now)
            for tier, keys in pins:
                tier.unpin(keys, at.now)
