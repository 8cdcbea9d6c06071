"""Eviction policies with one fault each, and right ones that the kit must pass."""

from __future__ import annotations

import os
from collections.abc import Sequence

from framework import registry
from framework.errors import NoCandidate
from framework.interfaces.eviction import ScoredPolicy
from framework_testing import adversarial as bad
from framework_testing import eviction as kit
from framework_testing.oracles.eviction import SlowFifo, SlowLru, SlowPolicy


class ScoredLru(ScoredPolicy):
    """The short base class: sound, and it scales."""

    def score(self, block, now):
        return block.last_access


class ScoredByAge(ScoredPolicy):
    """Sound, and excused from scaling, as it says."""

    time_varying = True

    def score(self, block, now):
        return block.last_access - now


class RemembersOldTenancy(SlowLru):
    """Breaks: an evicted block's content is forgotten; a reused id is never named again."""

    def attach(self, blocks):
        super().attach(blocks)
        self.gone: set[int] = set()

    def release(self, blocks: Sequence[int], now: float):
        super().release([block for block in blocks if block not in self.gone], now)

    def evicted(self, block, now):
        super().evicted(block, now)
        self.gone.add(block)


SHARED_STATE: set[int] = set()


class ListLru(SlowLru):
    """Right, but O(n): a Python list, searched on every pin."""

    def attach(self, blocks):
        super().attach(blocks)
        self.order: list[int] = []

    def pin(self, blocks, now):
        for block in blocks:
            self.order.remove(block)

    def release(self, blocks, now):
        self.order += blocks

    def victim(self, now):
        if not self.order:
            raise NoCandidate("ListLru holds no candidate")
        return self.order[0]

    def evicted(self, block, now):
        if block in self.order:
            self.order.remove(block)


class ForgetsTheOrderOfHits(SlowLru):
    """Breaks: a list is deepest block first. A set of ids has another order."""

    def attach(self, blocks):
        super().attach(blocks)
        self.uses: dict[int, int] = {}

    def release(self, blocks, now):
        super().release(blocks, now)
        for block in set(blocks):
            self.uses[block] = len(self.uses) + max(self.uses.values(), default=0)

    def rank(self, block):
        return self.uses[block]

    def evicted(self, block, now):
        super().evicted(block, now)
        self.uses.pop(block, None)


class ForgetsWhenAsked(SlowLru):
    """Breaks: facts change nothing."""

    def facts(self):
        if len(self.candidates) > 1:
            self.touched = dict.fromkeys(self.candidates, 0)
        return {}

    def release(self, blocks, now):
        super().release(blocks, now)
        self.touched = {**getattr(self, "touched", {}), **dict.fromkeys(blocks, self.blocks.last_access[blocks[0]])}

    def victim(self, now):
        super().victim(now)
        return min(self.candidates, key=lambda block: (self.touched[block], -self.blocks.depth[block], block))


class KeepsLists(SlowLru):
    """Breaks: the lists it is handed are not its own. Reads them after the call."""

    def attach(self, blocks):
        super().attach(blocks)
        self.kept = []

    def release(self, blocks, now):
        self.kept.append(blocks)

    def victim(self, now):
        while self.kept:
            self.candidates |= set(self.kept.pop())
        return super().victim(now)


RANDOM, MANY = kit.check_random_histories, kit.check_many_victims_are_one_after_another
BOUNDED = kit.check_what_is_remembered_is_bounded


def in_bulk(choose):
    """A `victims` for a SlowLru: `choose` picks them, given the count and the candidates in order."""

    def victims(self, count, now):
        if len(self.candidates) < count:
            raise NoCandidate("too few")
        chosen = choose(count, sorted(self.candidates, key=self.rank))
        self.candidates -= set(chosen)
        return chosen

    return victims


class SoundInBulk(SlowLru):
    """Right: what `victims` names is what `victim` and `evicted` name by turns."""

    victims = in_bulk(lambda count, order: order[:count])


class BatchForgetsGhosts(registry.load("eviction", "arc")):
    """What `victims` evicts is no ghost; what `evicted` names is one."""

    def victims(self, count, now):
        chosen = []
        for _ in range(count):
            chosen.append(self.victim(now))
            self._queue_of(chosen[-1]).remove(chosen[-1])
        return chosen


class LosesCandidatesOnce500AreProtected(SlowLru):
    """Blocks that were hit are protected; of more than 500 it knows no more that they are candidates."""

    def attach(self, blocks):
        super().attach(blocks)
        self.protected: set[int] = set()

    def hit(self, blocks, now):
        self.protected |= set(blocks)

    def release(self, blocks, now):
        full = len(self.protected) >= 500
        super().release([block for block in blocks if not full or block not in self.protected], now)

    def evicted(self, block, now):
        super().evicted(block, now)
        self.protected.discard(block)


class CountsSessions(SlowLru):
    """Right, but it keeps a number for every session that ever came."""

    def release(self, blocks, now):
        super().release(blocks, now)
        for block in blocks:
            session = self.blocks.last_request[block].session
            self.__dict__.setdefault("sessions", {})[session] = now


def wrong(name, check, base=SlowLru, **methods):
    """A sound policy with these members in place of its own, and the check that must catch it."""
    return type(name, (base,), methods), check


