"""Hybrid caches on traces: rules for checkpoints, ways to share memory and orders of eviction, against the bound."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from experiments.hybrid.equal import SETTINGS, differences
from experiments.shared import (
    AGENTIC,
    CONVERSATION,
    digest,
    kept,
    parse,
    publish,
    table,
    trace_path,
    write_provenance,
    write_rows,
)
from framework.groups.checkpoints import AtMost, CheckpointRule, Dense, EveryFew, Junctions, Retention, Superseding
from framework.groups.kinds import KVGroup
from framework.groups.memory import Memory, OnePool, PoolPerGroup, TwoLevel
from framework.groups.optimum import bound_tokens
from framework.groups.orders import Coupled, Coverage, Quota
from framework.groups.replay import replay_groups
from framework.groups.shapes import groups_of
from framework.interfaces.eviction import EvictionPolicy
from framework.registry.components import build_component
from framework.replay.column_paths import trace_paths
from framework.replay.paths import RequestPaths
from framework.workload.traces import open_trace

UNIT = 512
TRACES = {CONVERSATION: 300, AGENTIC: 40}
"""The first requests of each: a request of the second has 280 units, one of the first 24."""
MODELS = ("gemma-3-27b", "gpt-oss-120b", "qwen3-next-80b")
BUDGETS = (1 / 32, 1 / 8, 1 / 2)
"""Of the bytes that all distinct prefixes have in the full-attention and window layers."""
RULES: Mapping[str, CheckpointRule] = {
    "dense": Dense(), "retention 0": Retention(0), "retention 6,144": Retention(6_144), "junctions": Junctions(),
    "every 6,144": EveryFew(6_144), "at most 8": AtMost(8, 6_144), "superseding": Superseding(),
}  # fmt: skip
# SGLang's defaults: tokens of windows to those of full attention, bytes of states to those of attention.
WINDOW_TOKENS, STATE_BYTES = 0.8, 0.9
PAGE_TOKENS = {"qwen3-next-80b": 1_536}  # of one pool: the smallest multiple of the trace's unit that holds a state

Rows = list[dict[str, Any]]


def main(arguments: Sequence[str] | None = None) -> int:
    """All cells, kept one by one; the table of vLLM where it is installed."""
    options = parse(__doc__, "hybrid", arguments)
    rows = Rows()
    for name, count in TRACES.items():
        trace, limit = open_trace(trace_path(name), block_tokens=UNIT), count // 5 if options.quick else count
        paths = trace_paths(trace, limit=limit, full_blocks_only=True)
        for model in MODELS:
            for share in BUDGETS[-1:] if options.quick else BUDGETS:
                key = digest(name, model, share, paths.num_requests, sorted(RULES), VERSION)
                file = options.out / "cells" / f"{name.split('_')[0]}-{model}-{round(1 / share)}.json"
                found = kept(file, key, lambda: {"rows": cells(paths, model, share)})["rows"]  # noqa: B023
                rows += [{"trace": name.split(".")[0], **row} for row in found]
    write_rows(options.out / "cells.csv", rows)
    tables = {"rules": _rules(rows), "ways": _ways(rows), "losses": _losses(rows)}
    engine = {}
    if importlib.util.find_spec("vllm") is not None:
        engine = {"vllm": importlib.metadata.version("vllm")}
        equal = [differences(layout, **settings) for layout, settings in SETTINGS]
        write_rows(options.out / "vllm.csv", equal)
        tables["vllm"] = table(list(equal[0]), [list(row.values()) for row in equal])
    write_provenance(options, map(trace_path, TRACES), requests=TRACES, unit_tokens=UNIT, **engine)
    publish(options, tables)
    return 0


VERSION = 1
"""Of what a cell holds; raised when that changes."""


def cells(paths: RequestPaths, model: str, share: float) -> Rows:
    """One row for each rule, way and order under one budget."""
    groups = groups_of(model, block_tokens=UNIT)
    unit_bytes = sum(group.block_bytes for group in groups if group.kind != "state")
    num_bytes = int(share * paths.num_nodes * unit_bytes)
    bound = bound_tokens(paths, groups, num_bytes)
    given = {"num_bytes": num_bytes, "parents": paths.parents.tolist(), "unit": UNIT}
    rows = Rows()

    def measure(way: str, order: str, rule: str, memory: Memory, refresh: Any = "consumed") -> None:
        began = time.perf_counter()
        found = replay_groups(paths, memory, RULES[rule], refresh=refresh, num_samples=4).results()
        total = found["prompt_tokens"]
        rows.append({
            "model": model, "budget": share, "num_bytes": num_bytes, "way": way, "order": order, "rule": rule,
            "hit_rate": float(found["hit_rate"]), "bound": bound / total,
            "junction": found["junction_tokens"] / total, "stranded": found["stranded_bytes"] / num_bytes,
            "checkpoints": found["checkpoint_bytes"] / num_bytes, "resident": found["resident_bytes"] / num_bytes,
            "refused": found["refused_requests"], "evictions": found["num_evictions"],
            **{f"lost_{kind}": found.get(f"{kind}_lost_tokens", 0) / total for kind in ("full", "window", "state")},
            "seconds": time.perf_counter() - began,
        })  # fmt: skip

    paged = groups_of(model, block_tokens=PAGE_TOKENS.get(model, UNIT), layout="one_page")
    for rule in RULES:
        measure("one pool", "lru", rule, OnePool(paged, lru, **given))
        measure("pool per group", "lru", rule, PoolPerGroup(groups, lru, shares=shares_of(groups), **given))
        measure("two levels", "lru", rule, TwoLevel(nested(groups), lru, **given))
    for rule in ("dense", "retention 0"):
        measure("one pool", "coupled", rule, OnePool(paged, Coupled, **given))
        quota = quota_of(groups, paged)
        measure("one pool", "quota", rule, OnePool(paged, quota, **given))
        measure("one pool", "lru, path refreshed", rule, OnePool(paged, lru, **given), "path")
    if any(group.kind == "state" for group in groups):
        memory = PoolPerGroup(groups, by_turns(lru, Coverage), shares=shares_of(groups), **given)
        measure("pool per group", "coverage", "every 6,144", memory)
    return rows


def lru() -> EvictionPolicy:
    """A fresh one."""
    policy: EvictionPolicy = build_component("eviction", "lru", {})
    return policy


def by_turns(*makes: Callable[[], EvictionPolicy]) -> Callable[[], EvictionPolicy]:
    """Makes one after the other: the order of the groups' pools."""
    each = iter(makes)
    return lambda: next(each)()


