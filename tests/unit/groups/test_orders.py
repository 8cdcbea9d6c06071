"""Orders of eviction across groups, and the columns that they read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from groups_plain import LAYOUTS, branching, group, lru, paths_of

from framework.groups.checkpoints import Dense, EveryFew, Retention
from framework.groups.memory import OnePool, PoolPerGroup
from framework.groups.orders import Coupled, Coverage, Quota
from framework.groups.pool import GroupView
from framework.groups.replay import replay_groups
from framework.interfaces.eviction import EvictionPolicy

PAIR = (group("full"), group("state"))


def one_pool(
    policy: Callable[[], EvictionPolicy], prompts: list[list[int]], blocks: int, rule: Any = None
) -> tuple[OnePool, Any, Any]:
    paths = paths_of(prompts)
    memory = OnePool(PAIR, policy, num_bytes=4 * blocks, parents=paths.parents.tolist(), unit=4)
    return memory, paths, replay_groups(paths, memory, rule or Retention(0))


def test_the_columns_say_what_of_a_block_is_worth_what() -> None:
    policy = Coupled()
    memory, paths, _ = one_pool(lambda: policy, [[1] * 21, [1] * 20 + [2] * 17], 40)
    view = policy.blocks
    assert isinstance(view, GroupView)
    path = paths.nodes[5:14].tolist()
    blocks = [memory.find(0, node) for node in path]
    assert [view.end[block] for block in blocks] == [4 * (at + 1) for at in range(9)]
    assert [view.partners[block] for block in blocks] == [0, 0, 0, 0, 1, 0, 0, 0, 1], "states at 20 and 36"
    assert [view.resume[block] for block in blocks] == [False] * 4 + [True] + [False] * 3 + [True]
    assert [view.replay_cost[block] for block in blocks] == [4, 8, 12, 16, 20, 4, 8, 12, 16]
    state = memory.find(1, path[8])
    assert (view.group[state], view.num_bytes[state], view.replay_cost[state]) == (1, 4, 16)


def test_coupled_gives_up_first_what_lost_its_last_partner() -> None:
    memory, paths, _ = one_pool(Coupled, [[1] * 9, [2] * 9], 20)
    first, second = paths.nodes[:2].tolist(), paths.nodes[2:].tolist()
    pool = memory.pools[0]
    pool.discard(memory.find(1, second[1]))
    assert pool.policy.victim(0.0, pool.candidate) == memory.find(0, second[1]), "though all of the first is older"
    pool.discard(memory.find(0, second[1]))
    assert pool.policy.victim(0.0, pool.candidate) in {memory.find(g, node) for g in (0, 1) for node in first} - {0}


def test_a_quota_takes_from_the_group_above_its_share() -> None:
    prompts = [[seed] * 40 for seed in range(12)]
    held = {}
    for share in (0.2, 0.6):
        memory, _, _ = one_pool(lambda share=share: Quota((1 - share, share), lru), prompts, 40, Dense())  # type: ignore[misc]
        held[share] = memory.bytes_by_group()[1] / sum(memory.bytes_by_group())
    assert held[0.2] < 0.3, held
    assert held[0.6] > held[0.2], held


def test_coverage_thins_close_states_where_lru_loses_the_beginning() -> None:
    """The case of sglang#38000, smaller: three long chains, as many states as their chunks, a fork in the middle."""
    chains, fork = [[seed] * 129 for seed in range(3)], [0] * 32 + [9] * 20
    hits = {}
    for name, of_states in (("lru", lru), ("coverage", Coverage)):
        paths = paths_of([*chains, fork])
        makes = iter((lru, of_states))
        memory = PoolPerGroup(PAIR, lambda makes=makes: next(makes)(), num_bytes=1600,  # type: ignore[misc]
                              shares=(0.9, 0.1), parents=paths.parents.tolist(), unit=4)  # fmt: skip
        assert memory.pools[1].num_blocks == 40, "of 48 that the chains publish"
        hits[name] = replay_groups(paths, memory, EveryFew(8)).hits.tolist()[-1]
    assert hits == {"lru": 0, "coverage": 32}


@pytest.mark.parametrize("refresh", ["consumed", "path"])
def test_refreshing_the_whole_path_keeps_states_that_no_hit_needs(refresh: Any) -> None:
    paths = paths_of(branching(80, 7))
    memory = OnePool(LAYOUTS["state"], lru, num_bytes=400, parents=paths.parents.tolist(), unit=4)
    counts = replay_groups(paths, memory, EveryFew(4), refresh=refresh)
    assert counts.hits.sum() > 0
    assert not any(memory.pools[0].ref)
