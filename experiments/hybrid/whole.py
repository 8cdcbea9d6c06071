"""Hybrid caches on whole traces: dense against retention 0, alone, coupled and with quotas, under each sharing."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from experiments.hybrid.__main__ import CHOICES, MODELS, SHARINGS, TRACES, UNIT, Rows, kept_cells
from experiments.shared import AGENTIC, CONVERSATION, begun, finish, parser_of, table, trace_path
from framework_cache_only.paths import build_paths
from framework_workloads.trace import open_trace

BUDGETS = {CONVERSATION: (1 / 16, 1 / 4), AGENTIC: (1 / 16,)}
"""Budgets of each trace, as in `experiments.hybrid`; a cell takes 1 to 6 minutes of one core."""
WHOLE = ("dense", "retention 0", "retention 0, coupled", "retention 0, quota")
"""The choices that the finding compares."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Budget by budget, each cell kept as soon as it is there."""
    options = begun(parser_of(__doc__, "hybrid.whole"), arguments, "results/whole")
    used, rows = [*map(trace_path, TRACES)], Rows()
    traces = {path.name: build_paths(open_trace(path, block_tokens=UNIT), full_blocks_only=True) for path in used}
    choices = {name: CHOICES[name] for name in WHOLE}
    for name, paths in traces.items():
        for share in BUDGETS[name]:
            for model in MODELS:
                rows += kept_cells(options.out, name, paths, model, share, choices)
    requests = {name: paths.num_requests for name, paths in traces.items()}
    facts = {"requests": requests, "unit_tokens": UNIT, "cells": len(rows)}
    finish(options, {"cells": rows}, {"whole": _hits(rows)}, used, **facts)
    return 0


def _hits(rows: Rows) -> str:
    """Percent of prompt tokens hit, a line for each trace, model and budget; in brackets requests refused."""
    lines, ways = [], [(sharing, choice) for sharing in SHARINGS for choice in WHOLE]
    ways = [way for way in ways if any((row["sharing"], row["rule"]) == way for row in rows)]
    for trace, model, share in dict.fromkeys((row["trace"], row["model"], row["budget"]) for row in rows):
        by_way = {(row["sharing"], row["rule"]): row for row in rows
                  if (row["trace"], row["model"], row["budget"]) == (trace, model, share)}  # fmt: skip
        hits = [f"{100 * row['hit_rate']:.1f}" + f" ({row['refused']})" * (row["refused"] > 0)
                for row in map(by_way.__getitem__, ways)]  # fmt: skip
        bound = f"{100 * next(iter(by_way.values()))['bound']:.1f}"
        lines.append([trace.split("_")[1 if "mooncake" in trace else 0], model, f"1/{round(1 / share)}", *hits, bound])
    header = [f"{sharing.replace('_', ' ')}: {choice}" for sharing, choice in ways]
    return table(["trace", "model", "budget", *header, "bound"], lines)


if __name__ == "__main__":
    sys.exit(main())
