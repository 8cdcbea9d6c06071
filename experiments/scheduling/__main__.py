"""What an order of the waiting queue does to hits and times to first token, beside bounds and the best order."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from experiments.scheduling import cells, exact
from experiments.scheduling.cells import Cell
from experiments.scheduling.claims import claims
from experiments.shared import finish, parse, save, table, trace_path
from framework.replay.items import trace_items
from framework_report.statistics import Estimate, holm, sessions
from framework_scheduling.bounds import most_hits
from framework_scheduling.observer import CAUSES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
Rows = list[dict[str, Any]]
QUICK_ORDERS = ("fcfs", "longest_prefix", "session_affinity", "shortest_rest", "fair")


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay what is not there yet, then compare, draw and print."""
    options = parse(__doc__, "scheduling", arguments)
    traces, orders = ((cells.QUICK,), QUICK_ORDERS) if options.quick else (tuple(cells.TRACES), cells.ORDERS)
    folder = options.out / "cells"
    asked = [cell for trace in traces for cell in cells.cells_of(trace, orders, quick=options.quick)]
    found = cells.run_all(asked, folder, options.jobs)
    rows = adjusted([row_of(cell, found) for cell in found])
    count = exact.QUICK_STREAMS if options.quick else exact.STREAMS
    regrets = [row for trace in traces for row in exact.regrets(trace, count, folder, options.jobs)]
    crossed = interaction(found)
    tables = {
        "orders": _orders(rows), "interaction": _interaction(crossed), "places": _places(rows),
        "regrets": _regrets(regrets),
    }  # fmt: skip
    if not options.quick:
        tables["claims"] = claims(rows)
    finish(
        options, {"orders": rows, "interaction": crossed, "regrets": regrets}, tables,
        [] if options.quick else [trace_path(name) for name in cells.TRACES.values()],
        requests={trace: len(cells.stream(trace)) for trace in traces},
        sessions={trace: len({one.session for one in cells.stream(trace)}) for trace in traces},
        capacity_requests_per_s={trace: cells.capacity(trace, folder) for trace in traces},
        costs="experiments/live/results/clock/costs.csv, vLLM",
    )  # fmt: skip
    save(_picture(rows), options, "hits_first_token")
    return 0


# What each replay says


