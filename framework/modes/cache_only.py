"""executor=cache_only: each request is one atomic access; the mode of published hit-rate tables."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from framework.config.sections import ReplayOptions
from framework.errors import ConfigError
from framework.interfaces.eviction import EvictionPolicy
from framework.modes.replay_input import first, opened_trace, pool_blocks
from framework.registry.components import build_component
from framework.registry.options import section
from framework.replay.cores import count
from framework.replay.optimum import replay_optimum
from framework.replay.paths import RequestPaths, build_paths
from framework.replay.reference import CacheOnlyResult


def cache_only(config: Mapping[str, Any], options: ReplayOptions) -> dict[str, Any]:
    """Each request is one access: the mode of published hit-rate tables. See replay.reference."""
    cache = section(config, "cache")
    block_size = int(cache.get("block_size", 16))
    trace, limit, _ = opened_trace(config, block_tokens=block_size)
    if trace.block_tokens == 0:
        raise ConfigError(f"{trace.path} has lengths only: no block is ever shared; use executor=none")
    if trace.block_tokens != block_size:
        raise ConfigError(
            f"executor=cache_only counts whole trace blocks of {trace.block_tokens} tokens; set "
            f"cache.block_size={trace.block_tokens} or a multiple, or use executor=none"
        )
    paths = build_paths(first(trace, limit), full_blocks_only=options.full_blocks_only)
    num_blocks = pool_blocks(cache, options, working_set=paths.num_nodes)
    shared = {"num_blocks": num_blocks, "block_size": block_size, "seed": int(config.get("seed", 0))}
    policy: EvictionPolicy = build_component("eviction", config.get("eviction") or "lru", shared)
    start = time.perf_counter()
    core, counts = count(config.get("allocator"), paths, policy, num_blocks, leaf_first=options.leaf_first)
    count_s = time.perf_counter() - start
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
        "num_blocks": num_blocks,
        "unique_blocks": paths.num_nodes,
        "infinite_hit_blocks": int(paths.infinite_hits.sum()),
        "num_skipped_lines": trace.num_skipped,
        "replay_core": core,
        "count_s": count_s,
        **(_gap(paths, counts, num_blocks) if options.optimum else {}),
    }


def _gap(paths: RequestPaths, counts: CacheOnlyResult, num_blocks: int) -> dict[str, Any]:
    """How many times the optimum's misses were missed beyond the optimum: 0 is optimal, 1 is twice as many."""
    best = replay_optimum(paths, num_blocks)
    least = best.prompt_blocks - best.hit_blocks
    return {
        "optimum_hit_blocks": best.hit_blocks,
        "gap_to_optimum": (best.hit_blocks - counts.hit_blocks) / least if least else None,
        "optimum_rules": "exact: one atomic access a request, only prompts cached, content may be declined",
    }
