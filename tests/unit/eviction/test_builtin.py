"""lru, fifo and random against orders recomputed from the facts, late releases included."""

from __future__ import annotations

import subprocess
import sys
from array import array
from collections import Counter
from dataclasses import dataclass, field, fields
from random import Random as Draw

import pytest

from framework.errors import NoCandidate, PluginError
from framework.interfaces.eviction import BlockView, EvictionPolicy, ScoredPolicy
from framework_builtin.eviction.fifo import Fifo
from framework_builtin.eviction.lru import Lru
from framework_builtin.eviction.random import Random

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


@pytest.mark.parametrize(("policy", "column"), [(Lru, "last_access"), (Fifo, "admitted")])
@pytest.mark.parametrize("late", [0.0, 0.3])
def test_the_order_is_the_key_then_deepest_first(policy: type[EvictionPolicy], column: str, late: float) -> None:
    draw = Draw(7)
    for _ in range(60):
        facts, access = Facts(policy()), 0
        candidates: set[int] = set()
        withheld: list[int] = []
        unused = list(range(1, SIZE))
        draw.shuffle(unused)
        while unused or draw.random() < 0.5:
            access += 1
            again = [b for b in sorted(candidates) if draw.random() < 0.1]
            if again:
                facts.policy.pin(again, 0.0)
                candidates -= set(again)
            new = [unused.pop() for _ in range(min(len(unused), draw.randint(1, 5)))]
            for depth, block in enumerate(new):
                facts.depth[block], facts.admitted[block] = depth, access
            if new:
                facts.policy.admit(new[::-1], 0.0)
            for block in [*again, *new]:
                facts.last_access[block] = access
            batch = sorted([*again, *new], key=lambda b: -facts.depth[b])
            held = [b for b in batch if draw.random() < late]
            batch = [b for b in batch if b not in held]
            if batch:
                facts.policy.release(batch, 0.0)
                candidates |= set(batch)
            withheld += held
            if withheld and draw.random() < 0.5:
                block = withheld.pop(draw.randrange(len(withheld)))
                facts.policy.release([block], 0.0)
                candidates.add(block)
        values = getattr(facts, column)
        expected = sorted((values[b], -facts.depth[b]) for b in candidates)
        order = drain(facts.policy)
        assert sorted(order) == sorted(candidates)
        assert [(values[b], -facts.depth[b]) for b in order] == expected


@pytest.mark.parametrize("policy", [Lru, Fifo, Random])
def test_an_empty_policy_says_that_it_holds_no_candidate(policy: type[EvictionPolicy]) -> None:
    facts = Facts(policy())
    with pytest.raises(NoCandidate):
        facts.policy.victim(0.0)
    facts.policy.admit([1], 0.0)
    facts.policy.evicted(1, 0.0)  # dropped by a reset while in use
    with pytest.raises(NoCandidate):
        facts.policy.victim(0.0)


@pytest.mark.parametrize("policy", [Lru, Fifo])
def test_blocks_used_again_and_again_leave_no_growing_queue(policy: type[EvictionPolicy]) -> None:
    facts = Facts(policy())
    for access in range(1, 5000):
        facts.last_access[1] = access
        facts.policy.release([1], 0.0)
        facts.policy.pin([1], 0.0)
    stored = len(getattr(facts.policy, "_queue", ())) + len(getattr(facts.policy, "_heap", ()))
    assert stored < 200, stored


def draws(seed: int) -> list[int]:
    facts = Facts(Random(seed))
    facts.policy.release(list(range(1, SIZE)), 0.0)
    facts.policy.pin([3, 7], 0.0)
    return drain(facts.policy)


def test_random_is_seeded_in_every_process() -> None:
    assert draws(1) == draws(1) != draws(2)
    assert sorted(draws(1)) == [b for b in range(1, SIZE) if b not in (3, 7)]
    code = (
        "from framework_builtin.eviction.random import Random\n"
        "from types import SimpleNamespace\n"
        "p = Random(1); p.attach(SimpleNamespace(depth=[0] * 40)); p.release(range(1, 40), 0); p.pin([3, 7], 0)\n"
        "out = []\n"
        "for _ in range(37): out.append(p.victim(0)); p.evicted(out[-1], 0)\n"
        "print(out)"
    )
    for hash_seed in ("0", "77"):
        env = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
        assert done.stdout.strip() == str(draws(1))


def test_random_is_uniform() -> None:
    counts: Counter[int] = Counter()
    facts = Facts(Random(5))
    facts.policy.release([1, 2, 3, 4], 0.0)
    for _ in range(4000):
        block = facts.policy.victim(0.0)
        counts[block] += 1
        facts.policy.evicted(block, 0.0)
        facts.policy.release([block], 0.0)
    assert all(850 < counts[block] < 1150 for block in (1, 2, 3, 4)), counts


def test_a_block_used_anew_at_another_depth_is_ranked_by_its_new_depth():
    """Its old entry has the same score, and lies in front until it is looked at."""

    class Flat(ScoredPolicy):
        def score(self, block, now):
            return 0

    depth = [0, 3, 1]
    view = BlockView(**{f.name: [0, 0, 0] for f in fields(BlockView) if f.name != "depth"}, depth=depth)
    policy = Flat()
    policy.attach(view)
    policy.admit([1], 0)
    policy.release([1], 0)
    assert policy.victims(1, 0) == [1]
    depth[1] = 0
    policy.admit([2, 1], 1)
    policy.release([2, 1], 1)
    assert policy.victims(2, 1) == [2, 1], "deepest first"


@pytest.mark.parametrize("time_varying", [False, True])
def test_a_score_that_is_no_number_is_refused(time_varying):
    class Wrong(ScoredPolicy):
        def score(self, block, now):
            return float("nan")

    Wrong.time_varying = time_varying
    policy = Wrong()
    policy.attach(BlockView(**{f.name: [0, 0, 0] for f in fields(BlockView)}))
    policy.admit([1], 0)
    with pytest.raises(PluginError, match=r"Wrong\.score gave nan for block 1"):
        policy.release([1], 0)
