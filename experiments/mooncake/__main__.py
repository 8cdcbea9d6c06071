"""Mooncake's published figures on the released conversation trace: Table 2, and hit rate by policy and capacity."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.shared import CONVERSATION, finish, parse, save, table, trace_path
from framework.registry.components import build_component
from framework_cache_only.paths import CacheOnlyResult, RequestPaths, build_paths, replay_infinite
from framework_cache_only.reference import replay
from framework_workloads.trace import open_trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CAPACITIES = (100_000, 50_000, 30_000, 20_000, 10_000, 5_000, 3_000, 1_000)
POLICIES = ("lru", "lfu", "fifo", "fifo leaf-first", "length_aware", "optimum")
DEFINITIONS = ("tokens", "blocks", "request mean", "full blocks")
PAPER_TABLE_2 = {"requests": "12,031", "mean input": "12,035", "mean output": "343", "cache ratio": "40 %"}
ARXIV_CAPACITIES = (None, 100_000, 50_000, 30_000, 10_000, 1_000)
ARXIV_TABLE_1 = {
    "lru": (0.51, 0.51, 0.50, 0.48, 0.40, 0.30),
    "lfu": (0.51, 0.51, 0.49, 0.43, 0.35, 0.30),
    "length_aware": (0.51, 0.50, 0.48, 0.42, 0.35, 0.30),
}
"""Another sample of the service, not released: for its shape only."""

Cell = tuple[str, int | None, bool]
"""(policy, capacity in blocks or None for infinite, full blocks only)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """All cells: rows, tables, plot, provenance."""
    options = parse(__doc__, "mooncake", arguments)
    path = trace_path(CONVERSATION)
    cells = _cells(options.quick)
    with ProcessPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(_row, cells))
    facts = trace_facts()
    found = dict(zip(cells, rows, strict=True))
    trace = [{"quantity": key, "value": value} for key, value in facts.items()]
    finish(options, {"hit_rates": rows, "trace": trace}, _tables(found, facts), [path])
    save(_plot(found), options, "hit_rates")
    return 0


@functools.cache
def paths_of(full_blocks_only: bool) -> RequestPaths:
    """The conversation trace, once a process."""
    return build_paths(open_trace(trace_path(CONVERSATION)), full_blocks_only=full_blocks_only)


def _cells(quick: bool) -> list[Cell]:
    capacities = (1_000,) if quick else CAPACITIES
    policies = ("lru", "optimum") if quick else POLICIES
    finite = [(policy, size, full) for full in (False, True) for size in capacities for policy in policies]
    return [("infinite", None, False), ("infinite", None, True), *finite]


def _replayed(cell: Cell) -> CacheOnlyResult:
    policy, size, full = cell
    paths = paths_of(full)
    if size is None:
        return replay_infinite(paths)
    name, _, leaf_first = policy.partition(" ")
    built = build_component("eviction", name, {"num_blocks": size, "block_size": paths.block_tokens, "seed": 0})
    return replay(paths, built, size, leaf_first=bool(leaf_first), bypass=built.bypass)


def _row(cell: Cell) -> dict[str, Any]:
    policy, size, full = cell
    found, lengths = _replayed(cell), np.maximum(np.diff(paths_of(full).starts), 1)
    return {
        "policy": policy,
        "capacity_blocks": "" if size is None else size,
        "full_blocks_only": full,
        "hit_blocks": found.hit_blocks,
        "prompt_blocks": found.prompt_blocks,
        "hit_tokens": found.hit_tokens,
        "prompt_tokens": found.prompt_tokens,
        "evictions": found.evictions,
        "rate_tokens": found.hit_rate,
        "rate_blocks": found.block_hit_rate,
        "rate_request_mean": float(np.mean(found.request_hits / lengths)),
    }


def trace_facts() -> dict[str, float]:
    """What FAST'25 Table 2 says of this trace, measured."""
    requests = list(open_trace(trace_path(CONVERSATION)))
    return {
        "requests": len(requests),
        "mean_input_tokens": float(np.mean([r.input_tokens for r in requests])),
        "mean_output_tokens": float(np.mean([r.output_tokens for r in requests])),
        "unique_blocks": paths_of(False).num_nodes,
        "duration_s": requests[-1].arrival_s,
    }