def row_of(cell: Cell, found: Mapping[Cell, dict[str, Any]]) -> dict[str, Any]:
    """Hits, times, fairness and waits of a replay, and how it differs from `fcfs` of the same place, by session."""
    result, base = found[cell], found[Cell(cell.trace, "fcfs", cell.eviction, cell.num_blocks, cell.load)]
    stream = cells.stream(cell.trace)
    first, prompts = _times(result), _numbers(result, "prompt_tokens")
    by_tenant: dict[str, list[float]] = {}
    for request, ttft in zip(stream, first, strict=True):
        by_tenant.setdefault(request.tenant, []).append(float(ttft))
    fairness = np.array([np.mean(times) for times in by_tenant.values()])
    slowest = np.sort(first)[-max(1, len(first) // 10) :]
    beside: dict[str, Any] = {}
    if is_judged(cell.trace, cell.order, cell.eviction, cell.num_blocks, cell.load):
        beside = _estimate("points", hits_beside(cell.trace, result, base), 100.0)
        beside |= _estimate("ttft_s", times_beside(cell.trace, result, base), 1.0)
    waits = {cause: sum(result[f"wait_{cause}_s"]) / len(first) for cause in CAUSES}
    return {
        "trace": cell.trace, "eviction": cell.eviction, "num_blocks": cell.num_blocks, "load": cell.load,
        "order": cell.order, "requests": len(first), "rate_per_s": result["rate_per_s"],
        "hit_tokens": int(_numbers(result, "hit_tokens").sum()), "prompt_tokens": int(prompts.sum()),
        "bound_tokens": bound(cell.trace), "hit_rate": float(_numbers(result, "hit_tokens").sum() / prompts.sum()),
        "ttft_s_mean": float(first.mean()), "ttft_s_p50": float(np.percentile(first, 50)),
        "ttft_s_p99": float(np.percentile(first, 99)), "ttft_s_slowest_tenth": float(slowest.mean()),
        "ttft_s_short": float(first[prompts <= np.percentile(prompts, 25)].mean()),
        "jain_tenants": float(fairness.sum() ** 2 / (len(fairness) * (fairness**2).sum())),
        "deadlines_met": float(np.mean(first <= _numbers(result, "deadline_s"))),
        "most_passed_over": max(result["passed_by"]), "overdue": result["overdue"], "bound_on_wait": result["bound"],
        "preemptions": result["preemptions"], "duration_s": result["duration_s"],
        **{f"wait_{cause}_s": wait for cause, wait in waits.items()},
        **(beside or dict.fromkeys(_BESIDE, "")),
    }  # fmt: skip


_BESIDE = tuple(
    f"{name}_{what}" for name in ("points", "ttft_s") for what in ("beside_fcfs", "low", "high", "p", "tested", "unit")
)


def is_judged(trace: str, order: str, eviction: str, num_blocks: int, load: float | str) -> bool:
    """Whether an order is compared with `fcfs`: under lru at the middle capacity, at loads of 0.9 and 1.1."""
    return order != "fcfs" and eviction == "lru" and num_blocks == cells.CAPACITIES[trace][1] and load in (0.9, 1.1)


@functools.cache
def bound(trace: str) -> int:
    """The most tokens that its requests could hit in any order."""
    return most_hits([*trace_items(cells.stream(trace))], cells.block_size(trace)).together


def adjusted(rows: Rows) -> Rows:
    """With p of both differences adjusted, by Holm's method, over all that are judged."""
    keys = ("trace", "order", "eviction", "num_blocks", "load")
    judged = [row for row in rows if is_judged(*(row[key] for key in keys))]
    for name in ("points", "ttft_s"):
        for row in rows:
            row[f"{name}_p_adjusted"] = ""
        for row, p in zip(judged, holm([row[f"{name}_p"] for row in judged]), strict=True):
            row[f"{name}_p_adjusted"] = p
    return rows


def hits_beside(trace: str, result: Mapping[str, Any], base: Mapping[str, Any]) -> Estimate:
    """Difference of the hit rate over the sessions of a trace."""
    more = _numbers(result, "hit_tokens") - _numbers(base, "hit_tokens")
    return sessions([(_by_session(trace, more), _by_session(trace, _numbers(base, "prompt_tokens")))], "session")


def times_beside(trace: str, result: Mapping[str, Any], base: Mapping[str, Any]) -> Estimate:
    """Difference of the mean time to first token over the sessions of a trace."""
    later = _times(result) - _times(base)
    return sessions([(_by_session(trace, later), _by_session(trace, np.ones(len(later))))], "session")


def _times(result: Mapping[str, Any]) -> Floats:
    if None in result["ttft_s"]:
        raise RuntimeError(f"a request got no token: {[reason for reason in result['reasons'] if reason][:1]}")
    return _numbers(result, "ttft_s")


def _numbers(result: Mapping[str, Any], key: str) -> Floats:
    return np.array(result[key], dtype=np.float64)


def _by_session(trace: str, values: Floats) -> Floats:
    """Sums over sessions, in order of their first request."""
    places: dict[str | None, int] = {}
    units = [places.setdefault(request.session, len(places)) for request in cells.stream(trace)]
    return np.bincount(units, weights=values)


def _estimate(name: str, made: Estimate, scale: float) -> dict[str, Any]:
    low, high = made.interval or (made.value, made.value)
    if name == "points":  # where few sessions differ the bootstrap's ends lie beyond what a share can be
        low, high = max(-1.0, low), min(1.0, high)
    p = 1.0 if made.p is None else made.p
    return {
        f"{name}_beside_fcfs": scale * made.value, f"{name}_low": scale * low, f"{name}_high": scale * high,
        f"{name}_p": p, f"{name}_tested": made.p is not None, f"{name}_unit": f"{made.count} x {made.unit}",
    }  # fmt: skip


def interaction(found: Mapping[Cell, dict[str, Any]]) -> Rows:
    """Points of the hit rate that `hazard` adds to `lru` under each order, and how that differs from under `fcfs`.

    At the middle capacity and a load of 0.9.
    """
    rows: Rows = []
    for cell, result in found.items():
        if cell.eviction != "hazard" or cell.order in cells.UNBOUNDED:
            continue
        if cell.num_blocks != cells.CAPACITIES[cell.trace][1] or cell.load != 0.9:
            continue
        lru, first, plain = (
            found[Cell(cell.trace, order, eviction, cell.num_blocks, cell.load)]
            for order, eviction in ((cell.order, "lru"), ("fcfs", "hazard"), ("fcfs", "lru"))
        )
        hits = [_numbers(one, "hit_tokens") for one in (result, lru, first, plain)]
        prompts = _by_session(cell.trace, _numbers(result, "prompt_tokens"))
        crossed = sessions([(_by_session(cell.trace, hits[0] - hits[1] - hits[2] + hits[3]), prompts)], "session")
        low, high = crossed.interval or (crossed.value, crossed.value)
        points = [100 * float(one.sum()) / prompts.sum() for one in hits]
        rows.append({
            "trace": cell.trace, "num_blocks": cell.num_blocks, "load": cell.load, "order": cell.order,
            "lru": points[1], "hazard": points[0], "gain_of_hazard": points[0] - points[1],
            "gain_of_order_under_lru": points[1] - points[3], "gain_of_order_under_hazard": points[0] - points[2],
            "interaction": 100 * crossed.value, "low": max(-100.0, 100 * low), "high": min(100.0, 100 * high),
            "p": 1.0 if crossed.p is None else crossed.p, "p_adjusted": 1.0,
        })  # fmt: skip
    others = [row for row in rows if row["order"] != "fcfs"]
    for row, p in zip(others, holm([row["p"] for row in others]), strict=True):
        row["p_adjusted"] = p
    return rows


# Tables and the picture


def _middle(rows: Rows, load: float = 0.9) -> Rows:
    return [row for row in rows if row["load"] == load and row["num_blocks"] == cells.CAPACITIES[row["trace"]][1]]


def _orders(rows: Rows) -> str:
    """Every order under lru at the middle capacity and a load of 0.9."""
    chosen = [row for row in _middle(rows) if row["eviction"] == "lru"]
    body = []
    for row in chosen:
        body.append([
            row["trace"], row["order"], f"{100 * row['hit_rate']:.1f}",
            f"{100 * row['hit_tokens'] / row['bound_tokens']:.0f}",
            _beside(row, "points", "+.1f"),
            f"{row['ttft_s_mean']:.0f}", f"{row['ttft_s_p50']:.0f}", f"{row['ttft_s_p99']:.0f}",
            f"{row['ttft_s_slowest_tenth']:.0f}", _beside(row, "ttft_s", "+.0f"),
            f"{row['jain_tenants']:.2f}", f"{100 * row['deadlines_met']:.0f}", f"{row['most_passed_over']:,}",
            f"{row['overdue']:,}", _causes(row),
        ])  # fmt: skip
    header = ["trace", "order", "hit rate, %", "of the bound, %", "points beside fcfs", "TTFT mean, s", "p50", "p99",
              "slowest tenth", "mean beside fcfs, s", "Jain, tenants", "deadlines met, %", "most passed over",
              "bound enforced", "% of the wait: rows, blocks, budget, passed"]  # fmt: skip
    return table(header, body)


def _beside(row: Mapping[str, Any], name: str, digits: str) -> str:
    if row["order"] == "fcfs":
        return ""
    verdict = "shown" if row[f"{name}_p_adjusted"] < 0.05 else "not shown"
    low, high = (format(row[f"{name}_{end}"], digits) for end in ("low", "high"))
    return f"{format(row[f'{name}_beside_fcfs'], digits)} [{low}, {high}] {verdict}"


def _causes(row: Mapping[str, Any]) -> str:
    waits = [row[f"wait_{cause}_s"] for cause in CAUSES]
    return ", ".join(f"{100 * wait / max(sum(waits), 1e-9):.0f}" for wait in waits)


def _interaction(rows: Rows) -> str:
    header = ["trace", "order", "lru, %", "hazard, %", "hazard adds, points", "order adds under lru",
              "order adds under hazard", "interaction, points"]  # fmt: skip
    return table(header, [
        [row["trace"], row["order"], f"{row['lru']:.1f}", f"{row['hazard']:.1f}", f"{row['gain_of_hazard']:+.1f}",
         f"{row['gain_of_order_under_lru']:+.1f}", f"{row['gain_of_order_under_hazard']:+.1f}",
         "" if row["order"] == "fcfs" else f"{row['interaction']:+.1f} [{row['low']:+.1f}, {row['high']:+.1f}] "
         + ("shown" if row["p_adjusted"] < 0.05 else "not shown")]
        for row in rows
    ])  # fmt: skip


def _places(rows: Rows) -> str:
    """Each load and capacity under lru: hit rate and p99 beside fcfs's, by order."""
    chosen = [row for row in rows if row["eviction"] == "lru" and row["order"] not in cells.UNBOUNDED]
    names = list(dict.fromkeys(row["order"] for row in chosen))
    groups: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = {}
    for row in chosen:
        groups.setdefault((row["trace"], row["num_blocks"], row["load"]), {})[row["order"]] = row
    body = []
    for (trace, blocks, load), by_order in groups.items():
        fcfs = by_order["fcfs"]
        body.append([
            trace, f"{blocks:,}", str(load), f"{100 * fcfs['hit_rate']:.1f}; {fcfs['ttft_s_p99']:,.0f}",
            *(f"{100 * (row['hit_rate'] - fcfs['hit_rate']):+.1f}; {row['ttft_s_p99'] / fcfs['ttft_s_p99']:.2f}"
              for row in (by_order[name] for name in names if name != "fcfs")),
        ])  # fmt: skip
    return table(["trace", "blocks", "load", "fcfs: hit rate, %; p99, s", *(n for n in names if n != "fcfs")], body)


def _regrets(rows: Rows) -> str:
    header = ["trace", "order", "hit tokens of the best order", "regret, tokens", "best in streams",
              "regret, mean TTFT", "worst stream"]  # fmt: skip
    return table(header, [
        [row["trace"], row["order"], f"{row['best_hit_tokens']:,.0f}", f"{row['regret_hit_tokens']:,}",
         f"{row['best_in']} of {row['streams']}", f"{row['regret_ttft_mean']:+.1%}", f"{row['regret_ttft_worst']:+.1%}"]
        for row in rows
    ])  # fmt: skip


def _picture(rows: Rows) -> Figure:
    """Hits against p99 of time to first token, a panel a trace, a point an order; under lru, at a load of 0.9."""
    from framework_report.figures.style import new_axes, new_figure, series_style

    chosen = [row for row in _middle(rows) if row["eviction"] == "lru" and row["order"] not in cells.UNBOUNDED]
    traces, names = (list(dict.fromkeys(row[key] for row in chosen)) for key in ("trace", "order"))
    figure = new_figure(max(4.0, 3.2 * len(traces)), 3.6)
    for place, (panel, trace) in enumerate(zip(np.atleast_1d(figure.subfigures(1, len(traces))), traces, strict=True)):
        axes = new_axes(panel, grid="both")
        for row in (row for row in chosen if row["trace"] == trace):
            look = {**series_style(names.index(row["order"])), "linestyle": "none", "markersize": 7}
            axes.plot(100 * row["hit_rate"], row["ttft_s_p99"], label=None if place else row["order"], **look)
        axes.set(xlabel="hit rate, %", ylabel="" if place else "TTFT p99, s", title=trace)
        axes.set_ylim(bottom=0)
    figure.legend(loc="outside lower center", ncols=5 if len(traces) > 1 else 2, fontsize="small")
    return figure


if __name__ == "__main__":
    sys.exit(main())
