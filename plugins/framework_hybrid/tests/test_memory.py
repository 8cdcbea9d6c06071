"""Three ways to share memory: what each holds, gives up, and calls a hit, over random traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from groups_plain import LAYOUTS, brute_hit, group
from hybrid_helpers import branching, lru, memories, paths_of

from framework.errors import InvalidArgument, OutOfBlocks, Unsupported
from framework.groups.checkpoints import CheckpointRule, Retention
from framework.groups.memory import Memory
from framework.interfaces.allocator import CacheEvent
from framework.interfaces.eviction import BlockView, EvictionPolicy
from framework.registry import load, names
from framework.registry.components import build_component
from framework.types import BlockId
from framework_builtin.eviction.lru import Lru
from framework_builtin.memory.one_pool import OnePool
from framework_builtin.memory.pool_per_group import PoolPerGroup
from framework_builtin.memory.two_level import TwoLevel
from framework_hybrid.replay import replay_groups, resident_bytes
from framework_hybrid.rules import Dense, EveryFew

WAYS = ("one pool", "pool per group", "two levels")
RULES: tuple[CheckpointRule, ...] = (Dense(), Retention(0), EveryFew(12))


class Watched:
    """A memory whose contents are kept a second time, as a set, and whose every hit is worked out by brute force."""

    def __init__(self, memory: Memory) -> None:
        self.memory, self.have = memory, set[tuple[int, int]]()
        hit, publish = memory.hit, memory.publish
        memory.listener = self.heard

        def watched_hit(path: list[int], limit: int) -> object:
            found = hit(path, limit)
            wide = [each.block_tokens // memory.unit for each in memory.groups]
            have = [{n for n in range(len(path) // w) if (g, path[(n + 1) * w - 1]) in self.have}
                    for g, w in enumerate(wide)]  # fmt: skip
            assert found.tokens == brute_hit(memory.groups, have, limit), (path, have, found)
            return found

        def watched_publish(g: int, block: int, path: list[int], number: int) -> int:
            holder = publish(g, block, path, number)
            self.have.add((g, path[(number + 1) * (memory.groups[g].block_tokens // memory.unit) - 1]))
            assert self.have == set(memory.resident()), self.have ^ set(memory.resident())
            return holder

        memory.hit, memory.publish = watched_hit, watched_publish  # type: ignore[method-assign, assignment]

    def heard(self, event: CacheEvent) -> None:
        pool, key = self.memory.pools[event.group], (event.group, event.hashes[0])
        if event.kind == "evict" and len(pool.index[key]) == 1:
            self.have.remove(key)


@pytest.mark.parametrize(
    ("way", "layout", "rule"),
    [(way, layout, RULES[(w + k) % 3]) for w, way in enumerate(WAYS) for k, layout in enumerate(LAYOUTS)],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_every_hit_is_what_the_resident_contents_of_its_own_branch_allow(
    way: str, layout: str, rule: CheckpointRule
) -> None:
    groups = LAYOUTS[layout]
    for seed, budget in enumerate((60, 140, 400)):
        paths = paths_of(branching(60, seed))
        memory = memories(groups, budget * len(groups), paths)[way]
        Watched(memory)
        counts = replay_groups(paths, memory, rule, chunk_tokens=24)
        for pool in dict.fromkeys(memory.pools):
            assert not any(pool.ref), "requests that ended hold nothing"
            resident = sum(node >= 0 for node in pool.node)
            inner = sum(node >= 0 and pool.leaf_only and pool.children[at] > 0 for at, node in enumerate(pool.node))
            assert pool.unreferenced == resident == sum(pool.candidate) + inner
        assert sum(resident_bytes(memory)) <= budget * len(groups)
        assert counts.evictions > 0 or budget == 400, "the smaller budgets must evict"
        assert counts.hits.sum() > 0 or counts.refused, counts


@pytest.mark.parametrize("way", WAYS)
def test_with_room_for_all_a_dense_cache_hits_all_that_was_seen(way: str) -> None:
    paths = paths_of(branching(60, 5))
    for layout in ("full", "window", "windows", "chunk"):
        memory = memories(LAYOUTS[layout], 10**5, paths)[way]
        counts = replay_groups(paths, memory, Dense())
        seen = (paths.infinite_hits * 4).clip(max=(paths.input_tokens - 1) // 4 * 4)
        assert counts.hits.tolist() == seen.tolist(), layout
        assert (counts.evictions, counts.refused) == (0, 0)


def test_a_state_of_a_sibling_branch_is_no_state() -> None:
    groups = LAYOUTS["state"]
    shared, left, right = [1] * 8, [2] * 8, [3] * 8
    paths = paths_of([shared + left + [9], shared + right + [9], shared + right + [9]])
    counts = replay_groups(paths, memories(groups, 10**4, paths)["one pool"], Retention(0))
    assert counts.hits.tolist() == [0, 0, 16], "the second shares 8 tokens with the first and its state lies at 16"
    assert counts.junctions.tolist() == [0, 8, 0]


def test_a_tombstone_keeps_the_prefix_and_ends_the_hit_before_it() -> None:
    groups = (group("full"), group("state"))
    long = [[seed] * 40 for seed in range(4)]
    paths = paths_of([*long, [0] * 40])
    given = {"parents": paths.parents.tolist(), "unit": 4}
    memory = PoolPerGroup().open(groups, lru, num_blocks=(192, 8), **given)  # type: ignore[arg-type]
    counts = replay_groups(paths, memory, EveryFew(12))  # 4 states each, of which 8 fit
    assert counts.could[4].tolist() == [36, 0], "all KV of the first prompt is there, none of its states"
    assert (counts.hits[4], counts.junctions[4], counts.lost[4].tolist()) == (0, 36, [0, 36])


def test_a_leaf_goes_whole_and_a_window_takes_the_state_along() -> None:
    groups = (group("full"), group("window", 9), group("state"))
    paths = paths_of([[1] * 12 + [2] * 4, [1] * 12 + [3] * 4])
    memory = PoolPerGroup().open(groups, lru, num_blocks=(40, 40, 40), parents=paths.parents.tolist(), unit=4)
    replay_groups(paths, memory, Dense(), chunk_tokens=4)
    first = paths.nodes[:4].tolist()
    assert {(g, first[2]) for g in range(3)} | {(g, first[3]) for g in range(2)} <= set(memory.resident())
    memory.pools[1].discard(memory.find(1, first[2]))  # at a fork, inside the tree
    assert [memory.find(g, first[2]) > 0 for g in range(3)] == [True, False, False]
    memory.pools[1].discard(memory.find(1, first[3]))  # at a leaf
    assert [memory.find(g, first[3]) > 0 for g in range(3)] == [False, False, False]
    assert memory.find(0, first[2]), "the fork is another leaf's parent"


def test_two_levels_give_a_page_back_whole_and_share_it_among_groups() -> None:
    groups = (group("full", size=2), group("window", 9, size=3))
    paths = paths_of([[1] * 40, [2] * 40, [1] * 40])
    memory = TwoLevel().open(groups, lru, num_bytes=60, parents=paths.parents.tolist(), unit=4)
    assert (memory.pages.num_blocks, memory.per_page) == (10, [3, 2])
    counts = replay_groups(paths, memory, Dense())
    assert counts.hits.tolist() == [0, 0, 0], "ten pages hold one prompt"
    assert counts.evictions > 0
    with pytest.raises(OutOfBlocks, match="need 99 blocks of full"):
        memory.take(0, 99)
    assert memory.take(0, 30), "all pages, whoever has them"


def test_ways_refuse_what_they_cannot_hold() -> None:
    given = {"num_bytes": 100, "parents": [-1], "unit": 4}
    two = (group("full"), group("window", 9, block=8))
    with pytest.raises(InvalidArgument, match="equal blocks"):
        PoolPerGroup().open(two, lru, num_blocks=(9, 9), parents=[-1], unit=4)
    with pytest.raises(InvalidArgument, match="least common multiple"):
        TwoLevel().open((group("full", size=7), group("window", 9, size=11)), lru, **given)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="multiples of 3 tokens"):
        OnePool().open(two, lru, num_bytes=100, parents=[-1], unit=3)
    with pytest.raises(Unsupported, match="needs the future"):
        OnePool().open(two, lambda _: build_component("eviction", "belady", {}), **given)  # type: ignore[arg-type]
    with pytest.raises(OutOfBlocks, match="need 26 blocks"):
        OnePool().open(two, lru, **given).take(0, 26)  # type: ignore[arg-type]


@pytest.mark.parametrize("way", WAYS)
def test_a_policy_gets_lists_deepest_block_first_and_blocks_keep_their_names_until_they_go(way: str) -> None:
    class Looks(Lru):
        def attach(self, blocks: BlockView) -> None:
            super().attach(blocks)
            self.named: dict[BlockId, Any] = {}

        def look(self, blocks: Sequence[BlockId], now: float) -> None:
            depths.append([self.blocks.depth[block] for block in blocks])

        def admit(self, blocks: Sequence[BlockId], now: float) -> None:
            self.named.update((block, self.blocks.key[block]) for block in blocks)

        def hit(self, blocks: Sequence[BlockId], now: float) -> None:
            self.look(blocks, now)

        def pin(self, blocks: Sequence[BlockId], now: float) -> None:
            super().pin(blocks, now)
            self.look(blocks, now)

        def release(self, blocks: Sequence[BlockId], now: float) -> None:
            super().release(blocks, now)
            self.look(blocks, now)

        def evicted(self, block: BlockId, now: float) -> None:
            super().evicted(block, now)
            gone.append((self.named[block], self.blocks.key[block]))

    depths, gone = list[list[int]](), list[tuple[Any, Any]]()
    paths = paths_of(branching(60, 2))
    replay_groups(paths, memories(LAYOUTS["full"], 140, paths, Looks)[way], Dense(), refresh="path")
    assert max(map(len, depths)) > 3, "no list to order"
    assert all(own == sorted(own, reverse=True) for own in depths), depths
    assert gone, "nothing was evicted"
    assert all(before == now is not None for before, now in gone), gone[:3]


@pytest.mark.parametrize(("number", "name"), [*enumerate(sorted(names("eviction")))])
def test_policies_written_before_lead_a_memory_of_groups(number: int, name: str) -> None:
    paths = paths_of(branching(80, 2))
    if load("eviction", name).needs_future:
        return

    def fresh() -> EvictionPolicy:
        policy: EvictionPolicy = build_component("eviction", name, {"num_blocks": 60, "block_size": 4, "seed": 0})
        return policy

    memory = memories(LAYOUTS["all"], 720, paths, fresh)[WAYS[number % 3]]
    Watched(memory)
    counts = replay_groups(paths, memory, Dense(), chunk_tokens=8)
    assert counts.evictions > 20
    assert counts.hits.sum() > 0
