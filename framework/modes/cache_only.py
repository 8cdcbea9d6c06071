"""executor=cache_only: each request is one atomic access; the mode of published hit-rate tables."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from framework.cli.progress import reference_progress
from framework.config.config import Config
from framework.guard.facts import reported
from framework.guard.observer import losses_of
from framework.guard.policy import GuardedPolicy
from framework.guard.workload import GuardedWorkload
from framework.interfaces.below import Below, CountedBelow
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.observer import Counted
from framework.interfaces.replay_core import ReplayCore
from framework.modes.replay_input import (
    block_bytes,
    paths_of,
    pool_blocks,
    what_fewer_bits_buy,
    workload_of,
)
from framework.modes.session import Session, names_of
from framework.registry.components import build_component
from framework.replay.optimum import optimum_hits
from framework.replay.paths import CacheOnlyResult, RequestPaths
from framework.replay.reference import PYTHON, core_of, count, replay
from framework.results.layout import REQUESTS

OPTIMUM_RULES = (
    "exact: one atomic access a request, only prompts cached, content may be declined; pinned: the request at hand "
    "holds its blocks and nothing exceeds the capacity, as in an engine"
)


def cache_only(session: Session) -> dict[str, Any]:
    """Each request is one access: the mode of published hit-rate tables. See replay.reference."""
    config, start = session.config, time.perf_counter()
    options, block_size = config.replay, config.cache.block_size
    name, workload = workload_of(config)
    core = core_of(options.core)
    paths = paths_of(workload, name, block_size, full_blocks_only=options.full_blocks_only)
    num_blocks = pool_blocks(config.cache, options, working_set=paths.num_nodes)
    shared = {"num_blocks": num_blocks, "block_size": block_size, "seed": config.seed}
    policy: EvictionPolicy = build_component("eviction", config.eviction.plain(), shared)
    chosen: Below = build_component("below", config.below.plain(), {})
    below = chosen.count(paths, policy, shared)
    session.facts |= {
        "num_skipped_lines": 0,
        **GuardedWorkload(workload).result(),
        **names_of(config, ("eviction", "workload")),
        **chosen.names(),
        "num_blocks": num_blocks,
        "block_size": block_size,
        "unique_blocks": paths.num_nodes,
        "infinite_hit_blocks": int(paths.infinite_hits.sum()),
        "infinite_hit_rate": float(paths.hit_tokens(paths.infinite_hits).sum() / max(1, paths.input_tokens.sum())),
        **({"eviction_needs_future": True} if policy.needs_future else {}),
    }
    session.open_observers()
    session.begin("none")
    measured: dict[str, Any] = {}

    def work() -> None:
        began = time.perf_counter()
        leaf_first, native = options.leaf_first, False
        losses = losses_of(session.observers)
        with reference_progress(paths.num_references, enabled=session.settings.progress) as tick:
            if below is None and losses is None:
                native, counts = count(core, paths, policy, num_blocks, leaf_first=leaf_first, progress=tick)
            else:  # what lies below and losses are known to Python alone
                counts = replay(
                    paths, policy, num_blocks, leaf_first=leaf_first, bypass=policy.bypass, below=below,
                    losses=losses, progress=tick,
                )  # fmt: skip
        if below is not None:
            measured.update(below.results(block_bytes(options, config.cache)))
        measured.update(reported({"eviction": GuardedPolicy(policy)}))
        measured.update(
            _counted(counts), replay_core=options.core if native else PYTHON, count_s=time.perf_counter() - began
        )
        if below is None:
            asked = core if native else None  # that it cannot count was said already
            measured.update(
                what_fewer_bits_buy(config, num_blocks, lambda blocks: _hit_rate(config, asked, paths, blocks))
            )
        total = num_blocks + (0 if below is None else below.num_blocks)
        for observer in session.observers:
            observer.counted(Counted(paths=paths, hits=counts.request_hits, num_blocks=total))
        if session.settings.requests:
            log_requests(session, paths, counts.request_hits, below)
        if options.optimum:
            measured.update(_against_optima(paths, counts, num_blocks, below))

    return session.record(work, lambda complete: {**measured, "replay_s": time.perf_counter() - start})


def _hit_rate(config: Config, core: ReplayCore | None, paths: RequestPaths, num_blocks: int) -> float:
    """Of a pool of `num_blocks`, counted by `core`; None: by Python."""
    shared = {"num_blocks": num_blocks, "block_size": config.cache.block_size, "seed": config.seed}
    policy: EvictionPolicy = build_component("eviction", config.eviction.plain(), shared)
    return count(core, paths, policy, num_blocks, leaf_first=config.replay.leaf_first)[1].hit_rate


def _counted(counts: CacheOnlyResult) -> dict[str, Any]:
    return {
        "num_requests": counts.num_requests,
        "hit_blocks": counts.hit_blocks,
        "prompt_blocks": counts.prompt_blocks,
        "hit_tokens": counts.hit_tokens,
        "prompt_tokens": counts.prompt_tokens,
        "num_evictions": counts.evictions,
        "hit_rate": counts.hit_rate,
        "hit_rate_blocks": counts.block_hit_rate,
    }


def log_requests(
    session: Session,
    paths: RequestPaths,
    hits: npt.NDArray[np.integer[Any]],
    below: CountedBelow | None = None,
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
    if below is not None:
        columns |= below.columns()
    for number, row in enumerate(zip(*columns.values(), strict=True)):
        session.run.log(REQUESTS, {**dict(zip(columns, row, strict=True)), **session.observed(number)})


def _against_optima(
    paths: RequestPaths, counts: CacheOnlyResult, num_blocks: int, below: CountedBelow | None
) -> dict[str, Any]:
    """The optima of a pool of `num_blocks` and what lies below it, and the gaps to them."""
    total, more = num_blocks, dict[str, Any]()
    if below is not None:
        total, more = num_blocks + below.num_blocks, below.against_optima(num_blocks)
    best = optimum_hits(paths, total, pinned=False)
    pinned = int(optimum_hits(paths, total, pinned=True, request_blocks=num_blocks).sum())
    return {
        "optimum_hit_blocks": int(best.sum()),
        "optimum_hit_rate": int(paths.hit_tokens(best).sum()) / max(1, int(paths.input_tokens.sum())),
        "optimum_hit_rate_blocks": int(best.sum()) / max(1, paths.num_references),
        "pinned_optimum_hit_blocks": pinned,
        **more,
        "optimum_rules": OPTIMUM_RULES + more.get("optimum_rules", ""),
        "gap_to_optimum": _gap(counts, int(best.sum())),
    }


def _gap(counts: CacheOnlyResult, best_hit_blocks: int) -> float | None:
    """How many times an optimum's misses were missed beyond it: 0 is optimal, 1 is twice as many."""
    least = counts.prompt_blocks - best_hit_blocks
    return (best_hit_blocks - counts.hit_blocks) / least if least else None
