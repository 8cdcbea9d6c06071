"""Faults that engines shipped in their tiers: each check holds for the sound rule and fails for the faulty one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_engines import make_engine
from faulty_tiering import UntilTheFirstMiss
from replay_helpers import flushed, workload
from stepped_worker import Stepped, load, stepped, store

from framework.engine.engine import Engine
from framework.engine.executors.replay import ReplayExecutor
from framework.engine.tiers.engine_tiers import tier_maker
from framework.engine.tiers.placement import TierSetup
from framework.interfaces.tiering import Event, TierBlock, Tiering
from framework.registry.components import build_allocator
from framework.replay.reference import replay
from framework.replay.tiers import ReplayTiers, TierSpec
from framework.sampling import Sampling
from framework.tiers.movement import LowerTiers
from framework.tiers.tier import Tier
from framework.tiers.transfers import Link, LinkTransfers
from framework_builtin.eviction.lru import Lru
from framework_builtin.tiering.on_eviction import OnEviction
from framework_builtin.tiering.on_second_hit import OnSecondHit
from framework_builtin.tiering.write_through import WriteThrough


def tier_after(prompts: list[list[int]], rule: Tiering, pool: int, blocks: int) -> Tier:
    """The tier below the pool after a cache-only replay, LRU in both."""
    paths = workload(prompts)
    below = ReplayTiers(paths, [TierSpec(blocks, Lru())], rule)
    replay(paths, Lru(), pool, below=below)
    below.lower.check()
    return below.lower.tiers[0]


# The checks


def cold_content_is_not_written(make: Callable[[], Any]) -> None:
    """Prompts that nobody repeats leave the tier alone: what is stored and never read wears a disk, fills a link."""
    tier = tier_after([[number, number, number] for number in range(100)], make(), 10, 20)
    assert tier.num_unread <= 10, f"{tier.num_unread} blocks were written and never read"


def content_used_a_few_times_is_found(make: Callable[[], Any]) -> None:
    """A prompt used seven times, others in between, is found below the pool before its last use."""
    tier = tier_after(flushed([1, 2, 3], 7, pool=4), make(), 4, 40)
    assert tier.counts.hits >= 3, "the gate never fired"


def uses_behind_a_miss_count(make: Callable[[], Any]) -> None:
    """A prompt that is always evicted before it comes again is stored all the same."""
    tier = tier_after(flushed([1, 2, 3], 6, pool=4), make(), 4, 8)
    assert tier.counts.stored >= 3, "the threshold starved: no use was ever counted"


def a_prefix_seen_once_is_found(make: Callable[[], Any]) -> None:
    """Its second use hits all of it below the pool."""
    tier = tier_after(flushed([1, 2, 3], 2, pool=4), make(), 4, 40)
    assert tier.counts.hits == 3, "what was seen for the first time was lost"


def no_more_is_evicted_than_room_is_needed(make: Callable[[], Any]) -> None:
    """A tier with room for all of eight prompts but one block keeps them, and first tokens come after a load."""
    kind = make()
    room = LowerTiers._make_room
    LowerTiers._make_room = kind  # type: ignore[method-assign]
    try:
        engine, tiers = replayed(blocks=8 * 3)
        first_tokens = []
        for turn in range(4):
            for number in range(8):
                asked = engine.executor.now()
                request = engine.submit([100 * number + at for at in range(13)], Sampling(max_tokens=1))
                engine.run()
                assert request.first_token_s is not None
                if turn:
                    first_tokens.append(request.first_token_s - asked)
        tier = tiers.placement.lower.tiers[0]
        assert float(np.median(first_tokens)) < 0.2, f"first tokens after {np.median(first_tokens):.2f} s"
        assert not tier.counts.evicted, "evicted from a tier that is not full"
    finally:
        LowerTiers._make_room = room  # type: ignore[method-assign]


def stores_go_on_under_a_stream_of_loads(make: Callable[[], Any]) -> None:
    """Within a few loads, however many more are asked for."""
    moves = stepped(make())[0]
    moves.submit([store("a", 1)])
    moves.step()
    moves.submit([store("b", 1)])
    done: list[str] = []
    for _ in range(50):
        moves.submit([load("a", 1)])
        done += moves.step()
    assert "b to 1" in done[:10], "0 bytes were stored in all this time"


def a_load_does_not_wait_for_the_stores_before_it(make: Callable[[], Any]) -> None:
    """A request that waits for its blocks has them after one store at most, whatever was evicted before."""
    moves = stepped(make())[0]
    moves.submit([store("a", 1)])
    moves.step()
    for number in range(30):
        moves.submit([store(f"evicted {number}", 1)])
    moves.submit([load("a", 1)])
    done = [name for _ in range(2) for name in moves.step()]
    assert "a to 0" in done, "the load waits behind 30 stores"


# What they are tried on


class Unseen(Tiering):
    """Stores only what a request found: a prefix is lost unless it is used twice while it lies in the pool."""

    def store(self, block: TierBlock, event: Event, now: float) -> bool:
        return event == "used"


_make_room = LowerTiers._make_room


def evicts_half(self: LowerTiers, tier: Tier, now: float) -> bool:
    """Makes room for many while it makes room for one."""
    while len(tier) > tier.num_blocks // 2 and (victim := tier.victim(now)) is not None:
        if self._moves is not None:
            self._moves.remove(victim, tier.number)
    return _make_room(self, tier, now)


class LoadsAlways(Stepped):
    """Whoever waits to be stored waits until nobody loads."""

    def _must_wait(self, load: Any) -> bool:
        return False


class FirstIn(Stepped):
    """First in, first out: a load waits for all that was asked for before it."""

    def _must_wait(self, load: Any) -> bool:
        return True


def replayed(blocks: int) -> tuple[Engine, Any]:
    """An engine with a pool for one prompt of three blocks, a step of a second a block, and a fast link."""
    built = build_allocator("prefix_cow", "lru", "sha256", num_blocks=4, block_size=4, max_model_len=16)
    executor = ReplayExecutor(lambda step, rows: 1.0 if step.num_tokens > 4 else 0.1)
    engine = make_engine(
        built, executor, max_model_len=16, max_batch_tokens=64, virtual_clock=True,
        tiers=tier_maker(lambda: TierSetup(
            tiers=[(blocks, Lru())],
            rule=OnEviction(exclusive=False),
            transfers=LinkTransfers([Link(operation_s=0.01)], 8, executor.now, executor.wait_until),
            holds_kv=[True],
            block_bytes=8,
        )),
    )  # fmt: skip
    return engine, engine.state.tiers


FAULTS: dict[str, tuple[Callable[[Callable[[], Any]], None], list[Callable[[], Any]], Callable[[], Any]]] = {
    "write-through floods a tier with cold blocks": (cold_content_is_not_written, [OnSecondHit], WriteThrough),
    "a frequency gate of 8 never fires below it": (
        content_used_a_few_times_is_found, [OnSecondHit, WriteThrough, OnEviction], lambda: OnSecondHit(uses=8),
    ),
    "a threshold starves, because lookups stop at the first miss": (
        uses_behind_a_miss_count, [OnSecondHit, WriteThrough, OnEviction], UntilTheFirstMiss,
    ),
    "first-seen prefixes are lost": (a_prefix_seen_once_is_found, [WriteThrough, OnEviction], Unseen),
    "a tier evicts more than it needs room for": (
        no_more_is_evicted_than_room_is_needed, [lambda: _make_room], lambda: evicts_half,
    ),
    "a drain stores nothing while there are loads": (
        stores_go_on_under_a_stream_of_loads, [lambda: Stepped], lambda: LoadsAlways,
    ),
    "a load waits for all stores before it": (
        a_load_does_not_wait_for_the_stores_before_it, [lambda: Stepped], lambda: FirstIn,
    ),
}  # fmt: skip
"""Fault -> its check, what is sound, what is faulty."""


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_sound_passes(fault: str) -> None:
    check, sound, _ = FAULTS[fault]
    for make in sound:
        check(make)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_caught(fault: str) -> None:
    check, _, faulty = FAULTS[fault]
    with pytest.raises(AssertionError):
        check(faulty)
