"""A tier of stored blocks: pins, failures and what a store held before."""

from __future__ import annotations

import random
from typing import Any

import pytest

from framework.errors import StoreFailed, Unsupported
from framework.export.stored_blocks import Finished, HostBlock, StoredBlocks
from framework.interfaces.store import BlockFormat, Store
from framework.registry.components import build_component
from framework.types import BlockHash

FORMAT = BlockFormat("model", "float16", "layout", 16, "sha256", 8)


class Memory(Store):
    def __init__(self) -> None:
        self.bytes: dict[BlockHash, bytes] = {}
        self.full = False

    def open(self, format: BlockFormat, num_blocks: int) -> None:
        pass

    def write(self, key: BlockHash, data: memoryview) -> None:
        if self.full:
            raise StoreFailed("the disk is full")
        self.bytes[key] = bytes(data)

    def read(self, key: BlockHash, into: memoryview) -> bool:
        if key not in self.bytes:
            return False
        into[:] = self.bytes[key]
        return True

    def remove(self, key: BlockHash) -> None:
        self.bytes.pop(key, None)

    def keys(self) -> list[BlockHash]:
        return list(self.bytes)


def block(number: int, depth: int = 0) -> HostBlock:
    return HostBlock(BlockHash(number.to_bytes(4, "little")), 0, depth, 16 * (depth + 1))


def data(number: int) -> memoryview:
    return memoryview(bytearray(number.to_bytes(8, "little")))


class Host:
    """Asks for one job at a time."""

    def __init__(self, store: Store, num_blocks: int) -> None:
        policy = build_component("eviction", "lru", {})
        self.blocks, self._jobs = StoredBlocks(store, policy, num_blocks, FORMAT), 0

    def ended(self) -> Finished:
        self.blocks.drain()
        (found,) = self.blocks.finished()
        self.blocks.tier.check()
        return found

    def store(self, request: str, *numbers: int) -> Finished:
        self._jobs += 1
        self.blocks.store(self._jobs, request, [block(n) for n in numbers], [data(n) for n in numbers])
        return self.ended()

    def load(self, request: str, *numbers: int) -> tuple[Finished, list[bytes]]:
        self._jobs += 1
        rows = [memoryview(bytearray(8)) for _ in numbers]
        self.blocks.load(self._jobs, request, [block(n) for n in numbers], rows)
        return self.ended(), [bytes(row) for row in rows]


def test_bytes_come_back_and_the_least_recently_used_go_first() -> None:
    host = Host(Memory(), 2)
    for request, numbers in (("a", (1,)), ("b", (2,)), ("c", (1,)), ("d", (3,))):
        host.blocks.begin(request)
        assert not host.store(request, *numbers).failed
        host.blocks.end(request)
    assert host.blocks.find("e", block(2)) == "absent"
    assert [host.blocks.find("e", block(number)) for number in (1, 3)] == ["held", "held"]
    ended, rows = host.load("e", 1, 2, 3)
    assert ended.failed == {block(2).key}
    assert rows[0] == bytes(data(1))
    assert rows[2] == bytes(data(3))
    host.blocks.end_step()
    host.blocks.close()


def test_what_a_request_uses_and_what_was_found_in_this_step_is_not_evicted() -> None:
    host = Host(Memory(), 1)
    host.blocks.begin("a")
    host.store("a", 1)
    assert host.store("a", 2).failed == {block(2).key}
    host.blocks.end("a")
    assert host.blocks.find("b", block(1)) == "held"
    host.blocks.begin("b")
    assert host.store("b", 2).failed
    host.blocks.end_step()
    assert not host.store("b", 2).failed
    host.blocks.close()


def test_a_failed_store_leaves_nothing_and_the_next_one_is_tried() -> None:
    store = Memory()
    host = Host(store, 4)
    host.blocks.begin("a")
    store.full = True
    assert host.store("a", 1, 2).failed == {block(1).key, block(2).key}
    assert host.blocks.find("a", block(1)) == "absent"
    store.full = False
    assert host.store("a", 1).num_moved == 1
    assert host.blocks.find("a", block(1)) == "held"
    host.blocks.end_step()
    host.blocks.end("a")
    assert len(host.blocks.tier) == 1
    host.blocks.close()
    assert list(store.bytes) == [block(1).key]


def test_what_an_earlier_process_left_is_found_the_most_recently_used_first() -> None:
    store = Memory()
    store.bytes = {block(number).key: bytes(data(number)) for number in range(5)}
    host = Host(store, 2)
    assert [host.blocks.find("a", block(n)) for n in range(5)] == ["absent"] * 3 + ["held"] * 2
    host.blocks.end_step()
    host.blocks.close()


def test_a_store_of_keys_alone_is_refused() -> None:
    with pytest.raises(Unsupported, match="keys only"):
        Host(build_component("store", "null", {}), 2)


@pytest.mark.parametrize("seed", range(5))
def test_blocks_add_up_and_bytes_are_right_whatever_fails(seed: int) -> None:
    draw = random.Random(seed)
    store = Memory()
    host = Host(store, 6)
    running: list[str] = []
    for step in range(400):
        if len(running) < 3:
            running.append(str(step))
            host.blocks.begin(running[-1])
        request = draw.choice(running)
        numbers = draw.sample(range(12), draw.randint(1, 3))
        store.full = draw.random() < 0.2
        if draw.random() < 0.1 and store.bytes:
            del store.bytes[draw.choice(list(store.bytes))]
        if draw.random() < 0.5:
            host.store(request, *numbers)
        else:
            found: Any = [number for number in numbers if host.blocks.find(request, block(number)) == "held"]
            ended, rows = host.load(request, *found)
            for number, row in zip(found, rows, strict=True):
                assert block(number).key in ended.failed or row == bytes(data(number))
            host.blocks.end_step()
        if draw.random() < 0.3:
            running.remove(request)
            host.blocks.end(request)
    for request in running:
        host.blocks.end(request)
    host.blocks.tier.check()
    host.blocks.close()
    assert store.bytes.keys() <= set(host.blocks.tier.block_of)