# What a reader sees

Found = Mapping[Cell, Mapping[str, Any]]


def rate(found: Found, policy: str, size: int | None, definition: str) -> float:
    """The hit rate of one cell under a definition; NaN where it was not run. "full blocks" counts in blocks."""
    full = definition == "full blocks"
    row = found.get(("infinite" if size is None else policy, size, full))
    key = "blocks" if full else definition.replace(" ", "_")
    return float("nan") if row is None else float(row[f"rate_{key}"])


def _tables(found: Found, facts: dict[str, float]) -> dict[str, str]:
    ceilings = [f"{100 * rate(found, 'infinite', None, definition):.2f} %" for definition in DEFINITIONS]
    two = table(
        ["quantity", "paper", "measured"],
        [
            ["requests", PAPER_TABLE_2["requests"], f"{facts['requests']:,}"],
            ["mean input, tokens", PAPER_TABLE_2["mean input"], f"{facts['mean_input_tokens']:,.1f}"],
            ["mean output, tokens", PAPER_TABLE_2["mean output"], f"{facts['mean_output_tokens']:,.1f}"],
            *(
                [f"cache ratio, infinite cache, by {definition}", PAPER_TABLE_2["cache ratio"], value]
                for definition, value in zip(DEFINITIONS, ceilings, strict=True)
            ),
        ],
    )
    sizes = [size for size in CAPACITIES if ("lru", size, False) in found]
    policies = [policy for policy in POLICIES if (policy, sizes[0], False) in found]
    header = ["policy", *(f"{size:,}" for size in sizes)]
    hits, full = (
        table(header, [[p, *(f"{found[p, s, whole]['hit_blocks']:,}" for s in sizes)] for p in policies])
        for whole in (False, True)
    )
    rates = table(
        ["policy", "definition", *header[1:]],
        [[p, d, *(f"{100 * rate(found, p, s, d):.1f}" for s in sizes)] for p in policies for d in DEFINITIONS],
    )
    shape = table(
        ["policy", "source", *("infinite" if s is None else f"{s:,}" for s in ARXIV_CAPACITIES)],
        [line for policy, values in ARXIV_TABLE_1.items() for line in _shape(found, policy, values)],
    )
    return {"table-2": two, "hits": hits, "hits-full": full, "rates": rates, "shape": shape}


def _shape(found: Found, policy: str, values: Sequence[float]) -> list[list[str]]:
    """The table's rates and ours, each divided by its own infinite cache's."""
    ours = [rate(found, policy, size, "blocks") for size in ARXIV_CAPACITIES]
    return [
        [policy, "arXiv Table 1", *(f"{value / values[0]:.2f}" for value in values)],
        [policy, "this trace", *(f"{value / ours[0]:.2f}" for value in ours)],
    ]


def _plot(found: Found) -> Figure:
    from framework_report.figures.style import new_axes, new_figure, series_style

    figure = new_figure(9.0, 3.9)
    left, right = figure.subfigures(1, 2)
    sizes = [size for size in CAPACITIES if ("lru", size, False) in found]
    axes = new_axes(left)
    for index, policy in enumerate(POLICIES):
        axes.plot(sizes, [100 * rate(found, policy, s, "tokens") for s in sizes], label=policy, **series_style(index))
    axes.set_title("by policy, in tokens", fontsize="medium")
    more = new_axes(right)
    for index, definition in enumerate(DEFINITIONS):
        style = series_style(index)
        more.plot(sizes, [100 * rate(found, "lru", s, definition) for s in sizes], label=f"lru, {definition}", **style)
    more.set_title("lru, by definition", fontsize="medium")
    for panel in (axes, more):
        panel.axhline(100 * rate(found, "infinite", None, "tokens"), color="#888888", linewidth=0.8)
        panel.set(xscale="log", xlabel="capacity, blocks of 512 tokens", ylabel="hit rate, %", ylim=(0, 40))
        panel.legend(fontsize="small", loc="lower right")
    return figure


if __name__ == "__main__":
    sys.exit(main())
