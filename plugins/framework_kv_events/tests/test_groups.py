"""KV events of caches with several groups: the index is every group's pool, and each key is made of what is sent."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from groups_plain import LAYOUTS, group

from framework.engine.engine import Engine, ModelLimits, Trial
from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.groups.allocator import GroupedAllocator
from framework.groups.checkpoints import Turns
from framework.llm import EngineOptions
from framework.paged.index import BlockHasher
from framework.registry.components import build_component
from framework.sampling import Sampling
from framework.types import ROOT_NAMESPACE
from framework_builtin.memory.one_pool import OnePool
from framework_kv_events.index import BlockIndex
from framework_kv_events.observer import EventObserver
from framework_kv_events.schema import GPU, BlockStored, Event
from framework_kv_events.stream import EventStream, Sink

UNIT = 4
CASES = {name: groups for name, groups in LAYOUTS.items() if len(groups) > 1}
CASES["unequal"] = (group("full"), group("window", 9, block=8, size=8), group("state", block=8, size=8))


class Watch(Sink):
    """A sink whose index is compared with the pools at every batch."""

    allocator: GroupedAllocator

    def __init__(self) -> None:
        self.index, self.stored = BlockIndex(), list[BlockStored]()

    def put(self, sequence: int, step: float, events: Sequence[Event]) -> None:
        self.index.apply(events)
        self.stored += [event for event in events if isinstance(event, BlockStored)]
        memory = self.allocator.memory
        held: list[Counter[Any]] = [Counter() for _ in memory.groups]
        for pool in dict.fromkeys(memory.pools):
            for (g, key), blocks in pool.index.items():
                held[g][key] += len(blocks)
        for g, wanted in enumerate(held):
            assert self.index.copies.get((GPU, g), {}) == wanted, f"group {g} at step {step}"


@pytest.mark.parametrize("name", CASES)
def test_an_index_is_the_pool_of_every_group_and_keys_are_of_parent_and_tokens(name: str) -> None:
    groups, draw, scheme = CASES[name], random.Random(name), build_component("hash", "sha256", {})
    num_bytes = 40 * sum(each.block_bytes for each in groups)
    memory = OnePool().open(groups, lambda _: build_component("eviction", "lru", {}), num_bytes=num_bytes, unit=UNIT)
    allocator = GroupedAllocator(memory, Turns(), scheme, num_blocks=40, num_bytes=num_bytes, step_tokens=16)
    watch = Watch()
    watch.allocator = allocator
    engine = Engine(
        allocator, ReplayExecutor(constant_step(1.0)), limits=ModelLimits(max_model_len=96),
        options=EngineOptions(max_batch_requests=4, max_batch_tokens=32, chunk_size=16),
        trial=Trial(observers=(EventObserver(EventStream([watch])),)),
    )  # fmt: skip
    stems = [[draw.randrange(9) for _ in range(60)] for _ in range(3)]
    for _ in range(40):
        prompt = draw.choice(stems)[: draw.choice((12, 30, 60))] + [
            draw.randrange(9) for _ in range(draw.randint(1, 9))
        ]
        engine.submit(prompt, Sampling(max_tokens=draw.randint(1, 12), ignore_eos=True))
    engine.run()
    engine.check()
    assert {event.group_idx for event in watch.stored} == set(range(len(groups)))
    assert sum(memory.evictions) > 20, "nothing was removed for room"
    hasher = BlockHasher(scheme, UNIT)
    for event in watch.stored:
        wide = groups[event.group_idx or 0].block_tokens // UNIT
        assert event.block_size == wide * UNIT
        above = hasher.root(ROOT_NAMESPACE)[0] if event.parent_block_hash is None else event.parent_block_hash
        names = hasher.blocks(above, np.array(event.token_ids, dtype=np.int32))
        assert [*event.block_hashes] == [*names[wide - 1 :: wide]], event
