"""Conformance kit of tiering rules: plain answers, the same each time, that store what is used often.

`tiering_checks` are plain functions `check(make)`, cheap first; `make()` builds a fresh rule. What the framework does
with a rule's answers is its own tests' matter.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from framework.types import BlockHash
from framework_testing.rules import checks_of, need
from framework_tiers.tiering import Event, LoadOffer, TierBlock, Tiering

Make = Callable[[], Tiering]

EVENTS: tuple[Event, ...] = ("written", "used", "evicted")
OFTEN = 64
"""Uses after which content that a rule stores at all must have been stored."""


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


tiering_checks = checks_of(globals())