MUTANTS = [
    *((policy, RANDOM) for policy in bad.BAD_VICTIMS),
    *(wrong(f"RaisesIn{hook.title()}", RANDOM, **{hook: lambda self, blocks, now: {}[now]})
      for hook in ("admit", "hit", "pin", "release", "evicted")),
    wrong("RaisesInItsFourthRelease", RANDOM, calls=0, release=lambda self, blocks, now: (
          setattr(self, "calls", self.calls + 1), {1: SlowLru.release}[self.calls < 4](self, blocks, now))),
    (KeepsLists, RANDOM),
    (RemembersOldTenancy, RANDOM),
    (ForgetsTheOrderOfHits, kit.check_contents_decide_and_not_ids),
    (ForgetsWhenAsked, kit.check_facts_are_plain_and_change_nothing),
    (SlowLru, kit.check_work_does_not_grow_with_the_pool),
    (ListLru, kit.check_work_does_not_grow_with_the_pool),
    (BatchForgetsGhosts, MANY),
    (LosesCandidatesOnce500AreProtected, kit.check_a_large_pool),
    (CountsSessions, BOUNDED),
    wrong("EvictsNewestInBulk", MANY, victims=in_bulk(lambda count, order: order[-count:])),
    wrong("EvictsInAnotherOrderInBulk", MANY, victims=in_bulk(lambda count, order: order[:count][::-1])),
    wrong("IsWrongFromFourVictimsOn", MANY, victims=in_bulk(
          lambda count, order: order[:count] if count < 4 else [*order[: count - 1], order[-1]])),
    wrong("NamesOneTooFewInBulk", RANDOM, victims=in_bulk(lambda count, order: order[: count - 1])),
    wrong("NamesOneTwiceInBulk", RANDOM, victims=in_bulk(lambda count, order: [*order[: count - 1], order[0]])),
    wrong("KeepsWhatItNamedInBulk", RANDOM, victims=lambda self, count, now:
          sorted(self.candidates, key=self.rank)[:count]),
    wrong("RemembersAllItEvicted", BOUNDED, evicted=lambda self, block, now: (
          SlowLru.evicted(self, block, now), self.__dict__.setdefault("ghosts", set()).add(self.blocks.key[block]))),
    wrong("ForgetsPin", RANDOM, pin=lambda self, blocks, now: None),
    wrong("ForgetsRelease", RANDOM, release=lambda self, blocks, now: SlowLru.release(self, blocks[:-1], now)),
    wrong("ForgetsEvicted", RANDOM, evicted=lambda self, block, now: None),
    wrong("VictimRemoves", RANDOM, victim=lambda self, now:
          (block := SlowLru.victim(self, now), self.candidates.discard(block))[0]),
    wrong("Wavers", RANDOM, asked=0, victim=lambda self, now: (SlowLru.victim(self, now), setattr(
          self, "asked", self.asked + 1), sorted(self.candidates)[self.asked % len(self.candidates)])[2]),
    wrong("Unseeded", kit.check_two_instances_evict_alike, SlowPolicy, rank=lambda self, block:
          self.__dict__.setdefault("ranks", {}).setdefault(block, os.urandom(8))),
    wrong("MutatesLists", RANDOM, release=lambda self, blocks, now:
          (SlowLru.release(self, blocks, now), blocks.clear())),
    wrong("EmptyNone", RANDOM,
          victim=lambda self, now: SlowLru.victim(self, now) if self.candidates else None),
    wrong("WritesFacts", RANDOM, victim=lambda self, now:
          (block := SlowLru.victim(self, now), self.blocks.last_access.__setitem__(block, 0))[0]),
    wrong("CandidateWhenAdmitted", RANDOM,
          admit=lambda self, blocks, now: self.candidates.update(blocks)),
    wrong("KeepsDroppedBlocks", RANDOM,
          evicted=lambda self, block, now: self.candidates.symmetric_difference_update([block])),
    wrong("SharesStateBetweenInstances", kit.check_two_instances_evict_alike, attach=lambda self, blocks:
          (SlowLru.attach(self, blocks), setattr(self, "candidates", SHARED_STATE))),
    wrong("RemembersEvictedIds", kit.check_contents_decide_and_not_ids, ScoredPolicy,
          attach=lambda self, blocks: (ScoredPolicy.attach(self, blocks), setattr(self, "seen", {})),
          score=lambda self, block, now: self.seen.setdefault(block.id, len(self.seen))),
    wrong("SaysItIsAStack", kit.check_a_recency_stack_is_one, SlowFifo, recency_stack=True),
    wrong("ReadsTheTime", kit.check_a_score_that_reads_the_time_says_so, ScoredPolicy,
          score=lambda self, block, now: block.hits / (1.0 + now)),
    wrong("RaisesBeyondBlock100", kit.check_a_large_pool, ScoredByAge, score=lambda self, block, now:
          ScoredByAge.score(self, block, now) if block.id <= 100 else {}[block.id]),
    wrong("ReportsItsCandidates", kit.check_facts_are_plain_and_change_nothing,
          facts=lambda self: {"candidates": set(self.candidates)}),
    wrong("RaisesWhenAsked", kit.check_facts_are_plain_and_change_nothing,
          facts=lambda self: {"oldest": min(self.candidates)}),
]  # fmt: skip

SLOW = [check for check in kit.eviction_checks if check is not kit.check_work_does_not_grow_with_the_pool]
RIGHT = [
    *((policy, kit.eviction_checks) for policy in (ScoredLru, ScoredByAge)),
    *((policy, SLOW) for policy in (SlowLru, SlowFifo, bad.MostRecent, ListLru, SoundInBulk)),
]
