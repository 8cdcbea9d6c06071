"""Conformance kit of eviction policies.

`eviction_checks` are plain functions `check(make)`, cheap first; `make()` builds a fresh policy. A `Cache`
(framework.testing.eviction_cache) calls the policy as an allocator would and never breaks a rule itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import deepcopy
from random import Random
from types import FrameType
from typing import Any

from framework.interfaces.eviction import Block, BlockView, EvictionPolicy, ScoredPolicy
from framework.testing.driver import Violation
from framework.testing.eviction_cache import Cache, Column, Relabelled, Step
from framework.testing.facts import require_plain_facts
from framework.testing.histories import fail_shortest
from framework.testing.oracles.eviction import SlowLru
from framework.types import UNKNOWN_REQUEST, BlockId

Make = Callable[[], EvictionPolicy]


def random_steps(seed: int, num_steps: int = 40) -> list[Step]:
    """A history for `Cache.play`."""
    draw = Random(seed)
    names = draw.choices(("begin", "end", "evict", "advance"), (5, 4, 1, 1), k=num_steps)
    return [(name, draw.randrange(100), draw.randrange(100)) for name in names]


def evictions_of(policy: EvictionPolicy, history: list[Step], num_blocks: int) -> list[BlockId]:
    """What this policy evicts, in order, over a history and the drain after it."""
    cache = Cache(policy, num_blocks)
    cache.play(history)
    cache.drain()
    return cache.evictions


# The checks


def check_an_empty_policy_says_so(make: Make) -> None:
    """NoCandidate before anything was released, while all is in use, and after all was evicted."""
    cache = Cache(make(), 4)
    cache.nobody()
    cache.begin((0, 0, 0))
    cache.nobody()
    cache.drain()


def check_a_pinned_block_is_no_victim(make: Make) -> None:
    """Hit blocks leave the candidates, and come back when released."""
    cache = Cache(make(), 4)
    cache.begin((0, 0))
    cache.begin((1, 0))
    cache.end(0)
    cache.end(0)
    cache.begin((0, 0))
    cache.evict()
    cache.evict()
    cache.nobody()
    cache.drain()


def check_an_evicted_block_may_return(make: Make) -> None:
    """A block id that was evicted is reused for other content: nothing of the old one is left."""
    cache = Cache(make(), 2)
    for turn in range(6):
        cache.begin((turn, 0))
        cache.end(0)
    cache.drain()


def check_dropped_blocks_are_forgotten(make: Make) -> None:
    """A reset calls `evicted` for candidates and for blocks in use; none of them is ever named again."""
    cache = Cache(make(), 6)
    cache.begin((0, 0))
    cache.begin((1, 0))
    cache.end(0)
    for block in list(cache.path):
        cache.drop(block)
    cache.running, cache.requests, cache.free = [], [], [BlockId(block) for block in range(6, 0, -1)]
    cache.nobody()
    cache.begin((2, 0, 0))
    cache.end(0)
    cache.drain()


def check_contents_decide_and_not_ids(make: Make) -> None:
    """The same history with blocks that return under other ids: the same contents go, in the same order.

    A policy that remembers an id past `evicted`, or the order of a set of ids, fails. Ties that a ScoredPolicy breaks
    by lowest id are its contract: its ids keep their order.
    """
    labels = ("next",) if isinstance(make(), ScoredPolicy) else ("next", "any")
    for seed in range(12):

        def run(history: list[Step], num_slots: int = 2 + seed % 6) -> None:
            first = _relabelled(make(), history, num_slots, "same")
            for label in labels:
                other = _relabelled(make(), history, num_slots, label)
                other.need(
                    first.contents_evicted == other.contents_evicted,
                    "with blocks under other ids, other contents are evicted",
                    f"{first.contents_evicted}, then {other.contents_evicted}",
                )

        fail_shortest(run, random_steps(seed, 60))


def _relabelled(policy: EvictionPolicy, history: list[Step], num_slots: int, labels: str) -> Relabelled:
    cache = Relabelled(policy, num_slots, labels)
    cache.play(history)
    cache.drain()
    return cache


def check_a_recency_stack_is_one(make: Make) -> None:
    """A policy that declares `recency_stack` evicts what LRU evicts: hits and releases count, deepest block first."""
    if not make().recency_stack:
        return
    for seed in range(24):

        def run(history: list[Step], num_blocks: int = 2 + seed % 6) -> None:
            cache, lru = Cache(make(), num_blocks), Cache(SlowLru(), num_blocks)
            for one in (cache, lru):
                one.play(history)
                one.drain()
            cache.need(
                cache.contents_evicted == lru.contents_evicted,
                "it declares recency_stack and does not evict the least recently used block",
                f"{cache.contents_evicted}, LRU evicts {lru.contents_evicted}",
            )

        fail_shortest(run, random_steps(seed, 60))


def check_a_score_that_reads_the_time_says_so(make: Make) -> None:
    """Without `time_varying` a score is taken once, at `release`: what it takes from `now` would be out of date."""
    if not isinstance(make(), ScoredPolicy) or getattr(make(), "time_varying", False):
        return
    for seed in range(8):
        cache = Cache(make(), 6)
        cache.play(random_steps(seed))
        for block in sorted(cache.candidates):
            scores = []
            for later in (0.0, 1.0, 1000.0):
                policy: Any = deepcopy(cache.policy)  # a score may draw random numbers, or count
                facts = Block(policy.blocks)
                facts.id = block
                scores.append(policy.score(facts, cache.now + later))
            cache.need(
                scores[0] == scores[1] == scores[2],
                "the score changes with `now` while nothing happens to the block; set time_varying = True",
                f"block {block}: {scores}",
            )


def check_a_large_pool(make: Make) -> None:
    """Hundreds of blocks, published, hit, evicted and drained by the same rules as a few."""
    cache = Cache(make(), 160)
    for turn in range(200):
        cache.begin((turn % 70, turn % 3, turn % 2))
        if turn % 2:
            cache.end(turn)
        cache.now += turn % 5 == 0
    cache.drain()


def check_random_histories(make: Make) -> None:
    """Every rule, over 80 random legal histories; a failure shows the shortest."""
    for seed in range(80):
        num_blocks = 1 + seed % 9

        def run(history: list[Step], num_blocks: int = num_blocks) -> None:
            evictions_of(make(), history, num_blocks)

        fail_shortest(run, random_steps(seed))


def check_two_instances_evict_alike(make: Make) -> None:
    """Same seed, same history, same evictions, though the instances run side by side (invariant 12)."""
    for seed in range(12):

        def run(history: list[Step]) -> None:
            first, second = Cache(make(), 6), Cache(make(), 6)
            for step in history:
                for cache in (first, second):
                    cache.play([step])
            for cache in (first, second):
                cache.drain()
            first.need(first.evictions == second.evictions, "two instances evict differently",
                       f"{first.evictions}, {second.evictions}")  # fmt: skip

        fail_shortest(run, random_steps(seed))


def check_facts_are_plain_and_change_nothing(make: Make) -> None:
    """`facts` gives names to texts and finite numbers at any time; who is asked evicts as who is not."""
    history = random_steps(7, num_steps=60)
    policy = make()
    cache = Cache(policy, 5)
    require_plain_facts("eviction policy", policy)
    for step in history:
        cache.play([step])
        require_plain_facts("eviction policy", policy)
    cache.drain()
    unasked = evictions_of(make(), history, 5)
    cache.need(cache.evictions == unasked, "facts changed what is evicted", f"{cache.evictions}, else {unasked}")


def check_work_does_not_grow_with_the_pool(make: Make) -> None:
    """O(log n) an operation: 32 times the blocks may not cost 6 times the calls, reads and comparisons.

    Counts, not seconds. A policy that declares `time_varying` scores all candidates on each eviction and is let off.
    """
    policy = make()
    if getattr(policy, "time_varying", False):
        return
    few, many = _work(make(), 128), _work(make(), 4096)
    if many > 6 * few + 64:
        name = type(policy).__name__
        raise Violation(f"{name} does not scale: {few:.1f} operations a step at 128 blocks, {many:.1f} at 4096")


class CountedId(int):
    """A block id that counts how often it is compared."""

    compared = 0

    def _count(self) -> None:
        CountedId.compared += 1

    def __eq__(self, other: object) -> bool:
        self._count()
        return int(self) == other

    def __lt__(self, other: int) -> bool:
        self._count()
        return int(self) < int(other)

    def __gt__(self, other: int) -> bool:
        self._count()
        return int(self) > int(other)

    __hash__ = int.__hash__


def _work(policy: EvictionPolicy, num_blocks: int, rounds: int = 64) -> float:
    """Python calls, fact reads and id comparisons a step, when one block is evicted, reused and released at a time."""
    columns = {name: Column([0] * (num_blocks + 1)) for name in BlockView.__dataclass_fields__}
    columns["key"] = Column([b"%d" % block for block in range(num_blocks + 1)])
    columns["last_request"] = Column([UNKNOWN_REQUEST] * (num_blocks + 1))
    policy.attach(BlockView(**columns))
    ids: list[Any] = [CountedId(block) for block in range(num_blocks + 1)]
    for block in range(1, num_blocks + 1):
        columns["last_access"][block] = columns["admitted"][block] = block
        policy.admit([ids[block]], 0.0)
        policy.release([ids[block]], 0.0)
    calls, before = 0, sys.getprofile()

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    CountedId.compared = 0
    reads = sum(column.reads for column in columns.values())
    sys.setprofile(count)
    try:
        for turn in range(rounds):
            block = policy.victim(0.0)
            policy.evicted(block, 0.0)
            columns["last_access"][block] = columns["admitted"][block] = num_blocks + turn
            policy.admit([ids[block]], 0.0)
            policy.release([ids[block]], 0.0)
            middle = [ids[1 + (turn * 37) % num_blocks]]
            policy.pin(middle, 0.0)
            policy.hit(middle, 0.0)
            policy.release(middle, 0.0)
    finally:
        sys.setprofile(before)
    total = calls + CountedId.compared + sum(column.reads for column in columns.values()) - reads
    return total / rounds


eviction_checks = (
    check_an_empty_policy_says_so,
    check_a_pinned_block_is_no_victim,
    check_an_evicted_block_may_return,
    check_dropped_blocks_are_forgotten,
    check_a_score_that_reads_the_time_says_so,
    check_random_histories,
    check_contents_decide_and_not_ids,
    check_a_recency_stack_is_one,
    check_two_instances_evict_alike,
    check_facts_are_plain_and_change_nothing,
    check_a_large_pool,
    check_work_does_not_grow_with_the_pool,
)
