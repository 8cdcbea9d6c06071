"""A policy with columns of facts that a test sets."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from framework.errors import NoCandidate
from framework.interfaces.eviction import BlockView, EvictionPolicy

SIZE = 40


@dataclass
class Facts:
    """Columns a test may write, and the policy that reads them."""

    policy: EvictionPolicy
    depth: array = field(default_factory=lambda: array("i", [0]) * SIZE)
    admitted: array = field(default_factory=lambda: array("q", [0]) * SIZE)
    last_access: array = field(default_factory=lambda: array("q", [0]) * SIZE)

    def __post_init__(self) -> None:
        zero = array("i", [0]) * SIZE
        self.policy.attach(
            BlockView(
                depth=self.depth, num_tokens=zero, admitted=self.admitted, last_access=self.last_access, hits=zero,
                priority=zero, tenant=zero, children=zero, next_use=zero, key=[None] * SIZE,
            )
        )  # fmt: skip


def drain(policy: EvictionPolicy) -> list[int]:
    order = []
    while True:
        try:
            block = policy.victim(0.0)
        except NoCandidate:
            return order
        assert policy.victim(0.0) == block, "asking twice changed the answer"
        policy.evicted(block, 0.0)
        order.append(block)
