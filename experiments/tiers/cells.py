"""What is replayed: rules, capacities and links, a row a cell."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from experiments.shared import AGENTIC, CONVERSATION, kept, trace_path
from framework.registry.components import build_component
from framework.replay.roofline import Roofline
from framework_builtin.eviction.lru import Lru
from framework_cache_only.paths import CacheOnlyResult, RequestPaths, build_paths
from framework_cache_only.reference import replay
from framework_cache_only.stack import lru_curve, reuse_distances
from framework_tiers.counted import CountedTiers
from framework_tiers.optimum import shares_of_best, tier_optima
from framework_workloads.trace_file import TraceFile

CAPACITIES = {
    ("conversation", 10_000): (5_000, 10_000, 20_000, 40_000),
    ("conversation", 2_000): (1_000, 3_000, 8_000, 28_000),
    ("agentic", 2_000): (1_000, 3_000, 8_000, 28_000),
}
"""Host tiers, in blocks, by trace and pool. The agentic trace's longest request has 1,746 blocks."""
SIZES = (1_000, 2_000, 5_000, 10_000, 20_000, 40_000)
RULES: dict[str, dict[str, Any]] = {
    "on_eviction": {"name": "on_eviction"},
    "on_eviction, copy stays": {"name": "on_eviction", "exclusive": False},
    "write_through": {"name": "write_through"},
    "on_second_hit": {"name": "on_second_hit"},
}
LINKS = {"PCIe 5.0 x16, 50 GB/s": 50e9, "PCIe 4.0 x16, 25 GB/s": 25e9, "NVMe, 7 GB/s": 7e9, "NVMe, 3.5 GB/s": 3.5e9}
"""Bytes/s assumed of each link; no hardware was measured."""
WORTH = ("PCIe 5.0 x16, 50 GB/s", "NVMe, 7 GB/s")
WORTH_TOKENS = 8_192
"""A block hit below the pool is worth the share of its prefill that loading saves, at a context of so many tokens."""
SHAPES = ("llama-3.1-8b", "llama-3.1-70b")
CONTEXTS = (512, 2_048, 8_192, 32_768, 131_072)
OPERATION_S = 100e-6  # a load's fixed time: SGLang's simulated storage

Rows = list[dict[str, Any]]
Cell = tuple[str, str, int, int]
"""(trace, rule, blocks of the pool, blocks of the host tier)."""
TRACES = {"conversation": CONVERSATION, "agentic": AGENTIC}


def all_cells() -> list[Cell]:
    return [
        (trace, rule, pool, host) for (trace, pool), hosts in CAPACITIES.items() for host in hosts for rule in RULES
    ]


@functools.cache
def paths_of(trace: str) -> RequestPaths:
    """A trace in blocks of 512 tokens, once a process."""
    return build_paths(TraceFile(path=trace_path(TRACES[trace])).open(512))


def kept_row(out: Path, make: Callable[[Any], dict[str, Any]], cell: tuple[Any, ...]) -> dict[str, Any]:
    """The row of a cell, kept from an earlier run where cell, code and trace are the same."""
    files = [*sorted(Path(__file__).parent.glob("*.py")), trace_path(TRACES.get(cell[0], CONVERSATION))]
    return kept(out / "cells", cell, lambda: make(cell), files)


def size_rows(trace: str) -> Rows:
    """LRU everywhere and `on_eviction`. By the stack property two tiers hit what one cache of both hits, where every
    request fits in the pool; the other pools are replayed."""
    paths = paths_of(trace)
    sums = sorted({pool + host for pool in SIZES for host in (0, *SIZES)})
    lru = dict(zip(sums, lru_curve(paths, sums, reuse_distances(paths)), strict=True))
    longest = int(np.diff(paths.starts).max())
    rows = []
    for pool, host in itertools.product(SIZES, (0, *SIZES)):
        stacked = longest <= pool or not host
        hits = lru[pool + host] if stacked else _replayed(paths, "on_eviction", pool, host)[0].hit_blocks
        row = {"trace": trace, "pool_blocks": pool, "host_blocks": host, "pool_hit_blocks": lru[pool]}
        rows.append({**row, "hit_blocks": hits, "prompt_blocks": paths.num_references})
    return rows


def _replayed(paths: RequestPaths, rule: str, pool: int, host: int) -> tuple[CacheOnlyResult, CountedTiers]:
    """LRU in the pool and in the host tier."""
    below = CountedTiers(paths, [(host, Lru())], build_component("tiering", RULES[rule], {}))
    return replay(paths, Lru(), pool, below=below), below


def rule_row(cell: Cell) -> dict[str, Any]:
    trace, rule, pool, host = cell
    paths = paths_of(trace)
    found, tiers = _replayed(paths, rule, pool, host)
    hits = tiers.tier_hits.sum(axis=0).tolist()
    best = tier_optima(paths, (pool, host), pinned=True)
    least, most = shares_of_best(hits, best) or (0.0, 0.0)
    return {
        "trace": trace,
        "rule": rule,
        "pool_blocks": pool,
        "host_blocks": host,
        "pool_hit_blocks": hits[0],
        "host_hit_blocks": hits[1],
        "stored_blocks": tiers.lower.tiers[0].counts.stored,
        "unread_blocks": tiers.lower.tiers[0].num_unread,
        "prompt_blocks": paths.num_references,
        "hit_rate_tokens": found.hit_rate,
        "best_pool_hit_blocks": best[0],
        "best_host_hit_blocks": best[1],
        "share_of_best_min": least,
        "share_of_best_max": most,
    }


def load_rows() -> Rows:
    """Seconds to load a context over each link, and to prefill it on an H100 at the roofline's 80 %; a model."""
    rows: Rows = []
    for shape in SHAPES:
        devices = 1 if shape == "llama-3.1-8b" else 4
        h100 = Roofline(device="h100", shape=shape, num_devices=devices)
        for tokens in CONTEXTS:
            prefill = h100.prefill_s(0, tokens)
            size = h100.kv_bytes_per_token * tokens
            times = {link: OPERATION_S + size / rate for link, rate in LINKS.items()}
            rows.append(
                {"shape": shape, "h100s": devices, "tokens": tokens, "bytes": size, "prefill_s": prefill, **times}
            )
        even = {link: _break_even(h100, rate) for link, rate in LINKS.items()}
        rows.append({"shape": shape, "h100s": devices, "tokens": 0, "bytes": 0, "prefill_s": 0.0, **even})
    return rows


def _break_even(h100: Roofline, rate: float) -> int | None:
    """Tokens from which on loading a whole context is faster than prefilling it; None: not up to 4 million.

    Below it a few tokens may load faster too: their prefill reads all weights for little work.
    """
    tokens, slower = 1, 0
    while tokens <= 2**22:
        if OPERATION_S + h100.kv_bytes_per_token * tokens / rate >= h100.prefill_s(0, tokens):
            slower = tokens
        tokens += max(1, tokens // 64)
    return None if 2 * slower > 2**22 else slower + 1
