"""Short histories for eviction policies: flat strings of one-block requests, trees, and candidates with given facts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from replay_helpers import workload

from framework.errors import NoCandidate
from framework.interfaces.eviction import BlockView, EvictionPolicy
from framework.types import BlockHash, BlockId
from framework_cache_only.reference import replay


def evicted(policy: EvictionPolicy, requests: Sequence[Sequence[int]], capacity: int, **options: Any) -> list[int]:
    """Last id of each block evicted, in order; requests must name each block by an id of its own."""
    names: list[int] = []
    for ids in requests:
        names.extend(block for block in ids if block not in names)
    out: list[int] = []
    replay(workload(requests), policy, capacity, on_evict=lambda _, node: out.append(names[node]), **options)
    return out


def flat(text: str) -> list[list[int]]:
    """One request of one block a letter."""
    return [[ord(letter)] for letter in text]


def victims(policy: EvictionPolicy, text: str, capacity: int) -> str:
    return "".join(map(chr, evicted(policy, flat(text), capacity)))


class Pool:
    """A few candidates with facts that a test sets."""

    def __init__(self, policy: EvictionPolicy, num_blocks: int = 8) -> None:
        rows = num_blocks + 1
        self.priority, self.last_access, self.children = ([0] * rows for _ in range(3))
        zero, self.policy = [0] * rows, policy
        policy.attach(
            BlockView(
                depth=zero, num_tokens=zero, admitted=zero, last_access=self.last_access, hits=zero,
                priority=self.priority, tenant=zero, children=self.children, next_use=[float("inf")] * rows,
                key=[BlockHash(bytes([i])) for i in range(rows)],
            )
        )  # fmt: skip

    def offer(self, block: int, now: float, priority: int = 0) -> None:
        self.priority[block], self.last_access[block] = priority, int(now)
        self.policy.admit([BlockId(block)], now)
        self.policy.release([BlockId(block)], now)

    def offer_each(self, *blocks: int) -> None:
        """One a second."""
        for time, block in enumerate(blocks):
            self.offer(block, float(time))

    def use(self, block: int, now: float) -> None:
        self.policy.pin([BlockId(block)], now)
        self.policy.hit([BlockId(block)], now)
        self.policy.release([BlockId(block)], now)

    def drain(self, now: float) -> list[int]:
        order = []
        while True:
            try:
                block = self.policy.victim(now)
            except NoCandidate:
                return order
            assert self.policy.victim(now) == block, "asking twice changed the answer"
            self.policy.evicted(block, now)
            order.append(int(block))
