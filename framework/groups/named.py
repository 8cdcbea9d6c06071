"""Rules, orders and ways to share memory by name, as a configuration or an experiment chooses them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from framework.errors import ConfigError
from framework.groups.checkpoints import AtMost, CheckpointRule, Dense, EveryFew, Junctions, Retention, Superseding
from framework.groups.kinds import KVGroup
from framework.groups.memory import Memory, OnePool, Policies, PoolPerGroup, TwoLevel
from framework.groups.orders import Coupled, Coverage, Marconi, Quota
from framework.groups.shapes import flops_of, groups_of

SHARINGS = ("one_pool", "pool_per_group", "two_levels")
ORDERS: Mapping[str, Sequence[str]] = {
    "coupled": SHARINGS[:2], "coverage": SHARINGS[:2], "marconi": SHARINGS[:2], "marconi_as_coded": SHARINGS[:2],
    "quota": SHARINGS[:1],
}  # fmt: skip
"""Orders across groups, and where each can lead: pools of a group have quotas as they are, and pages go whole."""
OF_STATES = ("coverage", "marconi", "marconi_as_coded")
# SGLang's defaults: tokens of windows to those of full attention, bytes of states to those of attention.
WINDOW_TOKENS, STATE_BYTES = 0.8, 0.9


def rule_of(name: str, interval: int = 0, count: int = 8) -> CheckpointRule:
    """A rule for checkpoints: dense, retention, junctions, every, at_most or superseding.

    Args:
        interval: tokens between two places, of retention (0: none), every and at_most.
        count: of at_most, states a path.

    Raises:
        ConfigError: an unknown name, or no interval where the rule is about one.
    """
    rules: Mapping[str, Callable[[], CheckpointRule]] = {
        "dense": Dense, "retention": lambda: Retention(interval), "junctions": Junctions, "superseding": Superseding,
        "every": lambda: EveryFew(interval), "at_most": lambda: AtMost(count, interval),
    }  # fmt: skip
    if name not in rules or (name in ("every", "at_most") and interval < 1):
        raise ConfigError(f"a rule for checkpoints is one of {', '.join(rules)}, every and at_most with an interval of "
                          f"at least 1 token, found {name!r} with {interval}")  # fmt: skip
    return rules[name]()


def memory_of(
    config: Mapping[str, Any] | str, sharing: str, order: str | None, inner: Policies, *, num_bytes: int, unit: int,
    parents: Sequence[int], alpha: float = 1.0,
) -> Memory:  # fmt: skip
    """Memory of a model's groups under one way to share it and one order of eviction.

    Args:
        config: see `groups_of`. sharing: one of SHARINGS. order: one of ORDERS; None: that of `inner`.
        inner: makes the policy that leads alone, or within a group, or the pools that the order does not lead.
        num_bytes: of all groups. unit: tokens a block; one pool takes the smallest multiple that holds a state.
        alpha: of Marconi's score.

    Raises:
        ConfigError: an unknown model, or an order that cannot lead this sharing or these groups.
    """
    paths: dict[str, Any] = {"num_bytes": num_bytes, "parents": parents, "unit": unit}
    groups = groups_of(config, block_tokens=unit, layout="one_page" if sharing == "one_pool" else "by_kind")
    lacks_states = order in OF_STATES and all(group.kind != "state" for group in groups)
    if order is not None and (sharing not in ORDERS[order] or lacks_states):
        raise ConfigError(f"order={order} leads {' and '.join(ORDERS[order])}"
                          + (" of models with recurrent states" if order in OF_STATES else "")
                          + f", found {sharing} with groups {', '.join(group.name for group in groups)}")  # fmt: skip
    shares = shares_of(groups)
    across: Mapping[str | None, Policies] = {
        None: inner, "coupled": Coupled, "quota": lambda: Quota(shares, inner), "coverage": lambda: Coverage(groups),
        "marconi": lambda: Marconi(groups, flops_of(config), alpha=alpha),
        "marconi_as_coded": lambda: Marconi(groups, flops_of(config), alpha=alpha, as_coded=True),
    }  # fmt: skip
    if sharing == "two_levels":
        return TwoLevel(padded(groups), inner, **paths)
    if sharing == "one_pool":
        pool = OnePool(groups, across[order], **paths)
        pool.merge = order in OF_STATES  # they are orders of one tree, which has nothing twice
        return pool
    makes = iter([inner if order != "coupled" and group.kind != "state" else across[order] for group in groups])
    return PoolPerGroup(groups, lambda: next(makes)(), shares=shares, **paths)


def shares_of(groups: Sequence[KVGroup]) -> list[float]:
    """SGLang's split of memory among the groups; those of one kind alike."""
    page = max((group.block_bytes for group in groups if group.kind == "full"), default=1)
    parts = [WINDOW_TOKENS * group.block_bytes / page if group.length else float(group.kind == "full")
             for group in groups]  # fmt: skip
    states = STATE_BYTES * sum(parts) / max(1, parts.count(0.0))
    parts = [part or states for part in parts]
    return [part / sum(parts) for part in parts]


def padded(groups: Sequence[KVGroup]) -> list[KVGroup]:
    """The groups with blocks padded by a few percent, so that the largest is a multiple of the smaller."""
    largest = max(group.block_bytes for group in groups)
    counts = [largest // group.block_bytes for group in groups]
    page = max(-(-largest // count) * count for count in counts)
    return [replace(group, block_bytes=page // count) for group, count in zip(groups, counts, strict=True)]
