"""Closed loops and fleets: what an open loop hides, which router hits what, and what none could."""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.fleet import cells
from experiments.fleet.cells import CASES, SESSIONS, Cell, case, loop_cells, router_cells, run_cell
from experiments.shared import digest, finish, kept, parse, save, table, trace_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def main(arguments: Sequence[str] | None = None) -> int:
    """All cells: rows, tables, provenance."""
    options = parse(__doc__, "fleet", arguments)
    sessions = 20 if options.quick else SESSIONS
    loop, router = loop_cells(quick=options.quick), router_cells(quick=options.quick)
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(options.jobs) as pool:
        for trace, speed in {(cell["trace"], cell["speed"]) for cell in (*loop, *router)}:
            cells.cut(trace, speed, sessions, _path(folder, trace, speed))
        run = functools.partial(_kept, options.out / "cells", folder, sessions)
        cases = pool.map(functools.partial(_case, options.quick), CASES)
        loops, routers = pool.map(run, loop), pool.map(run, router)
        found = {"loops": list(loops), "routers": list(routers), "cases": list(cases)}
    tables = {"loops": loop_table(found["loops"]), "routers": router_table(found["routers"]),
              "cases": case_table(found["cases"])}  # fmt: skip
    traces = {row["trace"] for row in (*found["loops"], *found["routers"])}
    assumed = {"answer_tokens": cells.ANSWER, "answer_s_per_token": cells.ANSWER_S_PER_TOKEN,
               "num_blocks": cells.NUM_BLOCKS, "block_tokens": cells.BLOCK, "sessions": sessions,
               "turns": cells.TURNS}  # fmt: skip
    finish(options, found, tables, [trace_path(cells.TRACES[name]) for name in sorted(traces)], assumed=assumed)
    save(draw(found["routers"]), options, "routers")
    return 0


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Hit rate and mean time to the first token of each router, under lru and fcfs; a line joins a router's cells."""
    from framework_report.figures.style import new_axes, new_figure, series_style

    figure = new_figure(8.0, 5.0)
    axes = new_axes(figure)
    plain = [row for row in rows if (row["eviction"], row["scheduling"]) == ("lru", "fcfs")]
    for index, name in enumerate(dict.fromkeys(row["router"] for row in plain)):
        mine = [row for row in plain if row["router"] == name]
        axes.plot([100 * row["hit_rate"] for row in mine], [row["ttft_s_mean"] for row in mine], label=name,
                  **series_style(index))  # fmt: skip
    axes.set(xlabel="prompt tokens hit, %", ylabel="mean time to the first token, s", yscale="log")
    figure.legend(loc="outside right", fontsize="small")
    return figure


def _path(folder: str, trace: str, speed: float) -> Path:
    return Path(folder) / f"{trace}-{speed}.jsonl"


def _kept(folder: Path, traces: str, sessions: int, cell: Cell) -> dict[str, Any]:
    """A cell that was run before with this code is not run again."""
    key = digest(cell, sessions, files=[Path(cells.__file__)])
    path = _path(traces, cell["trace"], cell["speed"])
    found = kept(folder / f"{key[:16]}.json", key, lambda: run_cell(cell, path))
    return {name: value for name, value in found.items() if name not in ("key", "by_session")}


def _case(quick: bool, one: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return case(*one, quick=quick)


def _share(value: float) -> str:
    return f"{100 * value:.1f}"


def _hit(row: Mapping[str, Any]) -> str:
    low, high = row["hit_rate_low"], row["hit_rate_high"]
    return _share(row["hit_rate"]) if low is None else f"{_share(row['hit_rate'])} [{_share(low)}, {_share(high)}]"


def _time(row: Mapping[str, Any]) -> str:
    low, high, mean = row["ttft_s_low"], row["ttft_s_high"], row["ttft_s_mean"]
    return f"{mean:.2f}" if low is None else f"{mean:.2f} [{low:.2f}, {high:.2f}]"


def loop_table(rows: Sequence[Mapping[str, Any]]) -> str:
    header = ("trace", "eviction", "order", "loop", "hit rate, %", "first token, s", "p99, s", "all took, s")
    return table(header, [
        (row["trace"], row["eviction"], row["scheduling"], row["loop"], _hit(row), _time(row),
         f"{row['ttft_s_p99']:.2f}", f"{row['wall_s']:.0f}") for row in rows
    ])  # fmt: skip


def router_table(rows: Sequence[Mapping[str, Any]]) -> str:
    header = ("replicas", "speed", "eviction", "order", "router", "hit rate, %", "first token, s", "p99, s",
              "missed elsewhere, %", "evicted, %", "imbalance", "regret, M tokens", "regret, s")  # fmt: skip
    return table(header, [
        (row["replicas"], row["speed"], row["eviction"], row["scheduling"], row["router"], _hit(row), _time(row),
         f"{row['ttft_s_p99']:.2f}", _share(row["missed_elsewhere"]), _share(row["missed_evicted"]),
         f"{row['imbalance']:.2f}", f"{row['regret_tokens'] / 1e6:.2f}", f"{row['ttft_regret_s']:.2f}") for row in rows
    ])  # fmt: skip


def case_table(rows: Sequence[Mapping[str, Any]]) -> str:
    header = (
        "router",
        "requests of each",
        "hit rate, %",
        "missed elsewhere, %",
        "first token, ms",
        "p99, ms",
        "each next, ms",
    )
    return table(header, [
        (row["router"], f"{row['requests_0']}, {row['requests_1']}", _share(row["hit_rate"]),
         _share(row["missed_elsewhere"]), f"{1e3 * row['ttft_s_mean']:.0f}", f"{1e3 * row['ttft_s_p99']:.0f}",
         f"{1e3 * row['tpot_s_p50']:.1f}") for row in rows
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
