"""Which replicas hold which blocks."""

from __future__ import annotations

import random

from framework.types import BlockHash
from framework_fleet.index import Holdings, SentBlocks

A, B, C, D = (BlockHash(letter.encode()) for letter in "abcd")


def test_a_match_is_the_leading_blocks_that_a_replica_holds() -> None:
    held = Holdings(3)
    held.add(0, [A, B, C])
    held.add(1, [A, C])
    assert held.matched([A, B, C, D]) == [3, 1, 0]
    held.remove(0, [A])
    assert held.matched([A, B, C]) == [0, 1, 0], "what follows a block that is gone matches nothing"
    held.remove(2, [A])
    held.add(0, [A])
    assert held.matched([A, B]) == [2, 1, 0]
    assert held.matched([]) == [0, 0, 0]
    held.drop(0)
    assert held.matched([A, B]) == [0, 1, 0]


def test_a_lower_tier_is_counted_on_from_what_lies_above() -> None:
    below = Holdings(2)
    below.add(0, [B, C])
    below.add(1, [A])
    assert below.matched([A, B, C], [1, 0]) == [3, 1]
    assert below.matched([A, B, C], [0, 0]) == [0, 1]


def test_many_replicas_match_as_a_set_for_each_would() -> None:
    draw = random.Random(7)
    keys = [BlockHash(bytes([at])) for at in range(12)]
    held, sets = Holdings(70), [set[BlockHash]() for _ in range(70)]
    for _ in range(3000):
        replica, key = draw.randrange(70), draw.choice(keys)
        if draw.random() < 0.6:
            held.add(replica, [key])
            sets[replica].add(key)
        else:
            held.remove(replica, [key])
            sets[replica].discard(key)
    path = draw.sample(keys, 6)
    meant = [next((at for at, key in enumerate(path) if key not in one), len(path)) for one in sets]
    assert held.matched(path) == meant


def test_a_guess_forgets_the_least_recently_sent_and_the_end_of_a_prompt_before_its_beginning() -> None:
    guess = SentBlocks(num_blocks=3)
    guess.sent(0, [A, B, C], 0.0)
    guess.sent(0, [D], 1.0)
    assert (guess.matched(0, [A, B, C], 1.0), guess.matched(0, [D], 1.0)) == (2, 1)
    assert guess.matched(1, [A], 1.0) == 0
    guess.drop(0)
    assert guess.matched(0, [A], 1.0) == 0


def test_a_guess_is_forgotten_with_time() -> None:
    guess = SentBlocks(ttl_s=10.0)
    guess.sent(0, [A, B], 0.0)
    guess.sent(0, [A], 5.0)
    assert guess.matched(0, [A, B], 10.0) == 2
    assert guess.matched(0, [A, B], 11.0) == 1
    assert guess.matched(0, [A, B], 16.0) == 0
