"""Hybrid caches on traces: rules for checkpoints and orders of eviction under each sharing of memory, and the bound."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from experiments.hybrid.published import lru, paths_of
from experiments.hybrid.published import rows as published_rows
from experiments.shared import AGENTIC, CONVERSATION, finish, kept, parse, save, table, trace_path
from framework.errors import ConfigError
from framework_cache_only.paths import RequestPaths, build_paths
from framework_hybrid.named import memory_of, rule_of
from framework_hybrid.optimum import bound_tokens
from framework_hybrid.replay import replay_groups
from framework_hybrid.shapes import groups_of
from framework_workloads.trace import open_trace

UNIT = 512
TRACES = {CONVERSATION: 1_000, AGENTIC: 250}
"""The first requests of each."""
MODELS = ("gemma-3-27b", "gpt-oss-120b", "qwen3-next-80b")
BUDGETS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
"""Shares of the bytes that all distinct prefixes have in the full-attention and window layers."""
INTERVAL = 6_144
SHARINGS = {"one_pool": "one_pool", "pool_per_group": "pool_per_group", "two_levels": "two_level"}
"""Ways to share memory as the results call them -> their plugins."""
Choices = Mapping[str, tuple[str, int, str | None]]
CHOICES: Choices = {
    "dense": ("dense", 0, None), "retention 0": ("retention", 0, None),
    "retention 6,144": ("retention", INTERVAL, None),
    "junctions": ("junctions", 0, None), "every 6,144": ("every", INTERVAL, None),
    "at most 8": ("at_most", INTERVAL, None), "superseding": ("superseding", 0, None),
    "dense, coupled": ("dense", 0, "coupled"), "retention 0, coupled": ("retention", 0, "coupled"),
    "dense, quota": ("dense", 0, "quota"), "retention 0, quota": ("retention", 0, "quota"),
    "every 6,144, coverage": ("every", INTERVAL, "coverage"), "junctions, Marconi": ("junctions", 0, "marconi"),
    "junctions, Marconi as coded": ("junctions", 0, "marconi_as_coded"),
}  # fmt: skip
"""Name -> rule, interval in tokens, order across groups; without one LRU leads."""
WITHOUT_STATES = {"at most 8": "every 6,144", "superseding": "retention 0"}
"""Rules about states alone -> what they are in a model that has none."""
ALPHAS = (0.0, 0.1, 0.5, 1.0)
"""Weights of recency in Marconi's score; the one that hits most in the first half of the requests is taken."""
VERSION = 2
"""The version of what a cell holds; raised when that changes."""
KINDS = ("full", "window", "state")
Rows = list[dict[str, Any]]


def main(arguments: Sequence[str] | None = None) -> int:
    """All cells, kept one by one."""
    options = parse(__doc__, "hybrid", arguments)
    rows, used = Rows(), [] if options.quick else [*map(trace_path, TRACES)]
    traces = {"drawn": drawn()} if options.quick else {}
    for path in used:
        trace = open_trace(path, block_tokens=UNIT)
        traces[path.name] = build_paths(islice(trace, TRACES[path.name]), full_blocks_only=True)
    for name, paths in traces.items():
        for model in MODELS:
            for share in BUDGETS[4:5] if options.quick else BUDGETS:
                rows += kept_cells(options.out, name, paths, model, share, CHOICES)
    threads = published_rows()
    tables = {"rules": _rules(rows), "published": table(list(threads[0]), [list(row.values()) for row in threads])}
    _draw(options, rows)
    facts = {"requests": TRACES, "unit_tokens": UNIT, "cells": len(rows)}
    finish(options, {"cells": rows, "published": threads}, tables, used, **facts)
    return 0


def drawn() -> RequestPaths:
    """Sessions that grow and branch: 60 requests of at most 12,000 tokens."""
    draw, made = random.Random(0), list[list[int]]()
    for number in range(60):
        base = draw.choice(made) if made and draw.random() < 0.8 else []
        made.append([*base[: draw.randrange(1, 24) * UNIT], *[number] * draw.randrange(UNIT, 8 * UNIT)][:12_000])
    return paths_of(made, UNIT)


def kept_cells(out: Path, name: str, paths: RequestPaths, model: str, share: float, choices: Choices) -> Rows:
    """The rows of `cells` on the trace of this name, kept from an earlier run where all is the same."""
    what = name, model, share, paths.num_requests, choices, ALPHAS, VERSION
    found = kept(out / "cells", what, lambda: {"rows": cells(paths, model, share, choices)})["rows"]
    return [{"trace": name.split(".")[0], **row} for row in found]


