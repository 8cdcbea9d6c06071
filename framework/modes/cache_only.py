"""executor=cache_only: each request is one atomic access; the mode of published hit-rate tables."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from framework.cli.progress import reference_progress
from framework.config.config import Config
from framework.errors import ConfigError
from framework.groups.optimum import bound_tokens
from framework.groups.replay import replay_groups
from framework.guard.facts import reported
from framework.guard.policy import GuardedPolicy
from framework.guard.workload import GuardedWorkload
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.replay_core import ReplayCore
from framework.misses.account import Account
from framework.modes.replay_input import (
    block_bytes,
    groups_input,
    paths_of,
    pool_blocks,
    what_fewer_bits_buy,
    workload_of,
)
from framework.modes.session import Session, names_of
from framework.registry.components import build_component
from framework.replay.misses import LossLog, explain
from framework.replay.optimum import optimum_hits, shares_of_best, tier_optima
from framework.replay.paths import CacheOnlyResult, RequestPaths
from framework.replay.reference import PYTHON, core_of, count, replay
from framework.replay.tiers import ReplayTiers, TierSpec
from framework.results.layout import REQUESTS

OPTIMUM_RULES = (
    "exact: one atomic access a request, only prompts cached, content may be declined; pinned: the request at hand "
    "holds its blocks and nothing exceeds the capacity, as in an engine"
)
OVER_TIERS = (
    "; over tiers: one schedule that hits most in the pool and in all tiers down to each one at once, which bounds any "
    "rule's hits; a request holds its blocks in the pool"
)


def cache_only(session: Session) -> dict[str, Any]:
    """Each request is one access: the mode of published hit-rate tables. See replay.reference."""
    config, start = session.config, time.perf_counter()
    options, block_size = config.replay, config.cache.block_size
    if options.groups is not None:
        return over_groups(session)
    name, workload = workload_of(config)
    core = core_of(options.core)
    paths = paths_of(workload, name, block_size, full_blocks_only=options.full_blocks_only)
    num_blocks = pool_blocks(config.cache, options, working_set=paths.num_nodes)
    shared = {"num_blocks": num_blocks, "block_size": block_size, "seed": config.seed}
    policy: EvictionPolicy = build_component("eviction", config.eviction.plain(), shared)
    below = tiers_of(config, shared)
    rule = build_component("tiering", config.tiering.plain(), shared) if below else None
    if below and policy.bypass:
        raise ConfigError(
            f"eviction={config.eviction.name} may decline the request at hand's blocks, which "
            "no pool above other tiers can; leave tiers out or choose another policy"
        )
    session.facts |= {
        "num_skipped_lines": 0,
        **GuardedWorkload(workload).result(),
        **names_of(config, ("eviction", "workload")),
        **(names_of(config, ("tiering",)) if below else {}),
        "num_blocks": num_blocks,
        "block_size": block_size,
        "unique_blocks": paths.num_nodes,
        "infinite_hit_blocks": int(paths.infinite_hits.sum()),
        "infinite_hit_rate": float(paths.hit_tokens(paths.infinite_hits).sum() / max(1, paths.input_tokens.sum())),
        **({"eviction_needs_future": True} if policy.needs_future else {}),
    }
    session.begin("none")
    measured: dict[str, Any] = {}

    def work() -> None:
        began = time.perf_counter()
        leaf_first, tiers, native = options.leaf_first, None, False
        losses = LossLog() if session.settings.explain else None
        if rule is not None:
            tiers = ReplayTiers(paths, below, rule)
        with reference_progress(paths.num_references, enabled=session.settings.progress) as tick:
            if tiers is None and losses is None:
                native, counts = count(core, paths, policy, num_blocks, leaf_first=leaf_first, progress=tick)
            else:  # tiers and losses are known to Python alone
                counts = replay(
                    paths, policy, num_blocks, leaf_first=leaf_first, bypass=policy.bypass, below=tiers,
                    losses=losses, progress=tick,
                )  # fmt: skip
        if tiers is not None:
            measured.update(tiers.results(block_bytes(options, config.cache)))
        measured.update(reported({"eviction": GuardedPolicy(policy)}))
        measured.update(
            _counted(counts), replay_core=options.core if native else PYTHON, count_s=time.perf_counter() - began
        )
        if not below:
            asked = core if native else None  # that it cannot count was said already
            measured.update(
                what_fewer_bits_buy(config, num_blocks, lambda blocks: _hit_rate(config, asked, paths, blocks))
            )
        account: Account | None = None
        if losses is not None:
            total = num_blocks + sum(spec.num_blocks for spec in below)
            name = config.eviction.name
            account = explain(paths, counts.request_hits, losses, num_blocks=total, policy=name)
            session.explained(account)
            measured.update(account.results())
        if session.settings.requests:
            _log_requests(session, paths, counts.request_hits, tiers, account)
        if options.optimum:
            sizes = [num_blocks, *(spec.num_blocks for spec in below)]
            measured.update(_against_optima(paths, counts, sizes, tiers))

    return session.record(work, lambda complete: {**measured, "replay_s": time.perf_counter() - start})


def over_groups(session: Session) -> dict[str, Any]:
    """The same over several kinds of KV: full blocks of prompts, in bytes of all groups. See groups.replay."""
    config, start = session.config, time.perf_counter()
    unit, (name, workload) = config.cache.block_size, workload_of(config)
    paths = paths_of(workload, name, unit, full_blocks_only=True)
    asked = groups_input(config, paths.parents.tolist(), paths.num_nodes)
    session.facts |= {
        "num_skipped_lines": 0, **GuardedWorkload(workload).result(), **names_of(config, ("eviction", "workload")),
        "num_blocks": asked.num_blocks, "block_size": unit, "unique_blocks": paths.num_nodes,
    }  # fmt: skip
    session.begin("none")

    def work() -> None:
        counts = replay_groups(paths, asked.memory, asked.rule)
        if session.settings.requests:
            _log_requests(session, paths, counts.hits // unit)
        measured.update(counts.results(), num_requests=paths.num_requests)
        if config.replay.optimum:
            measured["bound_hit_tokens"] = bound_tokens(paths, asked.groups, asked.num_bytes)

    measured: dict[str, Any] = {}
    return session.record(work, lambda complete: {**measured, "replay_s": time.perf_counter() - start})


def _hit_rate(config: Config, core: ReplayCore | None, paths: RequestPaths, num_blocks: int) -> float:
    """Of a pool of `num_blocks`, counted by `core`; None: by Python."""
    shared = {"num_blocks": num_blocks, "block_size": config.cache.block_size, "seed": config.seed}
    policy: EvictionPolicy = build_component("eviction", config.eviction.plain(), shared)
    return count(core, paths, policy, num_blocks, leaf_first=config.replay.leaf_first)[1].hit_rate


def tiers_of(config: Config, shared: Mapping[str, Any]) -> list[TierSpec]:
    """The tiers that the configuration puts below the pool, from the top down."""
    specs = []
    for entry in config.tiers or ():
        num_blocks = int(entry["num_blocks"])
        tier_facts = {**shared, "num_blocks": num_blocks}
        specs.append(TierSpec(num_blocks, build_component("eviction", entry.get("eviction") or "lru", tier_facts)))
        build_component("store", entry["store"], {})  # its options are checked; a replay moves no bytes
    return specs


def _counted(counts: CacheOnlyResult) -> dict[str, Any]:
    return {
        "num_requests": counts.num_requests,
        "hit_blocks": counts.hit_blocks,
        "prompt_blocks": counts.prompt_blocks,
        "hit_tokens": counts.hit_tokens,
        "prompt_tokens": counts.prompt_tokens,
        "admitted_blocks": counts.admitted,
        "num_evictions": counts.evictions,
        "hit_rate": counts.hit_rate,
        "hit_rate_blocks": counts.block_hit_rate,
    }


def _log_requests(
    session: Session,
    paths: RequestPaths,
    hits: npt.NDArray[np.integer[Any]],
    tiers: ReplayTiers | None = None,
    account: Account | None = None,
) -> None:
    """`requests.jsonl`: what each request asked for and hit, (R,) blocks."""
    assert paths.known is not None
    columns: dict[str, Sequence[Any]] = {
        "request": range(paths.num_requests),
        "tenant": [facts.tenant or "" for facts in paths.known],
        "session": [facts.session for facts in paths.known],
        "turn": [facts.turn for facts in paths.known],
        "category": [facts.category for facts in paths.known],
        "arrival_s": [facts.arrival for facts in paths.known],
        "prompt_tokens": paths.input_tokens.tolist(),
        "cached_tokens": paths.hit_tokens(hits).tolist(),
        "prompt_blocks": np.diff(paths.starts).tolist(),
        "hit_blocks": hits.tolist(),
    }
    if tiers is not None:
        for number, hits in enumerate(tiers.tier_hits.T[1:], start=1):
            columns[f"tier{number}_blocks"] = hits.tolist()
    if account is not None:
        columns |= account.columns()
    for row in zip(*columns.values(), strict=True):
        session.run.log(REQUESTS, dict(zip(columns, row, strict=True)))


def _against_optima(
    paths: RequestPaths, counts: CacheOnlyResult, sizes: Sequence[int], tiers: ReplayTiers | None
) -> dict[str, Any]:
    """The optima of these capacities, the pool's first, and the gaps to them."""
    best = _optima(paths, sizes)
    gaps = {
        "optimum_rules": OPTIMUM_RULES + (OVER_TIERS if tiers is not None else ""),
        "gap_to_optimum": _gap(counts, best["optimum_hit_blocks"]),
        "gap_to_pinned_optimum": _gap(counts, best["pinned_optimum_hit_blocks"]),
    }
    if tiers is None:
        return {**best, **gaps}
    pinned = [best[f"tier{number}_pinned_optimum_hit_blocks"] for number in range(len(sizes))]
    shares = shares_of_best(tiers.tier_hits.sum(axis=0, dtype=np.int64).tolist(), pinned)
    least, most = shares or (None, None)
    return {**best, **gaps, "tier_value_share_min": least, "tier_value_share_max": most}


def _optima(paths: RequestPaths, sizes: Sequence[int]) -> dict[str, Any]:
    total = sum(sizes)
    best = optimum_hits(paths, total, pinned=False)
    found = {
        "optimum_hit_blocks": int(best.sum()),
        "optimum_hit_rate": int(paths.hit_tokens(best).sum()) / max(1, int(paths.input_tokens.sum())),
        "optimum_hit_rate_blocks": int(best.sum()) / max(1, paths.num_references),
        "pinned_optimum_hit_blocks": int(optimum_hits(paths, total, pinned=True, request_blocks=sizes[0]).sum()),
    }
    if len(sizes) > 1:
        for name, pinned in (("optimum", False), ("pinned_optimum", True)):
            hits = tier_optima(paths, sizes, pinned=pinned)
            found |= {f"tier{number}_{name}_hit_blocks": count for number, count in enumerate(hits)}
    return found


def _gap(counts: CacheOnlyResult, best_hit_blocks: int) -> float | None:
    """How many times an optimum's misses were missed beyond it: 0 is optimal, 1 is twice as many."""
    least = counts.prompt_blocks - best_hit_blocks
    return (best_hit_blocks - counts.hit_blocks) / least if least else None
