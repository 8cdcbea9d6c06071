"""Rules, orders and ways to share memory by name."""

from __future__ import annotations

import pytest
from groups_plain import lru, paths_of

from framework.errors import ConfigError
from framework.groups.named import ORDERS, SHARINGS, memory_of, padded, rule_of, shares_of
from framework.groups.replay import replay_groups
from framework.groups.shapes import groups_of


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("order", [None, *ORDERS])
def test_an_order_leads_where_it_says_and_is_refused_elsewhere(sharing: str, order: str | None) -> None:
    paths = paths_of([[at // 2] * 1500 for at in range(24)], 16)
    given = {"unit": 16, "parents": paths.parents.tolist(), "num_bytes": 300 * 10**6}
    if order is not None and sharing not in ORDERS[order]:
        with pytest.raises(ConfigError, match=f"order={order} leads one_pool"):
            memory_of("qwen3.5-4b", sharing, order, lru, **given)  # type: ignore[arg-type]
        return
    memory = memory_of("qwen3.5-4b", sharing, order, lru, **given)  # type: ignore[arg-type]
    counts = replay_groups(paths, memory, rule_of("every", 16))
    assert counts.evictions > 0
    assert counts.hits[1::2].all(), counts.hits


@pytest.mark.parametrize("order", ["coverage", "marconi"])
def test_orders_of_states_are_refused_where_there_is_none(order: str) -> None:
    with pytest.raises(ConfigError, match="with recurrent states"):
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
