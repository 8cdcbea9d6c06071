"""Blocks are conserved and counted in the tiers below the pool, whatever is asked, answered and pinned."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from framework.interfaces.eviction import BlockView
from framework.types import UNKNOWN_REQUEST, BlockHash, BlockId
from framework_builtin.eviction.lru import Lru
from framework_builtin.eviction.s3fifo import S3Fifo
from framework_builtin.eviction.sieve import Sieve
from framework_tiers.movement import LowerTiers
from framework_tiers.tier import Tier
from framework_tiers.tiering import Event, LoadOffer, TierBlock, Tiering

Node = tuple[int, ...]


class Tree:
    """What is known of nodes named by their path from the root."""

    def __init__(self) -> None:
        self.last: dict[Node, int] = {}
        self.counts: dict[Node, int] = {}
        self.name = lambda key: BlockHash(bytes(key))
        self.depth = lambda key: len(key) - 1
        self.num_tokens = lambda key: 16 * len(key)
        self.parent = lambda key: key[:-1]
        self.partial = lambda key: False
        self.tenant = lambda key: 0
        self.last_use, self.uses = self.last.__getitem__, self.counts.__getitem__
        self.next_use = lambda key: float("inf")
        self.last_request = lambda key: UNKNOWN_REQUEST


class Erratic(Tiering):
    """Answers by a coin, of the events that it was made for."""

    def __init__(self, draw: random.Random, exclusive: bool) -> None:
        self.draw, self.exclusive = draw, exclusive
        self.chance = {event: draw.random() for event in ("written", "used", "evicted")}

    def store(self, block: TierBlock, event: Event, now: float) -> bool:
        assert block.uses > 0
        return self.draw.random() < self.chance[event]

    def load(self, offer: LoadOffer, now: float) -> int:
        return self.draw.randint(0, len(offer.tiers))


class Counts(Lru):
    """Counts the hits of each block since it was admitted."""

    def attach(self, view: BlockView) -> None:
        super().attach(view)
        self.view, self.found = view, dict[int, int]()

    def admit(self, blocks: Sequence[BlockId], now: float) -> None:
        super().admit(blocks, now)
        self.found.update(dict.fromkeys(blocks, 0))

    def hit(self, blocks: Sequence[BlockId], now: float) -> None:
        super().hit(blocks, now)
        for block in blocks:
            self.found[block] += 1

    def evicted(self, block: BlockId, now: float) -> None:
        super().evicted(block, now)
        assert self.view.hits[block] == self.found.pop(block), block


@pytest.mark.parametrize(
    ("seed", "operations"),
    [
        *((seed, 2_000) for seed in range(3)),
        pytest.param(99, 1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_every_block_stored_was_evicted_or_left_or_lies_there(seed: int, operations: int) -> None:
    draw, tree = random.Random(seed), Tree()
    policies = [Counts(), S3Fifo(), Sieve()]
    tiers = [Tier(n, draw.randint(1, 30), policy, tree) for n, policy in enumerate(policies, start=1)]
    lower = LowerTiers(tiers, Erratic(draw, draw.random() < 0.5), tree)
    pool: dict[Node, None] = {}
    done = now = loaded = 0
    while done < operations:
        now += 1
        prompt = tuple(draw.randrange(3) for _ in range(draw.randint(1, 6)))
        path = [prompt[: depth + 1] for depth in range(len(prompt))]
        places = lower.find(path, [node in pool for node in path], now)
        assert all(
            node in pool if not place else node in tiers[place - 1] for node, place in zip(path, places, strict=False)
        )
        for node in path:
            tree.last[node], tree.counts[node] = now, tree.counts.get(node, 0) + 1
        lower.begin(path, places, now)
        loaded += sum(map(bool, places))
        used = [(tier, node) for tier in tiers for node in path if node in tier]
        others = [node for node in pool if node not in path]
        for node in draw.sample(others, draw.randint(0, min(6, len(others)))):
            del pool[node]
            lower.evicted(node, now)
            done += 1
        written = {node for node in path if node not in pool}
        pool.update(dict.fromkeys(path))
        lower.settle(path, written, now)
        assert all(node in tier for tier, node in used), "what a request uses lies there until it ends"
        lower.end(now)
        done += len(path)
        if operations <= 2_000 or now % 1_000 == 0:
            lower.check()
    lower.check()
    assert sum(tier.counts.hits for tier in tiers) == loaded > 0
    assert all(tier.counts.peak <= tier.num_blocks for tier in tiers)
    for tier, below in itertools.pairwise(tiers):
        assert tier.counts.read == tier.counts.hits + below.counts.stored, "what is stored below is read here"
