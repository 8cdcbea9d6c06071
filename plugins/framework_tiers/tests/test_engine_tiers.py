"""Tiers in an engine: who waits for whom, what fails alone, and what is left after an interrupt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_engines import Heard, make_engine
from tier_helpers import tier_maker

from framework.engine.engine import Engine
from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.errors import PluginError
from framework.interfaces.allocator import CacheEvent
from framework.interfaces.observer import Call
from framework.registry.components import build_allocator
from framework.sampling import Sampling
from framework.types import BlockId
from framework_builtin.eviction.lru import Lru
from framework_tiers.engine_tiers import EngineTiers
from framework_tiers.placement import TierSetup
from framework_tiers.rules import LoadOrRecompute, OnEviction, WriteThrough
from framework_tiers.tiering import Event, LoadOffer, TierBlock, Tiering
from framework_tiers.transfers import Link, LinkTransfers

SIZE = 4
ONE = Sampling(max_tokens=1, ignore_eos=True)


def replayed(
    rule: Tiering,
    *,
    num_blocks: int = 4,
    counts: Sequence[int] = (64,),
    link: Link | None = None,
    links: Sequence[Link] = (),
    **options: Any,
) -> Engine:
    """An engine without a model, one virtual second a step; tiers behind one link each."""
    executor = ReplayExecutor(constant_step(1.0))

    def tiers() -> TierSetup:
        return TierSetup(
            tiers=[(count, Lru()) for count in counts],
            rule=rule,
            transfers=LinkTransfers(links or [link or Link()] * len(counts), 8, executor.now, executor.wait_until),
            holds_kv=[True] * len(counts),
            media=("CPU", "STORAGE")[: len(counts)],
            block_bytes=8,
        )

    built = build_allocator("prefix_cow", "lru", "sha256", num_blocks=num_blocks, block_size=SIZE, max_model_len=64)
    return make_engine(built, executor, max_model_len=64, virtual_clock=True, tiers=tier_maker(tiers), **options)


def below(engine: Engine) -> EngineTiers:
    assert engine.state.tiers is not None
    return engine.state.tiers


def prompt(first: int, blocks: int = 3) -> list[int]:
    return [*list(range(first, first + SIZE * blocks)), 7]


def serve(engine: Engine, *prompts: list[int]) -> list[Any]:
    """One after the other."""
    done = []
    for tokens in prompts:
        done.append(engine.submit(tokens, ONE))
        engine.run()
    engine.check()
    return done


def test_an_exclusive_tier_gives_up_what_was_loaded_and_an_inclusive_one_keeps_it() -> None:
    for exclusive in (True, False):
        engine = replayed(OnEviction(exclusive=exclusive))
        serve(engine, prompt(0), prompt(100), prompt(0))
        tier = below(engine).placement.lower.tiers[0]
        names = {key for key in below(engine).placement.pool if key in tier}
        assert len(names) == (0 if exclusive else 3)


def test_a_load_takes_the_time_of_its_link_and_holds_nobody_up() -> None:
    engine = replayed(OnEviction(), num_blocks=8, link=Link(bytes_per_s=1.0, operation_s=2.0))  # 8 s a block
    serve(engine, prompt(0), prompt(100), prompt(200), prompt(300))
    start = engine.executor.now()
    loading = engine.submit(prompt(0), ONE)
    others = [engine.submit([200 + number], ONE) for number in range(4)]
    engine.run()
    assert loading.load_s == pytest.approx(2.0 + 3 * 8.0)
    assert loading.first_token_s - start >= 26.0
    assert max(other.finished_s for other in others) - start <= 4.0, "others ran meanwhile"


def test_a_load_begins_while_a_row_is_free_and_holds_none_until_all_is_there() -> None:
    engine = replayed(OnEviction(), num_blocks=10, max_batch_requests=1, link=Link(operation_s=3.0))
    serve(engine, prompt(0), prompt(100), prompt(200), prompt(300))
    running = engine.submit([1], Sampling(max_tokens=4, ignore_eos=True))
    engine.step()
    waiting = engine.submit(prompt(0), ONE)
    engine.step()
    assert not below(engine).holding(), "as in vLLM, nothing is loaded while the only row is taken"
    while not running.status.ended:
        engine.step()
    engine.step()
    assert [seq.request for seq in below(engine).holding()] == [waiting]
    assert engine.state.rows.num_active == 0
    engine.run()
    assert waiting.num_loaded_tokens == 12


def test_contents_on_their_way_are_not_loaded_a_second_time() -> None:
    engine = replayed(OnEviction(), num_blocks=16, link=Link(operation_s=5.0))
    serve(engine, *(prompt(first) for first in range(0, 600, 100)))
    pair = [engine.submit([*prompt(0), number], ONE) for number in range(2)]
    engine.run()
    assert below(engine).num_loads == 1
    assert [request.num_cached_tokens for request in pair] == [12, 12]


def test_loads_are_promoted_through_the_tiers_where_the_rule_says_so() -> None:
    """Loaded from tier 2, a block is offered to tier 1 as written in the pool."""
    engine = replayed(WriteThrough(), counts=(3, 64))
    serve(engine, prompt(0), prompt(100), prompt(200))
    tiers = below(engine)
    first = tiers.placement.lower.tiers[0]
    before = set(first.block_of)
    serve(engine, prompt(0))
    assert tiers.summary()["tier2_hit_blocks"] == 3
    assert len(set(first.block_of) - before) == 3


class Breaks(OnEviction):
    def store(self, block: TierBlock, event: Event, now: float) -> bool:
        if now > 3:
            raise RuntimeError("out of ideas")
        return super().store(block, event, now)


class BreaksAnswer(OnEviction):
    def store(self, block: TierBlock, event: Event, now: float) -> bool:
        return 1  # type: ignore[return-value]


class BreaksLoad(OnEviction):
    def load(self, offer: LoadOffer, now: float) -> int:
        return 10**6


@pytest.mark.parametrize("rule", [Breaks, BreaksAnswer, BreaksLoad])
def test_a_rule_that_breaks_its_contract_ends_the_step_by_its_name(rule: Callable[[], Tiering]) -> None:
    engine = replayed(rule())
    with pytest.raises(
        (RuntimeError, PluginError), match=rf"tiering {rule.__name__}\.(store: (raised|must)|load: must)"
    ):
        serve(engine, *(prompt(100 * (number % 3)) for number in range(9)))
    assert engine.interrupted


def test_a_block_evicted_while_another_holds_its_content_takes_nothing_away() -> None:
    engine = replayed(OnEviction())
    serve(engine, prompt(0))
    placement = below(engine).placement
    key, block = next(iter(placement.pool.items()))
    placement.heard(Call("allocate"), [CacheEvent("evict", (BlockId(block + 1),), (key,))])
    placement.flush()
    assert placement.pool[key] == block
    assert key not in placement.lower.tiers[0]


def test_an_interrupt_under_a_load_is_mended_by_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = replayed(OnEviction())
    serve(engine, prompt(0), prompt(100))

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    for place in ("poll", "begin", "flush", "committed"):
        monkeypatch.setattr(EngineTiers, place, interrupt)
        engine.submit(prompt(0), ONE)
        with pytest.raises(KeyboardInterrupt):
            engine.run()
        monkeypatch.undo()
        assert engine.interrupted, place
        engine.reset(build_allocator("prefix_cow", "lru", "sha256", num_blocks=4, block_size=SIZE, max_model_len=64))
        serve(engine, prompt(0), prompt(100))


def test_equal_replays_move_the_same_blocks_at_the_same_times() -> None:
    def moved() -> list[Any]:
        lines: list[Any] = []
        engine = replayed(
            OnEviction(), link=Link(bytes_per_s=3.0, operation_s=0.5),
            log=lambda event, **facts: lines.append((event, sorted(facts.items()))),
        )  # fmt: skip
        draw = np.random.default_rng(0)
        for number in range(60):
            engine.submit(prompt(100 * int(draw.integers(6))), ONE, arrival_s=float(number))
        engine.run()
        return [lines, below(engine).summary(), engine.executor.now()]

    assert moved() == moved()


@pytest.mark.parametrize(("load_s", "loaded"), [(0.01, 3), (1.5, 0)], ids=["fast link", "slow link"])
def test_a_prompt_is_loaded_where_that_is_faster_and_computed_where_it_is_not(load_s: float, loaded: int) -> None:
    engine = replayed(LoadOrRecompute(), link=Link(bytes_per_s=8 / load_s))
    setup = below(engine).placement.setup
    below(engine).placement.setup = replace(setup, recompute_s=lambda cached, tokens: 0.2 * (tokens - cached))
    serve(engine, prompt(0), prompt(100))
    start, request = engine.executor.now(), engine.submit(prompt(0), ONE)
    engine.run()
    assert request.num_loaded_tokens == SIZE * loaded
    assert request.finished_s - start <= 1.0 + 3 * min(load_s, 0.8) + 1e-6


def test_the_first_blocks_are_loaded_and_the_rest_computed_where_that_is_soonest() -> None:
    offer = LoadOffer((1, 1, 1, 1), (16, 32, 48, 64), 0, 80, load_s=(1, 2, 6, 9), recompute_s=(2, 4, 6, 8))
    assert LoadOrRecompute().load(offer, 0.0) == 2
    assert LoadOrRecompute().load(replace(offer, load_s=(3, 5, 7, 9)), 0.0) == 0
    assert LoadOrRecompute().load(replace(offer, load_s=None), 0.0) == 4


def test_observers_are_given_what_each_tier_holds_at_every_step() -> None:
    """What was stored and not removed equals what can be loaded from each tier."""
    heard, holds = Heard(), {1: set[bytes](), 2: set[bytes]()}
    engine = replayed(WriteThrough(), num_blocks=6, counts=(5, 12), link=Link(operation_s=0.7), observers=(heard,))
    tiers, draw, seen, kept = below(engine), np.random.default_rng(1), 0, 0
    for _ in range(80):
        engine.submit(prompt(100 * int(draw.integers(7))), ONE)
        while engine.num_unfinished:
            engine.step()
            for move in heard.moves:
                kept += move.event == "kept"
                {"stored": holds[move.tier].add, "removed": holds[move.tier].discard, "kept": lambda key: None}[
                    move.event
                ](move.key)
                assert move.medium == ("CPU", "STORAGE")[move.tier - 1]
            heard.moves.clear()
            for tier in tiers.placement.lower.tiers:
                on_its_way = {copy.key for _, _, copy in tiers.transfers._ends if copy.target == tier.number}
                assert holds[tier.number] == tier.block_of.keys() - on_its_way
                seen += len(holds[tier.number])
    assert seen > 100
    assert kept > 20


@pytest.mark.parametrize("prefetch", [False, True])
def test_a_request_that_waits_for_room_has_its_blocks_brought_up_meanwhile(prefetch: bool) -> None:
    """Tier 2 lies behind a link of 20 s a block, tier 1 behind none."""
    asked: list[LoadOffer] = []

    class Asked(OnEviction):
        def prefetch(self, offer: LoadOffer, now: float) -> int:
            asked.append(offer)
            return super().prefetch(offer, now)

    slow = Link(bytes_per_s=8 / 20)
    engine = replayed(Asked(prefetch=prefetch), num_blocks=8, counts=(6, 64), links=[Link(), slow])
    serve(engine, *(prompt(100 * number) for number in range(8)))
    tiers, wanted = below(engine), prompt(0)
    running = engine.submit([7], Sampling(max_tokens=27, ignore_eos=True))  # takes the pool in the end
    for _ in range(18):
        engine.step()
    waiting = engine.submit(wanted, ONE)
    engine.step()
    lifted = [copy for _, _, copy in tiers.transfers._ends if copy.target == 1]
    assert bool(lifted) is prefetch
    if prefetch:
        first, second = tiers.placement.lower.tiers
        while lifted[0] in [copy for _, _, copy in tiers.transfers._ends]:
            engine.step()
        assert lifted[0].key in first
        assert lifted[0].key not in second, "one copy stays"
    engine.run()
    engine.check()
    assert len(asked) <= 1, "a request that waits is asked about once"
    assert tiers.placement.lower.tiers[1].counts.read == 3
    assert waiting.num_loaded_tokens == 12
    assert waiting.tier_tokens == ({1: 12} if prefetch else {2: 12})
    assert running.status.value == "finished"


def test_hits_are_counted_once_though_a_loaded_request_yields_its_room() -> None:
    engine = replayed(OnEviction(exclusive=False), num_blocks=8, max_batch_requests=1)
    serve(engine, prompt(0), prompt(100), prompt(200), prompt(300))
    engine.submit([7], Sampling(max_tokens=27, ignore_eos=True))
    engine.step()
    waiting = engine.submit(prompt(0), ONE)
    engine.step()
    engine.step()
    below(engine).drop(waiting.sequences[0], returning=True)
    engine.run()
    assert below(engine).placement.lower.tiers[0].counts.hits == 3
    assert waiting.num_cached_tokens == 12
