"""An index built from KV events is the pool, at every batch, for every allocator, whatever becomes of the messages."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from fake_engines import ALLOCATORS, FakeModel, fake_engine, named
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.engine.engine import Engine
from framework.sampling import Sampling
from framework.types import ROOT_NAMESPACE, Namespace, as_tokens
from framework_builtin.hash.sha256 import Sha256
from framework_kv_events.index import BlockIndex, Follower
from framework_kv_events.observer import EventObserver
from framework_kv_events.schema import BlockStored, Event, EventBatch, Numbered
from framework_kv_events.stream import EventStream, Sink

MODEL = FakeModel(vocab_size=6)
SALTED = Namespace(salt="s")
SAMPLINGS = st.one_of(
    st.builds(Sampling, max_tokens=st.integers(1, 8), ignore_eos=st.just(True)),
    st.builds(Sampling, max_tokens=st.integers(1, 8), n=st.integers(1, 3), temperature=st.just(1.0)),
    st.builds(Sampling, max_tokens=st.integers(1, 6), beam_width=st.integers(2, 3)),
)
REQUESTS = st.tuples(
    st.lists(st.integers(0, 1), min_size=1, max_size=14),
    SAMPLINGS,
    st.integers(0, 8),
    st.sampled_from([ROOT_NAMESPACE, SALTED]),
)


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    return {
        "requests": draw(st.lists(REQUESTS, min_size=1, max_size=8)),
        "cancel": draw(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 7)), max_size=2)),
        "reset": draw(st.sampled_from([None, None, 3, 7])),
        "report_hits": draw(st.booleans()),
        "engine": {
            "num_blocks": draw(st.integers(3, 16)),
            "block_size": draw(st.sampled_from([1, 2, 3])),
            "max_batch_tokens": draw(st.integers(8, 24)),
            "chunk_size": draw(st.sampled_from([None, 1, 3])),
            "preempt_every": draw(st.sampled_from([0, 0, 2, 3])),
        },
    }


class Watch(Sink):
    """A sink that compares an index of its own with the pool at every batch, and keeps all batches."""

    def __init__(self, report_hits: bool) -> None:
        self.index = BlockIndex(report_hits=report_hits)
        self.engine: Engine | None = None
        self.batches: list[EventBatch] = []
        self.pools: list[Counter[Any]] = []

    def put(self, sequence: int, step: float, events: Sequence[Event]) -> None:
        assert self.engine is not None
        assert sequence == len(self.batches), "batches are numbered without gaps"
        for event in events:
            if isinstance(event, BlockStored):
                self.follows_from_its_tokens(event)
        self.index.apply(events)
        self.batches.append(EventBatch(step, events))
        self.pools.append(pool(self.engine))
        assert held(self.index) == self.pools[-1]

    def follows_from_its_tokens(self, event: BlockStored) -> None:
        """The hashes are those of the tokens below the parent: so tokens and parent are the right ones."""
        above = event.parent_block_hash
        space = SALTED if event.extra_keys else ROOT_NAMESPACE
        start: Any = Sha256().root(space, event.block_size) if above is None else above
        tokens = as_tokens(event.token_ids)
        assert len(tokens) == event.block_size * len(event.block_hashes)
        assert [*Sha256().blocks(start, tokens, event.block_size)] == [*event.block_hashes], event


def pool(engine: Engine) -> Counter[Any]:
    """The hashes of the blocks that a lookup can find, from the allocator's own columns."""
    allocator: Any = engine.allocator
    key = allocator.pool.block_hash.__getitem__ if hasattr(allocator, "pool") else allocator.view().key.__getitem__
    return Counter(name for block in range(1, allocator.num_blocks + 1) if (name := key(block)))


def held(index: BlockIndex) -> Counter[Any]:
    return Counter(index.copies.get(("GPU", 0), {}))


SHARING = [name for name in ALLOCATORS if isinstance(name, str) and not name.startswith(("naive", "cow", "example"))]


def run(allocator: Any, case: dict[str, Any]) -> Watch:
    watch = Watch(case["report_hits"])
    stream = EventStream([watch], report_hits=case["report_hits"])
    engine = fake_engine(
        allocator, model=MODEL, max_model_len=24, hash="sha256", observers=(EventObserver(stream),), **case["engine"]
    )
    watch.engine = engine
    requests = [
        engine.submit(prompt, sampling, arrival_s=float(arrival), namespace=space)
        for prompt, sampling, arrival, space in case["requests"]
    ]
    for step in range(2000):
        for when, which in case["cancel"]:
            if when == step and which < len(requests):
                engine.cancel(requests[which])
        if step == case["reset"]:
            engine.state.guarded.reset()
        if not engine.num_unfinished:
            break
        engine.step()
        if watch.batches or not pool(engine):
            assert held(watch.index) == pool(engine), f"step {step}"
    engine.check()
    stream.close()
    return watch


@pytest.mark.parametrize("count", [15, pytest.param(1500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("allocator", SHARING, ids=named)
def test_the_index_is_the_pool_at_every_batch(allocator: Any, count: int) -> None:
    @settings(max_examples=count)
    @given(case=cases())
    def check(case: dict[str, Any]) -> None:
        run(allocator, case)

    check()


@settings(max_examples=30)
@given(case=cases(), seed=st.integers(0, 2**16), kept=st.sampled_from([0, 2, 1000]))
def test_a_follower_is_the_pool_or_says_that_it_is_not(case: dict[str, Any], seed: int, kept: int) -> None:
    watch = run("prefix_cow", case)
    sent = [*enumerate(watch.batches)]
    came, dice = list(disturbed(sent, random.Random(seed))), random.Random(seed + 1)
    first_kept = 0

    def again(number: int) -> Iterator[Numbered]:
        return iter([entry for entry in sent[: newest + 1] if entry[0] >= max(number, first_kept)])

    follower = Follower(BlockIndex(report_hits=case["report_hits"]), replay=again if dice.random() < 0.7 else None)
    newest = -1
    for number, batch in came:
        newest = max(newest, number)
        first_kept = max(0, newest + 1 - kept)
        known = follower.take(number, batch)
        assert follower.next == newest + 1, "it is as far as the newest batch that came"
        if known:
            assert held(follower.index) == watch.pools[follower.next - 1]
        else:
            assert not follower.index.copies
    if kept == 1000 and follower.replay is not None:
        assert follower.known
        assert not follower.num_lost
    lost = {number for number, _ in sent[: newest + 1]} - {number for number, _ in came}
    assert not lost or follower.num_gaps, "a loss before the newest batch is noticed"


def disturbed(sent: list[Numbered], dice: random.Random) -> Iterator[Numbered]:
    """Some are lost, some come twice, some come after the one that follows them."""
    at = 0
    while at < len(sent):
        kind = dice.random()
        if kind < 0.15:
            at += 1
        elif kind < 0.3:
            yield sent[at]
            yield sent[dice.randrange(at + 1)]
            at += 1
        elif kind < 0.45 and at + 1 < len(sent):
            yield sent[at + 1]
            yield sent[at]
            at += 2
        else:
            yield sent[at]
            at += 1
