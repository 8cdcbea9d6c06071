"""Rules, orders and ways to share memory by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from groups_plain import group
from hybrid_helpers import lru, paths_of

from framework.errors import ConfigError
from framework.groups.checkpoints import Retention
from framework.groups.pool import GroupView
from framework.interfaces.eviction import EvictionPolicy
from framework_builtin.memory.one_pool import OnePool
from framework_hybrid.named import (
    ORDERS,
    Coupled,
    Coverage,
    Marconi,
    Quota,
    memory_of,
    padded,
    rule_of,
    shares_of,
)
from framework_hybrid.replay import replay_groups, resident_bytes
from framework_hybrid.rules import Dense, EveryFew
from framework_hybrid.shapes import Flops, groups_of

PAIR = (group("full"), group("state"))


def one_pool(
    policy: Callable[[], EvictionPolicy], prompts: list[list[int]], blocks: int, rule: Any = None
) -> tuple[OnePool, Any, Any]:
    paths = paths_of(prompts)
    memory = OnePool().open(PAIR, lambda _: policy(), num_bytes=4 * blocks, parents=paths.parents.tolist(), unit=4)
    return memory, paths, replay_groups(paths, memory, rule or Retention(0))


def test_groups_of_states_alone_share_alike() -> None:
    assert shares_of([group("state", name="a"), group("state", name="b")]) == [0.5, 0.5]


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
    assert pool.host.victim() == memory.find(0, second[1]), "though all of the first is older"
    pool.discard(memory.find(0, second[1]))
    assert pool.host.victim() in {memory.find(g, node) for g in (0, 1) for node in first} - {0}


def test_a_quota_takes_from_the_group_above_its_share() -> None:
    prompts = [[seed] * 40 for seed in range(12)]
    held = {}
    for share in (0.2, 0.6):
        memory, _, _ = one_pool(lambda share=share: Quota((1 - share, share), lru), prompts, 40, Dense())  # type: ignore[misc]
        held[share] = resident_bytes(memory)[1] / sum(resident_bytes(memory))
    assert held[0.2] < 0.3, held
    assert held[0.6] > held[0.2], held


# FLOPs of L tokens: attention 8 L + 4 L^2, MLP 16 L, state 22 L; a state and a token's K and V have 4 and 1 bytes.
FLOPS = Flops(attention=1, mlp=1, state=1, width=1, state_width=0)


@pytest.mark.parametrize(
    ("as_coded", "first", "second", "goes"),
    # 0 to 8: 4 * 64 + 46 * 8 = 624 over 12 bytes. 8 to 16: 4 * (256 - 64) + 46 * 8 = 1,136 over 12 bytes;
    # as coded 4 * 256 - 8 * 64 + 46 * 16 - 38 * 8 = 944 over the 20 bytes of the whole path.
    [(False, 624 / 12, 1136 / 12, 8), (True, 624 / 12, 944 / 20, 16)],
)
def test_marconi_as_meant_and_as_coded_give_up_different_states(
    as_coded: bool, first: float, second: float, goes: int
) -> None:
    policy = Marconi(PAIR, FLOPS, alpha=10, as_coded=as_coded)
    one_pool(lambda: policy, [[1] * 17], 40, EveryFew(8))
    assert (policy.efficiency(0, 8), policy.efficiency(8, 16)) == pytest.approx((first, second))
    assert policy.view.end[policy.victim(0.0)] == goes
    policy.alpha = 0
    assert policy.view.end[policy.victim(0.0)] == 8, "the least recently used"


def test_marconi_spares_forks_and_gives_up_k_and_v_that_no_state_needs() -> None:
    policy = Marconi(PAIR, FLOPS, alpha=0)
    prompts = [[1] * 17, [1] * 8 + [2] * 9, [1] * 18, [1] * 8 + [2] * 10]  # the last two resume at 16
    memory, *_ = one_pool(lambda: policy, prompts, 40, EveryFew(8))
    pool, gone = memory.pools[0], []
    while len(gone) < 7:
        block = policy.victim(0.0)
        gone.append((pool.group[block], pool.end[block]))
        pool.discard(block)
    leaf = [(1, 16), (0, 16), (0, 12)]
    assert gone == [*leaf, (1, 8), *leaf], "leaves whole; the fork, which is the oldest state, once it is none"


def test_threads_on_engines_are_replayed(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(repository))
    published = importlib.import_module("experiments.hybrid.published")
    assert published.coverage(lru) == [0, 8192, 0, 0], "sglang#38000 before"
    assert published.coverage(lambda: Coverage(PAIR)) == [8192, 8192, 16384, 28672], "sglang#38000"
    path, consumed = (published.refreshed(16, 12, 48, refresh) for refresh in ("path", "consumed"))
    assert consumed > path + 0.1, ("sglang#31643", path, consumed)
    for units, least in ((10, 0.87), (18, 0.92)):
        hit, dropped = (published.repeated(units, drop=drop) for drop in (False, True))
        tokens = round(1648 * units / 0.975)
        assert [round(hit * tokens), round(dropped * tokens)] == [1648 * units, 1648 * (units - 1)], "vllm#53670"
        assert (round(hit, 3), least) == (0.975, int(100 * dropped) / 100), (hit, dropped)


@pytest.mark.parametrize("way", ["one_pool", "pool_per_group", "two_level"])
@pytest.mark.parametrize("order", [None, *ORDERS])
def test_an_order_leads_where_it_says_and_is_refused_elsewhere(way: str, order: str | None) -> None:
    paths = paths_of([[at // 2] * 1500 for at in range(24)], 16)
    given = {"unit": 16, "parents": paths.parents.tolist(), "num_bytes": 300 * 10**6}
    if order is not None and (way == "two_level" or (order, way) == ("quota", "pool_per_group")):
        with pytest.raises(ConfigError, match=f"order={order} cannot lead here"):
            memory_of("qwen3.5-4b", way, order, lru, **given)  # type: ignore[arg-type]
        return
    memory = memory_of("qwen3.5-4b", way, order, lru, **given)  # type: ignore[arg-type]
    counts = replay_groups(paths, memory, rule_of("every", 16))
    assert counts.evictions > 0
    assert counts.hits[1::2].all(), counts.hits


@pytest.mark.parametrize("order", ["coverage", "marconi"])
def test_orders_of_states_are_refused_where_there_is_none(order: str) -> None:
    with pytest.raises(ConfigError, match="chooses among recurrent states"):
        memory_of("gemma-3-27b", "one_pool", order, lru, unit=16, parents=[-1], num_bytes=10**9)


def test_shares_are_sglang_s_and_the_same_however_kinds_are_split() -> None:
    full, window = shares_of(groups_of("gemma-3-27b"))
    assert window / full == pytest.approx(0.8 * 52 / 10), "0.8 of the tokens"
    full, *states = shares_of(groups_of("qwen3-next-80b", layout="one_page"))
    assert (sum(states) / full, len(set(states))) == (pytest.approx(0.9), 1)
    assert shares_of(groups_of("gemma-3-27b", layout="one_page"))[1] == pytest.approx(0.8 / 5.8)


def test_padding_makes_the_largest_block_a_multiple_of_the_others() -> None:
    for name in ("gemma-3-27b", "qwen3-next-80b"):
        groups = groups_of(name, block_tokens=512)
        sizes = [group.block_bytes for group in padded(groups)]
        assert max(sizes) % min(sizes) == 0
        assert all(1 <= size / group.block_bytes < 1.05 for size, group in zip(sizes, groups, strict=True)), sizes


@pytest.mark.parametrize(("name", "interval"), [("sparse", 0), ("every", 0), ("at_most", 0)])
def test_a_rule_that_is_unknown_or_has_no_interval_is_refused(name: str, interval: int) -> None:
    with pytest.raises(ConfigError, match="a rule for checkpoints is one of dense"):
        rule_of(name, interval)
