"""Our stores and policies behind vLLM's CPU tier: its own TieringOffloadingManager on real memory."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded_tiers import RecordedTiers, conversation_paths
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.factory import OffloadingSpecFactory

from framework.errors import StoreFailed, Unsupported
from framework.interfaces.store import BlockFormat, Store
from framework.registry.components import build_component
from framework.replay.paths import RequestPaths
from framework.replay.reference import replay
from framework.replay.tiers import TierSpec
from framework.types import BlockHash

pytestmark = pytest.mark.timeout(600)

BLOCK, ROW = 512, 4096  # tokens, bytes


class Memory(Store):
    """Plain memory; notes what is removed and written, and fails when it is `full`."""

    full = False

    def open(self, format: BlockFormat, num_blocks: int) -> None:
        self.bytes: dict[BlockHash, bytes] = {}
        self.removed: list[BlockHash] = []
        self.written: list[BlockHash] = []

    def write(self, key: BlockHash, data: memoryview) -> None:
        if self.full:
            raise StoreFailed("the disk is full")
        self.bytes[key] = bytes(data)
        self.written.append(key)

    def read(self, key: BlockHash, into: memoryview) -> bool:
        into[:] = self.bytes[key]
        return True

    def remove(self, key: BlockHash) -> None:
        del self.bytes[key]
        self.removed.append(key)


class Vllm:
    """vLLM's spec and manager, asked as its scheduler asks. No GPU: a content's bytes follow from its key."""

    def __init__(self, chunks: int, **tier: Any) -> None:
        extra = {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": chunks * ROW,
            "secondary_tiers": [{"type": "StoreTier", "module_path": "framework.export.vllm_secondary", **tier}],
        }
        config = OffloadingConfig(
            groups=(OffloadingGroupConfig(tokens_per_block=BLOCK, layer_names=("layer",), group_id=0),),
            worker_kv_bytes_per_block=ROW,
            enable_kv_cache_events=False,
            extra_config=extra,
            engine_id=uuid.uuid4().hex,
            model=OffloadingModelConfig(name="model", dtype="float16"),
            cache=OffloadingCacheConfig(tokens_per_hash=BLOCK, blocks_per_chunk=1),
            parallel=OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, True),
        )
        self.manager: Any = OffloadingSpecFactory.get_spec_cls(extra)(config).get_manager()
        self.memory = np.asarray(self.manager.primary_tier.get_kv_memoryview())
        (self.tier,) = self.manager.secondary_tiers
        self._numbers = itertools.count()

    def close(self) -> None:
        del self.memory
        self.manager.shutdown()

    def step(self, context: ReqContext) -> None:
        self.manager.on_schedule_end(ScheduleEndContext({context.req_id}, ()))
        self.tier.drain_jobs()

    def run(self, path: Sequence[int]) -> list[int]:
        """One request: the nodes that were loaded from the tier below. What the CPU tier hands out is checked."""
        manager, context = self.manager, ReqContext(req_id=str(next(self._numbers)))
        keys = [key_of(node) for node in path]
        for at, key in enumerate(keys):
            context.set_offload_key_position(key, BLOCK * (at + 1))
        manager.on_new_request(context)
        cpu = manager.primary_tier  # asked first: what lies there is pinned before a promotion could evict it
        in_cpu = list(itertools.takewhile(lambda key: cpu.lookup(key, context) is LookupResult.HIT, keys))
        pinned = manager.prepare_load(in_cpu, context) if in_cpu else None
        promoted = []
        for key in keys[len(in_cpu) :]:
            found = self.lookup(key, context)
            if found is LookupResult.HIT_PENDING:
                promoted.append(key)
            elif found is not LookupResult.HIT:
                break
        self.step(context)
        ready = [key for key in promoted if self.lookup(key, context) is LookupResult.HIT]
        for spec, loaded in ((pinned, in_cpu), (manager.prepare_load(ready, context) if ready else None, ready)):
            for key, chunk in zip(loaded, spec.chunk_ids if spec else (), strict=True):
                assert self.memory[chunk].tobytes() == bytes_of(key)
            if loaded:
                manager.complete_load(loaded, context)
        new = manager.prepare_store(keys, context)
        assert new is not None, "no room"
        for key, chunk in zip(new.keys_to_store, new.store_spec.chunk_ids, strict=True):
            self.memory[chunk] = np.frombuffer(bytes_of(key), np.int8)
        if new.keys_to_store:
            manager.complete_store(new.keys_to_store, context)
        self.step(context)
        self.step(context)
        manager.on_request_finished(context)
        return [node for node, key in zip(path, keys, strict=True) if key in ready]

    def lookup(self, key: bytes, context: ReqContext) -> LookupResult:
        return self.manager.lookup(key, context)  # type: ignore[no-any-return]


def key_of(node: int) -> Any:
    return make_offload_key(node.to_bytes(8, "little"), 0)


def node_of(key: bytes) -> int:
    return int.from_bytes(key[:8], "little")


def bytes_of(key: bytes) -> bytes:
    return (key * ROW)[:ROW]


@pytest.fixture
def started() -> Iterator[Any]:
    running: list[Vllm] = []

    def start(chunks: int, **tier: Any) -> Vllm:
        running.append(Vllm(chunks, **tier))
        return running[-1]

    yield start
    for vllm in running:
        vllm.close()


def test_the_bytes_come_back_and_outlive_the_process(started: Any, tmp_path: Path) -> None:
    disk = {"store": {"name": "disk", "path": str(tmp_path)}, "num_blocks": 100}
    first = started(8, **disk)
    assert first.run(range(6)) == []
    assert first.run(range(10, 18)) == []  # the CPU tier holds no more than these
    assert first.run(range(6)) == list(range(6))
    second = started(8, **disk)
    assert second.run([*range(10, 18)]) == list(range(10, 18))
    other = started(8, **disk, fingerprint="other weights")
    assert other.run(range(6)) == []


def test_a_damaged_file_is_a_miss_and_stored_again(started: Any, tmp_path: Path) -> None:
    vllm = started(8, store={"name": "disk", "path": str(tmp_path)}, num_blocks=100)
    vllm.run(range(6))
    vllm.run(range(10, 18))
    (file,) = tmp_path.rglob(f"{key_of(3).hex()}.kv")
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert vllm.run(range(6)) == [0, 1, 2, 4, 5]
    vllm.run(range(10, 18))
    assert vllm.run(range(6)) == list(range(6))


def test_a_full_disk_stops_stores_and_nothing_else(started: Any) -> None:
    store = Memory()
    vllm = started(8, store=store, num_blocks=100)
    vllm.run(range(4))
    store.full = True
    vllm.run(range(10, 18))
    assert vllm.run(range(20, 28)) == []
    assert vllm.run([0, 1, 2, 3, 4]) == [0, 1, 2, 3]
    assert vllm.run(range(10, 18)) == []
    store.full = False
    vllm.run(range(10, 18))
    vllm.run(range(20, 28))
    assert vllm.run(range(10, 18)) == list(range(10, 18))


def test_a_store_of_keys_alone_is_refused() -> None:
    with pytest.raises(Unsupported, match="keys only"):
        Vllm(8, store="null", num_blocks=4)


@pytest.fixture(scope="module")
def conversation() -> RequestPaths:
    return conversation_paths(1500)


EQUAL = (
    "2q",
    "arc",
    "clock",
    "cost_aware",
    "depth_aware",
    "fifo",
    "gdsf",
    "leaf_lru",
    "lecar",
    "length_aware",
    "lfu",
    "lru",
    "lru_k",
    "mru",
    "priority",
    "s3fifo",
    "sieve",
    "slru",
    "tenant_fair",
    "tool_ttl",
    "ttl",
)
"""Those that read nothing vLLM does not tell a tier, and neither draw nor hash the bytes of keys."""


@pytest.mark.parametrize(("eviction", "sizes"), [("lru", (400, 900)), *((name, (600, 2_000)) for name in EQUAL)])
def test_the_tier_loads_evicts_and_stores_in_the_order_of_our_replay(
    conversation: RequestPaths, started: Any, sizes: tuple[int, int], eviction: str
) -> None:
    pool, below = sizes
    shared = {"num_blocks": below, "block_size": BLOCK, "seed": 0}
    mine = RecordedTiers(
        conversation,
        [TierSpec(below, build_component("eviction", eviction, shared))],
        build_component("tiering", "write_through", {}),
    )
    replay(conversation, build_component("eviction", "lru", {}), pool, below=mine)
    store = Memory()
    vllm = started(pool, store=store, num_blocks=below, eviction=eviction)
    for number, expected in enumerate(mine.requests):
        loaded = vllm.run(expected.path)
        found = (loaded, [node_of(key) for key in store.removed], [node_of(key) for key in store.written])
        assert found == (expected.promoted, expected.evicted, expected.stored), f"request {number}"
        store.removed.clear()
        store.written.clear()
    assert sum(len(request.promoted) for request in mine.requests) > 0
    assert sum(len(request.evicted) for request in mine.requests) > 1000
