"""executor=cache_only: each request is one atomic access; the mode of published hit-rate tables."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from framework.config.sections import ReplayOptions
from framework.errors import ConfigError
from framework.interfaces.eviction import EvictionPolicy
from framework.modes.replay_input import first, opened_trace, pool_blocks, require_requests
from framework.modes.session import Session, names_of
from framework.registry.components import build_component
from framework.registry.options import section
from framework.replay.cores import count
from framework.replay.optimum import replay_optimum
from framework.replay.paths import RequestPaths, build_paths
from framework.replay.reference import CacheOnlyResult
from framework.workload.traces import Trace


def cache_only(session: Session, options: ReplayOptions) -> dict[str, Any]:
    """Each request is one access: the mode of published hit-rate tables. See replay.reference."""
    config, start = session.config, time.perf_counter()
    cache = section(config, "cache")
    block_size = int(cache.get("block_size", 16))
    trace, limit, _ = opened_trace(config, block_tokens=block_size)
    require_requests(trace, limit)
    _require_blocks(trace, block_size)
    paths = build_paths(first(trace, limit), full_blocks_only=options.full_blocks_only)
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
        "num_skipped_lines": trace.num_skipped,
    }
    session.begin("none")
    measured: dict[str, Any] = {}

    def work() -> None:
        began = time.perf_counter()
        core, counts = count(config.get("allocator"), paths, policy, num_blocks, leaf_first=options.leaf_first)
        measured.update(_counted(counts), replay_core=core, count_s=time.perf_counter() - began)
        if session.settings.get("requests", True):
            _log_requests(session, paths, counts, trace, limit)
        if options.optimum:
            measured.update(_gap(paths, counts, num_blocks))

    return session.record(work, lambda complete: {**measured, "replay_s": time.perf_counter() - start})


def _require_blocks(trace: Trace, block_size: int) -> None:
    if trace.block_tokens == 0:
        raise ConfigError(f"{trace.path} has lengths only: no block is ever shared; use executor=none")
    if trace.block_tokens != block_size:
        raise ConfigError(
            f"executor=cache_only counts whole trace blocks of {trace.block_tokens} tokens; set "
            f"cache.block_size={trace.block_tokens} or a multiple, or use executor=none"
        )


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
    session: Session, paths: RequestPaths, counts: CacheOnlyResult, trace: Trace, limit: int | None
) -> None:
    """`requests.jsonl`: what each request asked for and hit. The trace is read again for who asked."""
    sizes = np.diff(paths.starts).tolist()
    tokens = zip(paths.input_tokens.tolist(), paths.hit_tokens(counts.request_hits).tolist(), strict=True)
    blocks = zip(sizes, counts.request_hits.tolist(), strict=True)
    rows = enumerate(zip(first(trace, limit), tokens, blocks, strict=True))
    for number, (request, (prompt_tokens, hit_tokens), (prompt_blocks, hit_blocks)) in rows:
        session.run.log_request(
            {
                "request": number,
                "tenant": request.tenant,
                "session": request.session,
                "arrival_s": request.arrival_s,
                "prompt_tokens": prompt_tokens,
                "cached_tokens": hit_tokens,
                "prompt_blocks": prompt_blocks,
                "hit_blocks": hit_blocks,
            }
        )


def _gap(paths: RequestPaths, counts: CacheOnlyResult, num_blocks: int) -> dict[str, Any]:
    """How many times the optimum's misses were missed beyond the optimum: 0 is optimal, 1 is twice as many."""
    best = replay_optimum(paths, num_blocks)
    least = best.prompt_blocks - best.hit_blocks
    return {
        "optimum_hit_blocks": best.hit_blocks,
        "optimum_hit_rate": best.hit_rate,
        "optimum_hit_rate_blocks": best.block_hit_rate,
        "gap_to_optimum": (best.hit_blocks - counts.hit_blocks) / least if least else None,
        "optimum_rules": "exact: one atomic access a request, only prompts cached, content may be declined",
    }
