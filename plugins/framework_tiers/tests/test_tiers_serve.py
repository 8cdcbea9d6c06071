"""Tokens do not depend on what lies below the pool: any rule, store, policy, allocator and fault."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_engines import FakeExecutor, FakeModel, describe, expected, make_engine, slow_beams, tokens_of
from stepped_worker import InTurn
from tier_helpers import tier_maker

from framework import registry
from framework.engine.engine import Engine
from framework.errors import StoreFailed
from framework.registry.components import build_allocator
from framework.sampling import Sampling
from framework_builtin.eviction.lru import Lru
from framework_builtin.eviction.s3fifo import S3Fifo
from framework_tiers.engine_tiers import EngineTiers
from framework_tiers.guarded import GuardedStore
from framework_tiers.placement import TierSetup
from framework_tiers.rules import OnEviction, OnSecondHit, WriteThrough
from framework_tiers.store import BlockFormat, Store
from framework_tiers.stores.host import Host, Null
from framework_tiers.tiering import Event, LoadOffer, TierBlock, Tiering
from framework_tiers.worker import WorkerTransfers

SIZE, BLOCKS = 4, 14


class FakeBytes:
    """The blocks of a fake executor's pool."""

    block_bytes = 8 * SIZE

    def __init__(self, executor: FakeExecutor, draw: random.Random, share: float) -> None:
        self.executor, self.draw, self.share = executor, draw, share

    def read(self, block: int, into: Any = None) -> Callable[[], Any]:
        data = np.empty(self.block_bytes, dtype=np.uint8) if into is None else into
        data[:] = self.executor.pool[block].view(np.uint8)

        def wait() -> Any:
            if self.draw.random() < self.share / 2:
                data[:] = 0xA5
                raise StoreFailed("injected into a copy")
            return data

        return wait

    def allocate(self, num_bytes: int) -> memoryview:
        return np.empty(num_bytes, dtype=np.uint8).data

    def write(self, block: int, data: Any) -> None:
        self.executor.pool[block] = data.view(np.uint64)


class Unreliable(Store):
    """Fails as a coin says: to write, to read, by an answer of False, or by an error that no contract has.

    Every second one has places for copies without a buffer between.
    """

    def __init__(self, draw: random.Random, share: float) -> None:
        self.inner, self.draw, self.share, self.places = Host(), draw, share, draw.random() < 0.5

    @property
    def held(self) -> dict[Any, bytes]:
        """What lies in it now."""
        return {key: bytes(self.inner._memory[row]) for key, row in self.inner._rows.items()}

    def open(self, format: BlockFormat, num_blocks: int) -> None:
        self.inner.open(format, num_blocks)

    def write(self, key: Any, data: memoryview) -> None:
        self._perhaps_fail()
        self.inner.write(key, data)

    def read(self, key: Any, into: memoryview) -> bool:
        self._perhaps_fail()
        return self.draw.random() > self.share and self.inner.read(key, into)

    def remove(self, key: Any) -> None:
        self.inner.remove(key)
        self._perhaps_fail()

    def reserve(self, key: Any) -> memoryview | None:
        if not self.places:
            return None
        self._perhaps_fail()
        return self.inner.reserve(key)

    def view(self, key: Any) -> memoryview | None:
        return self.inner.view(key) if self.places and self.draw.random() > self.share else None

    def _perhaps_fail(self) -> None:
        if self.draw.random() < self.share:
            raise StoreFailed("injected")


