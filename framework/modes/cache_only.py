"""executor=cache_only: each request is one atomic access; the mode of published hit-rate tables."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from framework.config.sections import ReplayOptions
from framework.files.memo import remembered
from framework.interfaces.eviction import EvictionPolicy
from framework.modes.replay_input import paths_of, pool_blocks, workload_of
from framework.modes.session import Session, names_of
from framework.registry.components import build_component
from framework.registry.options import section
from framework.replay.cores import count
from framework.replay.optimum import optimum_hits
from framework.replay.paths import RequestPaths
from framework.replay.reference import CacheOnlyResult

OPTIMUM_RULES = (
    "exact: one atomic access a request, only prompts cached, content may be declined; pinned: the request at hand "
    "holds its blocks and nothing exceeds the capacity, as in an engine"
)


def cache_only(session: Session, options: ReplayOptions) -> dict[str, Any]:
    """Each request is one access: the mode of published hit-rate tables. See replay.reference."""
    config, start = session.config, time.perf_counter()
    cache = section(config, "cache")
    block_size = int(cache.get("block_size", 16))
    name, workload = workload_of(config)
    paths = paths_of(workload, name, block_size, full_blocks_only=options.full_blocks_only)
    num_blocks = pool_blocks(cache, options, working_set=paths.num_nodes)
    shared = {"num_blocks": num_blocks, "block_size": block_size, "seed": int(config.get("seed", 0))}
    policy: EvictionPolicy = build_component("eviction", config.get("eviction") or "lru", shared)
    session.facts |= {
        **names_of(config, ("eviction", "workload")),
        "num_blocks": num_blocks,
        "block_size": block_size,
        "unique_blocks": paths.num_nodes,
        "infinite_hit_blocks": int(paths.infinite_hits.sum()),
        "infinite_hit_rate": float(paths.hit_tokens(paths.infinite_hits).sum() / max(1, paths.input_tokens.sum())),
        **({"eviction_needs_future": True} if policy.needs_future else {}),
        "num_skipped_lines": 0,
        **workload.facts(),
    }
    session.begin("none")
    measured: dict[str, Any] = {}

    def work() -> None:
        began = time.perf_counter()
        core, counts = count(config.get("allocator"), paths, policy, num_blocks, leaf_first=options.leaf_first)
        measured.update(_counted(counts), replay_core=core, count_s=time.perf_counter() - began)
        if session.settings.get("requests", True):
            _log_requests(session, paths, counts)
        if options.optimum:
            facts = {"sha256": session.facts.get("trace_sha256"), "num_blocks": num_blocks}
            facts |= {"workload": section(config, "workload"), "seed": config.get("seed", 0)}
            facts |= {"block_size": block_size, "full_blocks_only": options.full_blocks_only, "rules": OPTIMUM_RULES}
            facts["num_requests"] = paths.num_requests
            best = remembered(session.shared_folder, facts, lambda: _optima(paths, num_blocks))
            measured.update(best, gap_to_optimum=_gap(counts, best["optimum_hit_blocks"]))
            measured["gap_to_pinned_optimum"] = _gap(counts, best["pinned_optimum_hit_blocks"])

    return session.record(work, lambda complete: {**measured, "replay_s": time.perf_counter() - start})


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


def _log_requests(session: Session, paths: RequestPaths, counts: CacheOnlyResult) -> None:
    """`requests.jsonl`: what each request asked for and hit."""
    assert paths.known is not None
    columns: dict[str, Sequence[Any]] = {
        "request": range(paths.num_requests),
        "tenant": [tenant or "" for tenant in paths.known.tenant],
        "session": paths.known.session,
        "turn": paths.known.turn,
        "category": paths.known.category,
        "arrival_s": paths.known.arrival,
        "prompt_tokens": paths.input_tokens.tolist(),
        "cached_tokens": paths.hit_tokens(counts.request_hits).tolist(),
        "prompt_blocks": np.diff(paths.starts).tolist(),
        "hit_blocks": counts.request_hits.tolist(),
    }
    for row in zip(*columns.values(), strict=True):
        session.run.log_request(dict(zip(columns, row, strict=True)))


def _optima(paths: RequestPaths, num_blocks: int) -> dict[str, Any]:
    best = optimum_hits(paths, num_blocks, pinned=False)
    return {
        "optimum_hit_blocks": int(best.sum()),
        "optimum_hit_rate": int(paths.hit_tokens(best).sum()) / max(1, int(paths.input_tokens.sum())),
        "optimum_hit_rate_blocks": int(best.sum()) / max(1, paths.num_references),
        "pinned_optimum_hit_blocks": int(optimum_hits(paths, num_blocks, pinned=True).sum()),
        "optimum_rules": OPTIMUM_RULES,
    }


def _gap(counts: CacheOnlyResult, best_hit_blocks: int) -> float | None:
    """How many times an optimum's misses were missed beyond it: 0 is optimal, 1 is twice as many."""
    least = counts.prompt_blocks - best_hit_blocks
    return (best_hit_blocks - counts.hit_blocks) / least if least else None
