"""What an allocator's calls become as KV events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from fake_engines import fake_engine
from paged_helpers import make

from framework.guard.allocator import GuardedAllocator
from framework.guard.observer import Observers
from framework.interfaces.eviction import ScoredPolicy
from framework.interfaces.observer import Move, Observed
from framework.sampling import Sampling
from framework.types import BlockHash, Namespace, RequestId, RequestInfo, as_tokens
from framework_kv_events.observer import EventObserver
from framework_kv_events.schema import AllBlocksCleared, BlockStored, Event
from framework_kv_events.stream import EventStream, Sink


class Kept(Sink):
    """A sink that keeps every batch."""

    def __init__(self) -> None:
        self.batches: list[list[Event]] = []

    def put(self, sequence: int, step: float, events: Sequence[Event]) -> None:
        assert sequence == len(self.batches)
        self.batches.append([*events])


def observed(allocator: Any, stream: EventStream) -> GuardedAllocator:
    guarded, observers = GuardedAllocator(allocator), Observers([EventObserver(stream)])
    observers.begin(Observed(num_blocks=guarded.num_blocks, block_size=guarded.block_size, lookup=guarded.lookup))
    guarded.observe(observers)
    return guarded


class Cache:
    """An allocator with KV events; `events` are those since it was last asked."""

    def __init__(self, *, stream: dict[str, Any] | None = None, **made: Any) -> None:
        self.sink = Kept()
        self.stream = EventStream([self.sink], **(stream or {}))
        self.inner = make(**made)
        self.allocator = observed(self.inner, self.stream)

    def admit(self, number: int, tokens: Sequence[int], namespace: Namespace = Namespace(), **facts: Any) -> int:  # noqa: B008
        info = RequestInfo(id=RequestId(number), max_total_tokens=64, namespace=namespace, **facts)
        hit = self.allocator.lookup(as_tokens(tokens), namespace)
        self.allocator.allocate(info, as_tokens(tokens), hit)
        return hit.num_tokens

    def commit(self, number: int, tokens: Sequence[int]) -> None:
        self.allocator.commit(RequestId(number), as_tokens(tokens))

    def events(self) -> list[Event]:
        before = len(self.sink.batches)
        self.stream.flush(0.0)
        return [event for batch in self.sink.batches[before:] for event in batch]


def only(events: list[Event]) -> Any:
    assert len(events) == 1, events
    return events[0]


def test_blocks_published_by_one_call_are_one_event_with_their_tokens_and_parent() -> None:
    cache = Cache()
    cache.admit(1, [1, 2, 3, 4, 5], session="talk")
    assert cache.events() == []
    cache.commit(1, [1, 2, 3, 4, 5])
    first = only(cache.events())
    assert (first.token_ids, first.parent_block_hash, first.block_size) == ([1, 2, 3, 4], None, 2)
    assert (first.medium, first.group_idx, first.session_id, first.extra_keys) == ("GPU", 0, "talk", None)
    assert len(first.block_hashes) == 2
    cache.commit(1, [1, 2, 3, 4, 5, 6])
    second = only(cache.events())
    assert (second.token_ids, second.parent_block_hash) == ([5, 6], first.block_hashes[-1])


def test_the_adapter_is_in_every_blocks_extra_keys_and_the_salt_in_the_first() -> None:
    cache = Cache()
    cache.admit(1, [1, 2, 3, 4, 5], Namespace(adapter="a", salt="s"))
    cache.commit(1, [1, 2, 3, 4])
    stored = only(cache.events())
    assert stored.extra_keys == [["a", "s"], ["a"]]
    assert stored.lora_name == "a"
    cache.allocator.extend(RequestId(1), 6)
    cache.commit(1, [1, 2, 3, 4, 5, 6])
    assert only(cache.events()).extra_keys == [["a"]]


def test_contents_are_in_the_extra_keys_of_the_blocks_they_touch_by_name_and_start() -> None:
    cache = Cache()
    cache.admit(1, [1, 2, 3, 4, 5, 6, 7, 8], Namespace(salt="s", contents=((3, 6, "cat"), (5, 6, "dog"))))
    cache.commit(1, [1, 2, 3, 4, 5, 6, 7, 8])
    assert only(cache.events()).extra_keys == [["s"], [["cat", 1]], [["cat", -1], ["dog", 1]], None]


def test_a_block_between_whose_content_is_held_parts_what_is_stored() -> None:
    class KeepsTheSecond(ScoredPolicy):
        def score(self, block: Any, now: float) -> bool:
            return bool(block.depth == 1)

    cache = Cache(num_blocks=6, eviction=KeepsTheSecond())
    text = [1, 2, 3, 4, 5, 6, 7, 8]
    cache.admit(1, [*text, 9])
    cache.commit(1, text)
    names = only(cache.events()).block_hashes
    cache.allocator.free(RequestId(1))
    cache.admit(2, [20, 21, 22, 23, 24, 25, 26, 27, 28])  # takes two free blocks and all but the second
    cache.allocator.free(RequestId(2))
    cache.events()
    cache.admit(3, [*text, 9])
    cache.commit(3, text)
    stored = cache.events()
    sent = [(event.block_hashes, event.parent_block_hash, event.token_ids) for event in stored]  # type: ignore[union-attr]
    assert sent == [(names[:1], None, [1, 2]), (names[2:], names[1], [5, 6, 7, 8])]


def test_hits_are_reported_only_when_asked_for() -> None:
    for report in (False, True):
        cache = Cache(stream={"report_hits": report})
        cache.admit(1, [1, 2, 3, 4, 5])
        cache.commit(1, [1, 2, 3, 4])
        stored = only(cache.events())
        assert cache.admit(2, [1, 2, 3, 4, 6]) == 4
        found = cache.events()
        if not report:
            assert found == []
            continue
        assert only(found).block_hashes == [*stored.block_hashes]
        assert only(found).parent_block_hash is None
        assert only(found).token_ids == [1, 2, 3, 4]


def test_tokens_are_those_of_the_call_also_when_the_caller_writes_on_in_its_array() -> None:
    cache = Cache(num_blocks=8)
    cache.admit(1, [1])
    known = np.array([1, 2, 3, 4], dtype=np.int32)
    cache.allocator.extend(RequestId(1), 4)
    cache.allocator.commit(RequestId(1), known[:1])
    cache.allocator.commit(RequestId(1), known[:3])
    assert only(cache.events()).token_ids == [1, 2]
    fork = RequestInfo(id=RequestId(2), max_total_tokens=64)
    cache.allocator.fork(RequestId(1), fork, 2)
    known[:] = 9
    cache.allocator.extend(RequestId(2), 4)
    cache.commit(2, [1, 2, 8, 7])
    assert only(cache.events()).token_ids == [8, 7], "what its parent wrote after the fork is not its own"


def test_events_of_published_blocks_wait_until_they_are_computed() -> None:
    sink = Kept()
    engine = fake_engine(num_blocks=64, observers=(EventObserver(EventStream([sink])),))
    forward, seen = engine.executor.forward, []

    def watched(*arguments: Any) -> Any:
        seen.append((len(sink.batches), bool(engine.allocator.ahead)))
        return forward(*arguments)

    engine.executor.forward = watched  # type: ignore[method-assign]
    for number in range(3):
        engine.submit([*range(1, 20), number], Sampling(max_tokens=2))
    engine.step()
    assert seen == [(0, True)], "the step published blocks and nobody was informed before it computed them"
    assert len(sink.batches) == 1
    engine.run()


def test_a_reset_engine_clears_what_its_followers_know() -> None:
    sink = Kept()
    engine = fake_engine(num_blocks=64, observers=(EventObserver(EventStream([sink])),))
    engine.submit([*range(1, 20)], Sampling(max_tokens=2))
    engine.run()
    assert isinstance(sink.batches[0][0], BlockStored)
    before = len(sink.batches)
    engine.reset(fake_engine(num_blocks=64).allocator)
    engine.submit([*range(1, 20)], Sampling(max_tokens=2))
    engine.run()
    kinds = [type(event) for batch in sink.batches[before:] for event in batch]
    assert kinds == [AllBlocksCleared, BlockStored, BlockStored]


def test_two_tiers_of_one_medium_are_one_place_and_a_block_there_is_announced_once() -> None:
    cache, key = Cache(), BlockHash(b"k")
    observer = EventObserver(cache.stream)
    for event, tier in (("kept", 1), ("stored", 1), ("stored", 2), ("removed", 1)):
        observer.moved(Move(event, key, tier, "CPU", BlockHash(b"above")))
    stored = only(cache.events())
    assert (stored.block_hashes, stored.parent_block_hash, stored.medium) == ([key], b"above", "CPU")
    assert (stored.token_ids, stored.group_idx) == ([], 0)
    observer.moved(Move("stored", key, 3, "STORAGE"))
    observer.moved(Move("removed", key, 2, "CPU"))
    other, removed = cache.events()
    assert (type(other), removed.medium) == (BlockStored, "CPU")  # type: ignore[union-attr]
    observer.moved(Move("removed", BlockHash(b"never announced"), 1, "CPU"))
    assert cache.events() == []