class Erratic(Tiering):
    """Stores and loads as a coin says."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.exclusive = draw, draw.random() < 0.5

    def store(self, block: TierBlock, event: Event, now: float) -> bool:
        return self.draw.random() < 0.5

    def load(self, offer: LoadOffer, now: float) -> int:
        assert len(offer.tiers) == len(offer.num_tokens)
        return self.draw.randint(0, len(offer.tiers))

    def prefetch(self, offer: LoadOffer, now: float) -> int:
        return self.draw.randint(0, len(offer.tiers))


class Late(InTurn):
    """Carries out a few jobs now and then, so that all orders can be drawn and repeated."""

    draw = random.Random(0)

    def num_jobs(self) -> int:
        return self.draw.choice([0, 0, 1, 2, 8])


def tiered(
    executor: FakeExecutor,
    draw: random.Random,
    rule: Tiering,
    share: float,
    threads: bool,
    made: list[Unreliable] | None = None,
) -> TierSetup:
    """One to three small tiers of stores that fail now and then; `made` gets them, and none is of keys only then."""
    Late.draw = draw
    format = BlockFormat("fake", "uint64", "NHD", SIZE, "sha256", FakeBytes.block_bytes)
    counts = [draw.randint(1, 40) for _ in range(draw.randint(1, 3))]
    plain = [Unreliable(draw, share) for _ in counts]
    if made is not None:
        made += plain
    shadows = share > 0 and made is None
    stores = [GuardedStore(Null() if shadows and draw.random() < 0.1 else store) for store in plain]
    for store, count in zip(stores, counts, strict=True):
        store.open(format, count)
    return TierSetup(
        tiers=[(count, draw.choice([Lru, S3Fifo])()) for count in counts],
        rule=rule,
        transfers=(WorkerTransfers if threads else Late)(FakeBytes(executor, draw, share), stores, executor.now),
        holds_kv=[store.holds_kv for store in stores],
        block_bytes=FakeBytes.block_bytes,
    )


def tiered_engine(
    draw: random.Random,
    rule: Tiering,
    *,
    allocator: str = "prefix_cow",
    share: float = 0.0,
    threads: bool = False,
    stores: list[Unreliable] | None = None,
    **options: Any,
) -> Engine:
    built = build_allocator(allocator, "lru", "sha256", num_blocks=BLOCKS, block_size=SIZE, max_model_len=48)

    executor = FakeExecutor(BLOCKS, SIZE)
    options.setdefault("max_batch_requests", draw.choice([1, 3, 6]))
    return make_engine(
        built,
        executor,
        max_model_len=48,
        vocab_size=executor.model.vocab_size,
        tiers=tier_maker(lambda: tiered(executor, draw, rule, share, threads, stores)),
        **options,
    )


def prompts(draw: random.Random, count: int) -> list[list[int]]:
    """Prompts out of a few stems, so that what was evicted is wanted again."""
    stems = [[draw.randrange(32) for _ in range(draw.randint(4, 24))] for _ in range(4)]
    return [draw.choice(stems)[: draw.randint(4, 24)] + [draw.randrange(32)] * draw.randint(1, 6) for _ in range(count)]


ALLOCATORS = ["prefix_cow", "prefix", "radix", *(name for name in registry.names("allocator") if "native" in name)]
RULES = [OnEviction, lambda: OnEviction(exclusive=False), WriteThrough, OnSecondHit, lambda: Erratic(random.Random(3))]


@pytest.mark.parametrize("share", [0.0, 0.3], ids=["sound", "failing"])
@pytest.mark.parametrize("rule", RULES, ids=["exclusive", "inclusive", "write_through", "second_hit", "erratic"])
def test_tokens_are_those_of_the_model_alone(rule: Callable[[], Tiering], share: float) -> None:
    loaded = dropped = 0
    for seed, allocator in enumerate(2 * ALLOCATORS):
        draw = random.Random(seed)
        options: dict[str, Any] = {
            "preempt_every": draw.choice([0, 0, 1, 2, 5]),
            "chunk_size": draw.choice([None, 1, 3]),
            "max_batch_tokens": draw.choice([8, 24, 2048]),
            "threads": seed == 0,
        }
        engine = tiered_engine(draw, rule(), allocator=allocator, share=share, **options)
        tiers = engine.state.tiers
        assert tiers is not None
        dropped += run(engine, tiers, draw, 40)
        loaded += int(tiers.num_loaded)
        if not share:
            assert not sum(tiers.placement.failed_loads + tiers.placement.failed_stores), tiers.placement.first_failure
        tiers.close(drain=True)
    assert loaded > 0, "nothing was ever loaded"
    assert dropped > 0, "no load was dropped under way"


def prompt_of(request: Any) -> list[int]:
    return [int(token) for token in request.prompt]


def run(engine: Engine, tiers: EngineTiers, draw: random.Random, count: int) -> int:
    """Serve `count` prompts, cancelling some; returns how many had blocks on their way then."""
    model, requests, dropped = FakeModel(), [], 0
    for number, prompt in enumerate(prompts(draw, count)):
        width = draw.choice([1, 1, 1, min(2, engine.state.rows.max_rows)])
        kind = draw.choice(["n", "n", "beam_width"]) if width > 1 else "n"
        facts = {"arrival_s": number / 2, "priority": draw.choice([0, 0, 1])}
        requests.append(engine.submit(prompt, Sampling(max_tokens=draw.randint(1, 6), **{kind: width}), **facts))
    steps = 0
    while engine.num_unfinished:
        engine.step()
        engine.allocator.check()
        tiers.check()
        steps += 1
        assert steps < 5_000, describe(engine)
        if tiers.loading and draw.random() < 0.05:
            engine.cancel(draw.choice(tiers.holding()).request)
            dropped += 1
        elif draw.random() < 0.02:
            engine.cancel(draw.choice(requests))
    engine.check()
    for request in requests:
        if request.status.value == "finished":
            beams = request.sampling.beam_width > 1
            right = slow_beams(model, prompt_of(request), request.sampling) if beams else expected(model, request)
            assert tokens_of(request) == right, request.number
    statuses = {request.status.value for request in requests}
    assert statuses <= {"finished", "cancelled"}, [request.reason for request in requests]
    return dropped


@pytest.mark.parametrize(
    ("piece", "operations"),
    [
        (0, 4_000),
        *(pytest.param(piece, 100_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)]) for piece in range(1, 11)),
    ],
)
def test_blocks_and_bytes_are_conserved_while_stores_fail(piece: int, operations: int) -> None:
    """A tier's store holds the contents of its keys and no others, and each block stored is accounted for.

    `-m slow` runs ten pieces of 100,000 operations, each with seeds of its own.
    """
    done, seed = 0, 100_000 * piece
    while done < operations:
        seed += 1
        draw = random.Random(seed)
        stores: list[Unreliable] = []
        engine = tiered_engine(draw, Erratic(draw), share=0.05, stores=stores, preempt_every=draw.choice([0, 7]))
        tiers = engine.state.tiers
        assert tiers is not None
        run(engine, tiers, draw, 100)
        assert isinstance(tiers.transfers, Late)
        tiers.transfers.carry_out_all()
        contents: dict[bytes, bytes] = {}
        for tier, store in zip(tiers.placement.lower.tiers, stores, strict=True):
            assert store.held.keys() == tier.block_of.keys(), f"seed {seed}, tier {tier.number}"
            assert len(store.held) <= tier.num_blocks
            for key, data in store.held.items():
                assert contents.setdefault(key, data) == data, "one content has one sequence of bytes, in every tier"
            counts = tier.counts
            done += counts.stored + counts.read + counts.evicted + counts.dropped + counts.lost
            held = counts.stored - counts.evicted - counts.dropped - counts.lost
            assert held == len(tier), (seed, counts)
        done += engine.allocator.stats().evictions
    assert seed > 100_000 * piece + 1
