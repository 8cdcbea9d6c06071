"""Closed loops and fleets: what an open loop hides, which router hits what, and what none could."""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from experiments.fleet import cells
from experiments.fleet.cells import CASES, SESSIONS, Cell, case, loop_cells, router_cells, run_cell
from experiments.shared import begun, columns, finish, kept, panels, parser_of, save, table, trace_path
from framework_report import statistics


def main(arguments: Sequence[str] | None = None) -> int:
    """All cells: rows, comparisons, tables, provenance."""
    parser = parser_of(__doc__, "fleet", quick="a small part of it, in seconds", jobs=True)
    parser.add_argument("--traces", nargs="+", choices=cells.TRACES, default=["agentic_b"], help="behind routers")
    options = begun(parser, arguments)
    sessions = 20 if options.quick else SESSIONS
    loop = loop_cells(quick=options.quick)
    router = [cell for cell in router_cells(quick=options.quick) if cell["trace"] in options.traces]
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(options.jobs) as pool:
        for trace, speed in {(cell["trace"], cell["speed"]) for cell in (*loop, *router)}:
            cells.cut(trace, speed, sessions, _path(folder, trace, speed))
        run = functools.partial(_kept, options.out / "cells", folder, sessions)
        cases = pool.map(functools.partial(_case, options.out / "cells", options.quick), CASES)
        loops, routers = pool.map(run, loop), pool.map(run, router)
        found = {"loops": list(loops), "routers": compared(list(routers)), "cases": list(cases)}
    for row in (*found["loops"], *found["routers"]):
        row.pop("by_session", None)
    tables = {"loops": loop_table(found["loops"]), "routers": router_table(found["routers"]),
              "crossed": crossed_table(found["routers"]), "cases": case_table(found["cases"])}  # fmt: skip
    traces = {row["trace"] for row in (*found["loops"], *found["routers"])}
    assumed = {"answer_tokens": cells.ANSWER, "answer_s_per_token": cells.ANSWER_S_PER_TOKEN,
               "num_blocks": cells.NUM_BLOCKS, "block_tokens": cells.BLOCK, "sessions": sessions,
               "turns": cells.TURNS}  # fmt: skip
    finish(options, found, tables, [trace_path(cells.TRACES[name]) for name in sorted(traces)], assumed=assumed)
    plain = [row for row in found["routers"] if _pair(row) == _PLAIN]
    x, shown = ("hit_rate", 0.01, "prompt tokens hit, %"), ("ttft_s_mean", 1, "mean time to the first token, s")
    save(panels(plain, "router", x, shown, yscale="log"), options, "routers")
    return 0


Rows = list[dict[str, Any]]
_PLAIN = ("lru", "fcfs")
_MEASURES = {"points": (100.0, 0, 1), "more_s": (1.0, 2, 3)}
"""Points of the hit rate, and seconds of the mean time to the first token: the scale, and which of a session's sums."""


def compared(rows: Rows) -> Rows:
    """Each row beside another of its trace, size and load, by session: a router under lru and fcfs beside lmetric, and
    another policy or order beside lru and fcfs behind the same router; p adjusted by Holm, each kind and measure."""
    by = {(row["trace"], row["replicas"], row["speed"], row["router"], _pair(row)): row for row in rows}
    for row in rows:
        router = "lmetric" if _pair(row) == _PLAIN else row["router"]
        row["beside"] = "lmetric" if _pair(row) == _PLAIN else "lru, fcfs"
        other = by[row["trace"], row["replicas"], row["speed"], router, _PLAIN]
        mine, its = (np.array(one["by_session"]) for one in (row, other))
        for name, (scale, part, whole) in _MEASURES.items():
            made = statistics.sessions([(mine[:, part] - its[:, part], mine[:, whole])], "session")
            low, high = made.interval or (None, None)
            row |= {name: scale * made.value, f"{name}_low": low and scale * low, f"{name}_high": high and scale * high}
            row[f"{name}_p"] = None if other is row else made.p
    for kind in ("lmetric", "lru, fcfs"):
        for name in _MEASURES:
            judged = [row for row in rows if row["beside"] == kind and row[f"{name}_p"] is not None]
            for row, p in zip(judged, statistics.holm([row[f"{name}_p"] for row in judged]), strict=True):
                row[f"{name}_p"] = p
    return rows