def cells(paths: RequestPaths, model: str, share: float, choices: Choices = CHOICES) -> Rows:
    """One row for each rule and order that can lead under each sharing of one budget."""
    groups = groups_of(model, block_tokens=UNIT)
    num_bytes = int(share * paths.num_nodes * sum(group.block_bytes for group in groups if group.kind != "state"))
    bound, total = bound_tokens(paths, groups, num_bytes), int(paths.input_tokens.sum())
    half, rows = paths.num_requests // 2, Rows()
    first_half = replace(paths, starts=paths.starts[: half + 1], nodes=paths.nodes[: paths.starts[half]],
                         input_tokens=paths.input_tokens[:half])  # fmt: skip

    def counted(over: RequestPaths, sharing: str, choice: str, alpha: float) -> dict[str, Any]:
        rule, interval, order = CHOICES[choice]
        memory = memory_of(model, SHARINGS[sharing], order, lru, num_bytes=num_bytes, unit=UNIT, alpha=alpha,
                           parents=over.parents.tolist())  # fmt: skip
        return replay_groups(over, memory, rule_of(rule, interval), num_samples=4).results()

    same = {} if any(group.kind == "state" for group in groups) else WITHOUT_STATES
    for sharing in SHARINGS:
        done = dict[str, dict[str, Any]]()
        for choice in choices:
            if choice in same:
                rows.append(done[same[choice]] | {"rule": choice})
                continue
            alpha, began = 1.0, time.perf_counter()
            try:
                if "Marconi" in choice:
                    alpha = max(ALPHAS, key=lambda each: counted(first_half, sharing, choice, each)["hit_tokens"])
                found = counted(paths, sharing, choice, alpha)
            except ConfigError:
                continue  # an order that does not lead this sharing, or has no states to choose among
            done[choice] = {
                "model": model, "budget": share, "num_bytes": num_bytes, "sharing": sharing, "rule": choice,
                "hit_rate": float(found["hit_rate"]), "bound": bound / total, "alpha": alpha,
                **{f"lost_{kind}": found.get(f"{kind}_lost_tokens", 0) / total for kind in KINDS},
                "lost_full": (found.get("full_lost_tokens", 0) + found["unseen_tokens"]) / total,
                "junction": found["junction_tokens"] / total, "stranded": found["stranded_bytes"] / num_bytes,
                "checkpoints": found["checkpoint_bytes"] / num_bytes, "resident": found["resident_bytes"] / num_bytes,
                "refused": found["refused_requests"], "evictions": found["num_evictions"],
                "seconds": time.perf_counter() - began,
            }  # fmt: skip
            rows.append(done[choice])
    return rows


def _rules(rows: Rows) -> str:
    """Percent of prompt tokens: hit, lost to each kind; of the bound: hit; of the budget: stranded, states.

    Of traces, models and budgets at which no sharing refused a request.
    """
    refused = {(row["trace"], row["model"], row["budget"]) for row in rows if row["refused"]}
    comparable = [row for row in rows if (row["trace"], row["model"], row["budget"]) not in refused]
    names = ("hit_rate", *(f"lost_{kind}" for kind in KINDS), "stranded", "checkpoints")
    lines = []
    for model in MODELS:
        for sharing in SHARINGS:
            for choice in CHOICES:
                matching = [row for row in comparable
                            if (row["model"], row["sharing"], row["rule"]) == (model, sharing, choice)]  # fmt: skip
                if matching:
                    of_bound = [row["hit_rate"] / row["bound"] for row in matching]
                    columns = [*([row[name] for row in matching] for name in names[:1]), of_bound,
                               *([row[name] for row in matching] for name in names[1:])]  # fmt: skip
                    means = [f"{100 * sum(column) / len(column):.1f}" for column in columns]
                    lines.append([model, sharing.replace("_", " "), choice, len(matching), *means])
    header = ["model", "sharing", "rule, order", "settings", "hit", "of the bound",
              *(f"lost to {kind}" for kind in KINDS), "stranded", "states"]  # fmt: skip
    return table(header, lines)


def _draw(options: Any, rows: Rows) -> None:
    """Hit rates by budget: a panel for each trace and model, a line for each of a few rules, and the bound."""
    from matplotlib.figure import Figure

    lines = [("one_pool", "dense"), *((sharing, "retention 0") for sharing in SHARINGS),
             ("one_pool", "junctions, Marconi")]  # fmt: skip
    traces = list(dict.fromkeys(row["trace"] for row in rows))
    figure = Figure(figsize=(10, 3.1 * len(traces) + 0.5), layout="constrained")
    axes = figure.subplots(len(traces), len(MODELS), sharey="row", sharex=True, squeeze=False)
    for down, trace in enumerate(traces):
        for across, model in enumerate(MODELS):
            axis = axes[down, across]
            here = [row for row in rows if (row["trace"], row["model"]) == (trace, model)]
            for marker, (sharing, choice) in zip("ovsD^", lines, strict=True):
                points = [row for row in here if (row["sharing"], row["rule"]) == (sharing, choice)]
                axis.plot([row["budget"] for row in points], [100 * row["hit_rate"] for row in points], marker=marker,
                          markersize=4, linewidth=1.2, label=f"{sharing.replace('_', ' ')}, {choice}")  # fmt: skip
            best = {row["budget"]: 100 * row["bound"] for row in here}
            axis.plot(list(best), list(best.values()), "k--", linewidth=1, label="bound")
            axis.set_xscale("log", base=2)
            axis.set_title(f"{trace.split('_trace')[0].replace('_', ' ')}: {model}", fontsize=9)
            axis.set_ylim(0)
            axis.grid(alpha=0.3)
        axes[down, 0].set_ylabel("hit tokens, percent of prompts'")
    for axis in axes[-1]:
        axis.set_xlabel("budget, share of all prefixes' bytes")
    handles, labels = axes[0, -1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
    save(figure, options, "hits")


if __name__ == "__main__":
    sys.exit(main())
