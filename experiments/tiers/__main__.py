"""A second tier below the pool: what each published rule hits, what it writes for it, and what that does to TTFT."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from experiments.shared import finish, parse, save, trace_path
from experiments.tiers.cells import LINKS, OPERATION_S, TRACES, all_cells, kept_row, load_rows, rule_row, size_rows
from experiments.tiers.shown import (
    draw_hit_rates,
    draw_rules,
    draw_writes,
    load_table,
    rule_table,
    size_table,
    value_table,
)
from experiments.tiers.timed import LINKS as TIMED_LINKS
from experiments.tiers.timed import timed_cells, timed_row, timed_table

DRAWN = {("conversation", 10_000): "", ("agentic", 2_000): "_agentic"}
"""What the pictures show, and what their names end in."""


def main(arguments: Sequence[str] | None = None) -> int:
    """All cells: rows, tables, plot, provenance."""
    options = parse(__doc__, "tiers", arguments)
    rules = ("on_eviction", "on_second_hit")
    cells = [("conversation", rule, 10_000, 5_000) for rule in rules] if options.quick else all_cells()
    traces = sorted({cell[0] for cell in cells}, reverse=True)
    paths = [trace_path(TRACES[trace]) for trace in traces]
    with ProcessPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(functools.partial(kept_row, options.out, rule_row), cells))
        timed = list(pool.map(functools.partial(kept_row, options.out, timed_row), timed_cells(quick=options.quick)))
        sizes = [row for rows_ in pool.map(size_rows, traces) for row in rows_]
    loads = load_rows()
    found = {"rules": rows, "sizes": sizes, "timed": timed, "load_or_recompute": loads}
    assumed = {"links_bytes_per_s": LINKS, "timed_links_bytes_per_s": TIMED_LINKS, "operation_s": OPERATION_S}
    tables = {"rules": rule_table(rows), "values": value_table(rows, loads), "sizes": size_table(sizes),
              "timed": timed_table(timed), "load-or-recompute": load_table(loads)}  # fmt: skip
    finish(options, found, tables, paths, assumed=assumed)
    for (trace, pool), ending in DRAWN.items():
        matching = [row for row in rows if (row["trace"], row["pool_blocks"]) == (trace, pool)]
        if matching:
            save(draw_rules(matching), options, f"rules{ending}")
            save(draw_hit_rates(matching), options, f"hit_rate_over_host{ending}")
            save(draw_writes(matching), options, f"bytes_against_hits{ending}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