def shares_of(groups: Sequence[KVGroup]) -> list[float]:
    """SGLang's split of memory into pools, of one full-attention group and another one."""
    full, other = groups
    ratio = STATE_BYTES if other.kind == "state" else WINDOW_TOKENS * other.block_bytes / full.block_bytes
    return [1 / (1 + ratio), ratio / (1 + ratio)]


def quota_of(groups: Sequence[KVGroup], paged: Sequence[KVGroup]) -> Callable[[], EvictionPolicy]:
    """The same split over the groups of one pool, those of a kind alike."""
    by_kind = dict(zip((group.kind for group in groups), shares_of(groups), strict=True))
    count = {kind: sum(group.kind == kind for group in paged) for kind in by_kind}
    shares = [by_kind[group.kind] / count[group.kind] for group in paged]
    return lambda: Quota(shares, lru)


def nested(groups: Sequence[KVGroup]) -> list[KVGroup]:
    """The groups with blocks padded by a few percent, so that the largest is a multiple of the smaller."""
    largest = max(group.block_bytes for group in groups)
    small = {group.name: -(-largest // (largest // group.block_bytes)) for group in groups}
    page = max(small[group.name] * (largest // group.block_bytes) for group in groups)
    return [replace(group, block_bytes=page // (largest // group.block_bytes)) for group in groups]


def _mean(rows: Rows, value: Callable[[dict[str, Any]], float], **where: str) -> str:
    found = [value(row) for row in rows if all(row[key] == wanted for key, wanted in where.items())]
    return f"{100 * sum(found) / len(found):.1f}" if found else ""


def _of_bound(row: dict[str, Any]) -> float:
    return float(row["hit_rate"] / row["bound"]) if row["bound"] else 1.0


def _rules(rows: Rows) -> str:
    """Percent of the bound that each rule hits under each way, mean over traces and budgets."""
    ways = ("one pool", "pool per group", "two levels")
    return table(["model", "rule", *ways], (
        [model, rule, *(_mean(rows, _of_bound, model=model, rule=rule, way=way, order="lru") for way in ways)]
        for model in MODELS for rule in RULES
    ))  # fmt: skip


def _ways(rows: Rows) -> str:
    """The same of orders of eviction."""
    orders = list(dict.fromkeys(row["order"] for row in rows))
    return table(["model", "way", "rule", *orders], (
        [model, way, rule, *(_mean(rows, _of_bound, model=model, way=way, rule=rule, order=order) for order in orders)]
        for model in MODELS for way, rule in (("one pool", "dense"), ("one pool", "retention 0"),
                                              ("pool per group", "every 6,144"))
    ))  # fmt: skip


def _losses(rows: Rows) -> str:
    """Percent of prompt tokens lost to each group and beyond the hit, and of bytes stranded, with one pool and LRU."""
    names = ("hit_rate", "lost_full", "lost_window", "lost_state", "junction", "stranded", "checkpoints")
    return table(["model", "way", "rule", *(name.replace("_", " ") for name in names)], (
        [model, way, rule,
         *(_mean(rows, itemgetter(name), model=model, rule=rule, way=way, order="lru") for name in names)]
        for model in MODELS for way in ("one pool", "pool per group", "two levels") for rule in RULES
    ))  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
