"""mode=hybrid: a trace over the groups of KV of a hybrid model, counted request by request or through the engine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from framework.config.config import Config
from framework.groups.checkpoints import CheckpointRule
from framework.groups.memory import Memory
from framework.guard.workload import GuardedWorkload
from framework.interfaces.allocator import Allocator
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.groups import KVGroup
from framework.interfaces.mode import OnBegin
from framework.modes.replay import OtherCache, full_replay
from framework.modes.replay_input import pool_blocks, workload_of
from framework.modes.session import Session, names_of
from framework.registry.components import build_component
from framework_cache_only.mode import log_requests, paths_of
from framework_hybrid.allocator import CountedGroups
from framework_hybrid.named import memory_of, rule_of
from framework_hybrid.optimum import bound_tokens
from framework_hybrid.plugin import HybridOptions
from framework_hybrid.replay import replay_groups
from framework_hybrid.shapes import groups_of

_OF_ONE_TABLE = ("utilisation", "waste_internal", "waste_reserved", "waste_external")
"""How a request's blocks are filled, of which a request over groups has several kinds."""


def hybrid(config: Config, options: HybridOptions, on_begin: OnBegin) -> dict[str, Any]:
    """Replay `config`'s trace over the groups of `options`; returns what `result.json` holds."""
    with Session(config, on_begin=on_begin) as session:
        if options.cache_only:
            return counted(session, options)
        session.facts["executor"] = config.executor or "none"
        return full_replay(session, OtherCache(make=lambda: shared_groups(config, options), results=results))


def results(allocator: Allocator, counted: dict[str, Any]) -> dict[str, Any]:
    """What a replay through the engine counted, and what the groups say."""
    assert isinstance(allocator, CountedGroups)
    return {key: value for key, value in counted.items() if key not in _OF_ONE_TABLE} | allocator.results()


def shared_groups(config: Config, options: HybridOptions) -> tuple[Allocator, EvictionPolicy]:
    """The allocator over the groups of `options`, and a policy of it."""
    asked, engine = groups_input(config, options), config.engine
    shared = {"block_size": config.cache.block_size, "num_blocks": asked.num_blocks, "seed": config.seed}
    allocator = CountedGroups(
        asked.memory, asked.rule, build_component("hash", config.hash.plain(), shared),
        num_blocks=asked.num_blocks, num_bytes=asked.num_bytes,
        step_tokens=min(engine.chunk_size or engine.max_batch_tokens, engine.max_batch_tokens),
    )  # fmt: skip
    return allocator, asked.memory.pools[0].host.policy.plugin


def counted(session: Session, options: HybridOptions) -> dict[str, Any]:
    """Each request is one access: full blocks of prompts, in bytes of all groups. See `replay_groups`."""
    config, start = session.config, time.perf_counter()
    unit, (name, workload) = config.cache.block_size, workload_of(config)
    paths = paths_of(workload, name, unit, full_blocks_only=True)
    asked = groups_input(config, options, paths.parents.tolist(), paths.num_nodes)
    session.facts |= {
        "num_skipped_lines": 0, **GuardedWorkload(workload).result(), **names_of(config, ("eviction", "workload")),
        "num_blocks": asked.num_blocks, "block_size": unit, "unique_blocks": paths.num_nodes,
    }  # fmt: skip
    session.begin("none")

    def work() -> None:
        counts = replay_groups(paths, asked.memory, asked.rule)
        if session.settings.requests:
            log_requests(session, paths, counts.hits // unit)
        measured.update(counts.results(), num_requests=paths.num_requests)
        if options.optimum:
            measured["bound_hit_tokens"] = bound_tokens(paths, asked.groups, asked.num_bytes)

    measured: dict[str, Any] = {}
    return session.record(work, lambda complete: {**measured, "replay_s": time.perf_counter() - start})


@dataclass(frozen=True, slots=True)
class GroupsInput:
    """What a hybrid replay is asked for.

    Attributes:
        groups: one a kind. memory: of them, as they share it. num_blocks: of attention, of all layers, that its
            `num_bytes` hold.
    """

    groups: Sequence[KVGroup]
    rule: CheckpointRule
    memory: Memory
    num_blocks: int
    num_bytes: int


def groups_input(
    config: Config, asked: HybridOptions, parents: list[int] | None = None, working_set: int | None = None
) -> GroupsInput:
    """The groups of `asked`, empty.

    Args:
        parents: of the trace's nodes, where it is read first. working_set: distinct blocks of the trace.
    """
    unit = config.cache.block_size
    groups = groups_of(asked.model, block_tokens=unit)
    size = sum(group.block_bytes for group in groups if group.kind != "state")
    num_blocks = pool_blocks(config.cache, config.replay, working_set, size)
    shared = {"block_size": unit, "seed": config.seed}
    num_bytes = max(num_blocks * size, pool_blocks(config.cache, config.replay, working_set, 1))  # capacity in bytes
    memory = memory_of(
        asked.model, config.cache.memory or "one_pool", asked.order,
        lambda blocks: build_component("eviction", config.eviction.plain(), {**shared, "num_blocks": blocks}),
        num_bytes=num_bytes, unit=unit, parents=parents, block_tokens=config.cache.group_block_size,
    )  # fmt: skip
    return GroupsInput(groups, rule_of(asked.rule, asked.interval, asked.count), memory, num_blocks, num_bytes)
