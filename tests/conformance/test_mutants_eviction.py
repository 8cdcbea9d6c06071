"""Each known-bad eviction policy must be caught, by a check that is named here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from framework.interfaces.eviction import ScoredPolicy
from framework.testing import adversarial as bad
from framework.testing import eviction as kit
from framework.testing.driver import Violation
from framework.testing.oracles.eviction import SlowFifo, SlowLru


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


class CandidateWhenAdmitted(SlowLru):
    """Breaks: a published block is in use until it is released."""

    def admit(self, blocks, now):
        self.candidates |= set(blocks)


class KeepsDroppedBlocks(SlowLru):
    """Breaks: a block that a reset drops while it is in use is no candidate, now or later."""

    def evicted(self, block, now):
        if block in self.candidates:
            self.candidates.discard(block)
        else:
            self.candidates.add(block)


SHARED_STATE: set[int] = set()


class SharesStateBetweenInstances(SlowLru):
    """Breaks: two caches in one process do not know each other."""

    def attach(self, blocks):
        super().attach(blocks)
        self.candidates = SHARED_STATE


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
        from framework.errors import NoCandidate

        if not self.order:
            raise NoCandidate("ListLru holds no candidate")
        return self.order[0]

    def evicted(self, block, now):
        if block in self.order:
            self.order.remove(block)


class RemembersEvictedIds(ScoredPolicy):
    """Breaks: an id that was evicted and is reused names other content."""

    def attach(self, blocks):
        super().attach(blocks)
        self.seen: dict[int, int] = {}

    def score(self, block, now):
        return self.seen.setdefault(block.id, len(self.seen))


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


class SaysItIsAStack(SlowFifo):
    """Breaks: a recency stack counts hits."""

    recency_stack = True


class ReadsTheTime(ScoredPolicy):
    """Breaks: a score that changes with time declares time_varying."""

    def score(self, block, now):
        return block.hits / (1.0 + now)


class RaisesBeyondBlock100(ScoredByAge):
    """Breaks: a pool has any number of blocks."""

    def score(self, block, now):
        if block.id > 100:
            raise IndexError(block.id)
        return super().score(block, now)


class ReportsItsCandidates(SlowLru):
    """Breaks: facts are texts and finite numbers."""

    def facts(self):
        return {"candidates": set(self.candidates)}


class RaisesWhenAsked(SlowLru):
    """Breaks: facts can be asked for at any time."""

    def facts(self):
        return {"oldest": min(self.candidates)}


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


RANDOM = kit.check_random_histories

MUTANTS = [
    (bad.NamesPinned, kit.check_a_pinned_block_is_no_victim),
    (bad.NamesNull, kit.check_an_evicted_block_may_return),
    (bad.NamesUnknown, kit.check_an_evicted_block_may_return),
    (bad.NamesNegative, kit.check_an_evicted_block_may_return),
    (bad.NamesFloat, kit.check_an_evicted_block_may_return),
    (bad.NamesBool, kit.check_an_evicted_block_may_return),
    (bad.NamesNone, kit.check_an_evicted_block_may_return),
    (bad.NamesNobody, kit.check_an_evicted_block_may_return),
    (bad.RaisesOnVictim, kit.check_an_evicted_block_may_return),
    *((partial(bad.RaisesInHook, hook), RANDOM) for hook in ("admit", "hit", "pin", "release", "evicted")),
    (partial(bad.RaisesInHook, "release", 3), RANDOM),
    (bad.ForgetsPin, kit.check_a_pinned_block_is_no_victim),
    (bad.ForgetsRelease, RANDOM),
    (bad.ForgetsEvicted, kit.check_an_evicted_block_may_return),
    (bad.VictimRemoves, RANDOM),
    (bad.Wavers, RANDOM),
    (bad.Unseeded, kit.check_two_instances_evict_alike),
    (bad.MutatesLists, RANDOM),
    (bad.KeepsLists, RANDOM),
    (bad.EmptyNone, kit.check_an_empty_policy_says_so),
    (bad.WritesFacts, RANDOM),
    (RemembersOldTenancy, kit.check_an_evicted_block_may_return),
    (CandidateWhenAdmitted, kit.check_an_empty_policy_says_so),
    (KeepsDroppedBlocks, kit.check_dropped_blocks_are_forgotten),
    (SharesStateBetweenInstances, kit.check_two_instances_evict_alike),
    (RemembersEvictedIds, kit.check_contents_decide_and_not_ids),
    (ForgetsTheOrderOfHits, kit.check_contents_decide_and_not_ids),
    (SaysItIsAStack, kit.check_a_recency_stack_is_one),
    (ReadsTheTime, kit.check_a_score_that_reads_the_time_says_so),
    (RaisesBeyondBlock100, kit.check_a_large_pool),
    (ReportsItsCandidates, kit.check_facts_are_plain_and_change_nothing),
    (RaisesWhenAsked, kit.check_facts_are_plain_and_change_nothing),
    (ForgetsWhenAsked, kit.check_facts_are_plain_and_change_nothing),
    (SlowLru, kit.check_work_does_not_grow_with_the_pool),
    (ListLru, kit.check_work_does_not_grow_with_the_pool),
]


def name_of(value):
    """A readable test id."""
    if isinstance(value, partial):
        return f"{value.func.__name__}-{'-'.join(map(str, value.args))}"
    return value.__name__


@pytest.mark.parametrize("check", kit.eviction_checks, ids=name_of)
@pytest.mark.parametrize("policy", [ScoredLru, ScoredByAge], ids=name_of)
def test_a_policy_of_one_method_passes(policy, check):
    check(policy)


@pytest.mark.parametrize("check", [c for c in kit.eviction_checks if "work" not in c.__name__], ids=name_of)
@pytest.mark.parametrize("policy", [SlowLru, SlowFifo, bad.MostRecent, ListLru], ids=name_of)
def test_slow_but_right_policies_fail_nothing_but_the_scaling_check(policy, check):
    check(policy)


def test_a_list_that_is_kept_is_named_as_such():
    with pytest.raises(Violation, match="kept the list it was handed"):
        RANDOM(bad.KeepsLists)


@pytest.mark.parametrize(("mutant", "check"), MUTANTS, ids=name_of)
def test_the_kit_catches(mutant, check):
    SHARED_STATE.clear()
    with pytest.raises(Violation):
        check(mutant)
