"""Faults that engines shipped in their tiers."""

from __future__ import annotations

import numpy as np
import pytest
from fake_engines import make_engine
from replay_helpers import flushed, workload
from stepped_worker import load, stepped, store
from tier_helpers import tier_maker

from framework.engine.executors.replay import ReplayExecutor
from framework.registry.components import build_allocator
from framework.sampling import Sampling
from framework_builtin.eviction.lru import Lru
from framework_cache_only.reference import replay
from framework_tiers.counted import CountedTiers
from framework_tiers.engine_tiers import EngineTiers
from framework_tiers.placement import TierSetup
from framework_tiers.rules import OnEviction, OnSecondHit, WriteThrough
from framework_tiers.tier import Tier
from framework_tiers.tiering import Tiering
from framework_tiers.transfers import Link, LinkTransfers


def tier_after(prompts: list[list[int]], rule: Tiering, pool: int, blocks: int) -> Tier:
    """The tier below the pool after a cache-only replay, LRU in both."""
    paths = workload(prompts)
    below = CountedTiers(paths, [(blocks, Lru())], rule)
    replay(paths, Lru(), pool, below=below)
    below.lower.check()
    return below.lower.tiers[0]


GATES = [OnSecondHit, WriteThrough, OnEviction]


def test_cold_content_is_not_written() -> None:
    """Prompts that nobody repeats leave the tier alone: what is stored and never read wears a disk, fills a link."""
    tier = tier_after([[number, number, number] for number in range(100)], OnSecondHit(), 10, 20)
    assert tier.num_unread <= 10, f"{tier.num_unread} blocks were written and never read"


@pytest.mark.parametrize("rule", GATES)
def test_content_used_a_few_times_is_found(rule: type[Tiering]) -> None:
    """A prompt used seven times, others in between, is found below the pool before its last use."""
    tier = tier_after(flushed([1, 2, 3], 7, pool=4), rule(), 4, 40)
    assert tier.counts.hits >= 3, "the gate never fired"


@pytest.mark.parametrize("rule", GATES)
def test_uses_behind_a_miss_count(rule: type[Tiering]) -> None:
    """A prompt that is always evicted before it comes again is stored all the same."""
    tier = tier_after(flushed([1, 2, 3], 6, pool=4), rule(), 4, 8)
    assert tier.counts.stored >= 3, "the threshold starved: no use was ever counted"


@pytest.mark.parametrize("rule", GATES[1:])
def test_a_prefix_seen_once_is_found(rule: type[Tiering]) -> None:
    """Its second use hits all of it below the pool."""
    tier = tier_after(flushed([1, 2, 3], 2, pool=4), rule(), 4, 40)
    assert tier.counts.hits == 3, "what was seen for the first time was lost"


def test_no_more_is_evicted_than_room_is_needed() -> None:
    """A tier with room for all of eight prompts but one block keeps them, and first tokens come after a load.

    The pool has room for one prompt of three blocks; a step takes a second a block, and the link is fast.
    """
    built = build_allocator("prefix_cow", "lru", "sha256", num_blocks=4, block_size=4, max_model_len=16)
    executor = ReplayExecutor(lambda step, rows: 1.0 if step.num_tokens > 4 else 0.1)
    engine = make_engine(
        built, executor, max_model_len=16, max_batch_tokens=64, virtual_clock=True,
        tiers=tier_maker(lambda: TierSetup(
            tiers=[(8 * 3, Lru())],
            rule=OnEviction(exclusive=False),
            transfers=LinkTransfers([Link(operation_s=0.01)], 8, executor.now, executor.wait_until),
            holds_kv=[True],
            block_bytes=8,
        )),
    )  # fmt: skip
    first_tokens = []
    for turn in range(4):
        for number in range(8):
            asked = engine.executor.now()
            request = engine.submit([100 * number + at for at in range(13)], Sampling(max_tokens=1))
            engine.run()
            if turn:
                first_tokens.append(request.first_token_s - asked)
    assert float(np.median(first_tokens)) < 0.2, f"first tokens after {np.median(first_tokens):.2f} s"
    assert isinstance(engine.state.tiers, EngineTiers)
    assert not engine.state.tiers.placement.lower.tiers[0].counts.evicted, "evicted from a tier that is not full"


def test_stores_go_on_under_a_stream_of_loads() -> None:
    """Within a few loads, however many more are asked for."""
    moves = stepped()[0]
    moves.submit([store("a", 1)])
    moves.step()
    moves.submit([store("b", 1)])
    done: list[str] = []
    for _ in range(50):
        moves.submit([load("a", 1)])
        done += moves.step()
    assert "b to 1" in done[:10], "0 bytes were stored in all this time"


def test_a_load_does_not_wait_for_the_stores_before_it() -> None:
    """A request that waits for its blocks has them after one store at most, whatever was evicted before."""
    moves = stepped()[0]
    moves.submit([store("a", 1)])
    moves.step()
    for number in range(30):
        moves.submit([store(f"evicted {number}", 1)])
    moves.submit([load("a", 1)])
    done = [name for _ in range(2) for name in moves.step()]
    assert "a to 0" in done, "the load waits behind 30 stores"
