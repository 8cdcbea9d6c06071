"""Conformance kit of tiering rules: plain answers, the same each time, that leave every block accounted for.

`tiering_checks` are plain functions `check(make)`, cheap first; `make()` builds a fresh rule. The replays are small and
drawn from fixed seeds.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from framework.guard.tiering import GuardedTiering
from framework.interfaces.eviction import Block, ScoredPolicy
from framework.interfaces.tiering import Event, LoadOffer, TierBlock, Tiering
from framework.interfaces.workload import WorkloadRequest
from framework.replay.paths import RequestPaths, build_paths
from framework.replay.reference import replay
from framework.replay.tiers import ReplayTiers, TierSpec
from framework.testing.rules import need
from framework.types import BlockHash

Make = Callable[[], Tiering]

EVENTS: tuple[Event, ...] = ("written", "used", "evicted")
OFTEN = 64
"""Uses after which content that a rule stores at all must have been stored."""


class _Lru(ScoredPolicy):
    def score(self, block: Block, now: float) -> int:
        return block.last_access


def _block(number: int, *, tier: int = 0, uses: int = 1, depth: int = 0) -> TierBlock:
    return TierBlock(BlockHash(number.to_bytes(8, "little")), tier, depth, 16 * (depth + 1), uses)


def _history(seed: int, length: int = 400) -> list[tuple[TierBlock, Event]]:
    """Questions in the order in which contents live: written, used, evicted, written again."""
    draw, lying, uses = random.Random(seed), set[int](), dict[int, int]()
    asked: list[tuple[TierBlock, Event]] = []
    for _ in range(length):
        number = draw.randrange(24)
        if number in lying and draw.random() < 0.4:
            lying.remove(number)
            asked.append((_block(number, uses=uses[number], depth=number % 5), "evicted"))
            continue
        uses[number] = uses.get(number, 0) + 1
        asked.append((_block(number, uses=uses[number], depth=number % 5), "used" if number in lying else "written"))
        lying.add(number)
    return asked


def check_answers_are_bools(make: Make) -> None:
    """`store` answers True or False to every question; `exclusive` is one of them as well."""
    rule = make()
    need(rule, type(rule.exclusive) is bool, "exclusive must be a bool", rule.exclusive)
    for now, (block, event) in enumerate(_history(0)):
        answer: Any = rule.store(block, event, float(now))
        need(rule, type(answer) is bool, f"store must return a bool, returned {answer!r} for", block)


def check_loads_are_part_of_the_offer(make: Make) -> None:
    """`load` takes 0 to all of the blocks offered, whether times are known or not."""
    rule = make()
    for count in range(1, 9):
        times = tuple(0.01 * (number + 1) for number in range(count))
        for load, recompute in ((None, None), (times, None), (None, times), (times, times)):
            tokens = tuple(range(32, 32 + 16 * count, 16))
            tiers = tuple(number % 3 for number in range(1, count + 1))
            answer: Any = rule.load(LoadOffer(tiers, tokens, 16, 16 * (count + 3), load, recompute), 1.0)
            need(rule, type(answer) is int and 0 <= answer <= count, f"load must return 0 to {count}", answer)


def check_prefetches_are_part_of_the_offer(make: Make) -> None:
    """`prefetch` takes 0 to all of the blocks offered."""
    rule = make()
    for count in range(1, 9):
        tokens = tuple(range(32, 32 + 16 * count, 16))
        answer: Any = rule.prefetch(LoadOffer((2,) * count, tokens, 16, 16 * (count + 3)), 1.0)
        need(rule, type(answer) is int and 0 <= answer <= count, f"prefetch must return 0 to {count}", answer)


def check_equal_histories_get_equal_answers(make: Make) -> None:
    """Two fresh rules answer alike: no clock, no chance, nothing left from another instance."""
    for seed in range(4):
        first, second = make(), make()
        for now, (block, event) in enumerate(_history(seed)):
            answers = first.store(block, event, now), second.store(block, event, now)
            need(first, answers[0] == answers[1], f"two instances answered {answers} to the same question", block)


def check_content_used_often_is_stored(make: Make) -> None:
    """Unless a rule stores nothing at all, content that is used and evicted by turns is stored within 64 uses.

    A threshold above what is ever counted never fires, and counts that an eviction forgets begin anew each time: both
    leave the tier empty.
    """
    probe = make()
    if not any(probe.store(block, event, now) for now, (block, event) in enumerate(_history(1, 4000))):
        return
    rule = make()
    stored = False
    for uses in range(1, OFTEN + 1):
        for event in ("written", "evicted"):
            stored |= rule.store(_block(7, uses=uses), event, float(uses))
    need(rule, stored, f"content used {OFTEN} times, and evicted in between, was never stored, though others are")


def check_blocks_are_conserved(make: Make) -> None:
    """In replays over one, two and three small tiers: every block stored was evicted, dropped, or is still there."""
    for seed in range(6):
        paths = _paths(seed)
        sizes = [(3 + seed,), (4, 7), (1, 2, 30)][seed % 3]
        below = ReplayTiers(paths, [TierSpec(size, _Lru()) for size in sizes], make())
        found = replay(paths, _Lru(), 6, below=below)
        below.lower.check()
        held = sum(sum(each) for each in below.request_hits)
        need(make(), held == found.hit_blocks, "hits by tier do not add up", (held, found.hit_blocks))


def check_the_pool_hits_what_it_hits_alone(make: Make) -> None:
    """What lies below never changes what the pool holds, nor lowers what is hit in all."""
    for seed in range(6):
        paths = _paths(seed)
        alone = replay(paths, _Lru(), 8)
        below = ReplayTiers(paths, [TierSpec(16, _Lru())], make())
        found = replay(paths, _Lru(), 8, below=below)
        need(make(), found.hit_blocks >= alone.hit_blocks, "fewer hits than without tiers", found)
        need(make(), found.evictions == alone.evictions, "the pool evicted other blocks", found)


def check_hits_are_of_what_was_stored(make: Make) -> None:
    """A slow second model, driven by the same answers, finds the same hits in a pool and one tier under LRU."""
    for seed in range(6):
        paths = _paths(seed)
        rule = make()
        below = ReplayTiers(paths, [TierSpec(9, _Lru())], rule)
        replay(paths, _Lru(), 12, below=below)
        expected = slow_hits(paths, make(), 12, 9)
        need(rule, below.request_hits == expected, f"seed {seed}: hits by tier", (below.request_hits, expected))


def slow_hits(paths: RequestPaths, rule: Tiering, pool_size: int, tier_size: int) -> list[tuple[int, ...]]:
    """Hit blocks of each request in (pool, tier), both LRU, deepest first: by the definition, with ordered dicts.

    Every request must fit in the pool and in the tier.
    """
    guarded, uses = GuardedTiering(rule), dict[int, int]()
    pool: OrderedDict[int, None] = OrderedDict()
    tier: OrderedDict[int, tuple[int, int]] = OrderedDict()
    last = dict[int, int]()
    depths, tokens = paths.depths.tolist(), paths.node_tokens.tolist()
    result: list[tuple[int, ...]] = []

    def offer(node: int, event: Event, now: int, used: Sequence[int]) -> None:
        facts = TierBlock(BlockHash(node.to_bytes(8, "little")), 0, depths[node], tokens[node], uses[node])
        if node in tier or not guarded.store(facts, event, now):
            return
        if len(tier) == tier_size:
            others = [key for key in tier if key not in used]
            if not others:
                return
            del tier[min(others, key=lambda key: (last[key], -depths[key]))]
        tier[node] = (0, 0)

    for number, path in enumerate(paths.walk()):
        now, places = number + 1, list[int]()
        for node in path:
            if node not in pool and node not in tier:
                break
            places.append(0 if node in pool else 1)
        if guarded.wants_load and any(places):
            first = places.index(1)
            ends = tuple(tokens[node] for node in path[first : len(places)])
            ahead = tokens[path[first - 1]] if first else 0
            places = places[
                : first + guarded.load(LoadOffer(tuple(places[first:]), ends, ahead, tokens[path[-1]]), now)
            ]
        result.append((places.count(0), places.count(1)))
        for node in path:
            uses[node], last[node] = uses.get(node, 0) + 1, now
            if guarded.exclusive:
                tier.pop(node, None)
        new = [node for node in path if node not in pool]
        for _ in range(len(pool) + len(new) - pool_size):
            victim = min((key for key in pool if key not in path), key=lambda key: (last[key], -depths[key]))
            del pool[victim]
            offer(victim, "evicted", now, path)
        pool.update(dict.fromkeys(new))
        for node in path:
            offer(node, "written" if node in new else "used", now, path)
    return result


def _paths(seed: int, count: int = 120) -> RequestPaths:
    """Requests over a small tree of up to 5 blocks each."""
    draw = random.Random(seed)

    def request(number: int) -> WorkloadRequest:
        ids = np.array([draw.randrange(3) for _ in range(draw.randint(1, 5))], dtype=np.int64)
        return WorkloadRequest(
            arrival_s=float(number), input_tokens=4 * len(ids), output_tokens=1, block_ids=ids, block_tokens=4
        )

    return build_paths(request(number) for number in range(count))


tiering_checks = (
    check_answers_are_bools,
    check_loads_are_part_of_the_offer,
    check_prefetches_are_part_of_the_offer,
    check_equal_histories_get_equal_answers,
    check_content_used_often_is_stored,
    check_blocks_are_conserved,
    check_the_pool_hits_what_it_hits_alone,
    check_hits_are_of_what_was_stored,
)