def _pair(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["eviction"], row["scheduling"]


def _path(folder: str, trace: str, speed: float) -> Path:
    return Path(folder) / f"{trace}-{speed}.jsonl"


def _kept(folder: Path, traces: str, sessions: int, cell: Cell) -> dict[str, Any]:
    """A cell that was run before with this code is not run again."""
    path = _path(traces, cell["trace"], cell["speed"])
    what = [*map(str, cell.values()), sessions]
    return kept(folder, what, lambda: run_cell(cell, path), [Path(cells.__file__)])


def _case(folder: Path, quick: bool, one: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return kept(folder, (one, quick), lambda: case(*one, quick=quick), [Path(cells.__file__)])


def _share(value: float) -> str:
    return f"{100 * value:.1f}"


def _hit(row: Mapping[str, Any]) -> str:
    low, high = row["hit_rate_low"], row["hit_rate_high"]
    return _share(row["hit_rate"]) if low is None else f"{_share(row['hit_rate'])} [{_share(low)}, {_share(high)}]"


def _time(row: Mapping[str, Any]) -> str:
    low, high, mean = row["ttft_s_low"], row["ttft_s_high"], row["ttft_s_mean"]
    return f"{mean:.2f}" if low is None else f"{mean:.2f} [{low:.2f}, {high:.2f}]"


def loop_table(rows: Sequence[Mapping[str, Any]]) -> str:
    return columns(rows, {
        "trace": "{trace}", "eviction": "{eviction}", "order": "{scheduling}", "loop": "{loop}", "hit rate, %": _hit,
        "first token, s": _time, "p99, s": "{ttft_s_p99:.2f}", "all took, s": "{wall_s:.0f}",
    })  # fmt: skip


def router_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Every router under lru and fcfs."""
    return columns([row for row in rows if _pair(row) == _PLAIN], {
        "trace": "{trace}", "replicas": "{replicas}", "speed": "{speed}", "router": "{router}", "hit rate, %": _hit,
        "first token, s": _time, "p99, s": "{ttft_s_p99:.2f}",
        "beside lmetric, s": lambda row: "" if row["router"] == "lmetric"
            else f"{row['more_s']:+.2f} {_verdict(row, 'more_s')}",
        "missed elsewhere, %": lambda row: _share(row["missed_elsewhere"]),
        "evicted, %": lambda row: _share(row["missed_evicted"]), "imbalance": "{imbalance:.2f}",
        "regret, M tokens": lambda row: f"{row['regret_tokens'] / 1e6:.2f}", "regret, s": "{ttft_regret_s:.2f}",
    })  # fmt: skip


def crossed_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """What another policy or order does behind each router, from the least to the most of all sizes and loads."""
    pairs = list(dict.fromkeys(_pair(row) for row in rows if _pair(row) != _PLAIN))
    names = list(dict.fromkeys((row["trace"], row["router"]) for row in rows))
    body = []
    for trace, router in names:
        cells_of = [[row for row in rows if (row["trace"], row["router"], *_pair(row)) == (trace, router, *pair)]
                    for pair in pairs]  # fmt: skip
        ranges = [_range(found, name) for found in cells_of for name in _MEASURES]
        body.append((trace, router, *ranges))
    header = [f"{' '.join(word for word in pair if word not in _PLAIN)}, {what}" for pair in pairs
              for what in ("points", "first token, s")]  # fmt: skip
    return table(("trace", "router", *header), body)


def _range(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    if not rows:
        return ""
    values, shown = [row[name] for row in rows], sum(_verdict(row, name) == "shown" for row in rows)
    low, high = f"{min(values):+.1f}", f"{max(values):+.1f}"
    return (low if low == high else f"{low} to {high}") + (f", {shown} of {len(rows)} shown" if shown else "")


def _verdict(row: Mapping[str, Any], name: str) -> str:
    p = row[f"{name}_p"]
    return "too few sessions" if p is None else "shown" if p < 0.05 else "not shown"


def case_table(rows: Sequence[Mapping[str, Any]]) -> str:
    return columns(rows, {
        "router": "{router}", "requests of each": "{requests_0}, {requests_1}",
        "hit rate, %": lambda row: _share(row["hit_rate"]),
        "missed elsewhere, %": lambda row: _share(row["missed_elsewhere"]),
        "evicted, %": lambda row: _share(row["missed_evicted"]), "new, %": lambda row: _share(row["missed_new"]),
        "first token, ms": lambda row: f"{1e3 * row['ttft_s_mean']:.0f}",
        "p99, ms": lambda row: f"{1e3 * row['ttft_s_p99']:.0f}",
        "each next, ms": lambda row: f"{1e3 * row['tpot_s_p50']:.1f}",
    })  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
