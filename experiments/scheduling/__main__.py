"""What an order of the waiting queue does to hits and times to first token, beside bounds and the best order."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.scheduling import cells, exact
from experiments.scheduling.cells import Cell
from experiments.scheduling.claims import claims, verdict
from experiments.shared import finish, kept, panels, parse, save, table, trace_path
from framework.replay.items import trace_items
from framework_report import statistics
from framework_report.statistics import Estimate, holm, sessions, swapped
from framework_scheduling.bounds import most_hits
from framework_scheduling.observer import CAUSES

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Rows = list[dict[str, Any]]
MIDDLE_LOAD = 0.9
QUICK_ORDERS = ("fcfs", "longest_prefix", "session_affinity", "shortest_rest", "fair")


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay what is not there yet, then compare, draw and print."""
    options = parse(__doc__, "scheduling", arguments)
    traces, orders = ((cells.QUICK,), QUICK_ORDERS) if options.quick else (tuple(cells.TRACES), cells.ORDERS)
    folder = options.out / "cells"
    asked = [cell for trace in traces for cell in cells.cells_of(trace, orders, quick=options.quick)]
    found = cells.run_all(asked, folder, options.jobs)
    rows = adjusted([row_of(cell, found, folder) for cell in found])
    count = exact.QUICK_CASES if options.quick else exact.CASES
    regrets = [row for trace in traces for row in exact.regrets(trace, count, folder, options.jobs)]
    crossed, middle = interaction(found), [row for row in rows if row["eviction"] == "lru" and _is_middle(row)]
    tables = {
        "orders": _orders(middle), "tails": _tails(middle), "interaction": _interaction(crossed),
        "places": _places(rows), "starvation": _starvation(rows), "regrets": _regrets(regrets),
    }  # fmt: skip
    if not options.quick:
        tables["claims"] = claims(rows)
    finish(
        options, {"orders": rows, "interaction": crossed, "regrets": regrets}, tables,
        [] if options.quick else [trace_path(name) for name in cells.TRACES.values()],
        requests={trace: [len(one) for one in cells.streams(trace)] for trace in traces},
        sessions={
            trace: [len({one.session for one in stream}) for stream in cells.streams(trace)] for trace in traces
        },
        capacity_requests_per_s={trace: cells.capacity(trace, folder) for trace in traces},
        costs="experiments/live/results/clock/costs.csv, vLLM",
    )  # fmt: skip
    x, shown = ("hit_rate", 0.01, "hit rate, %"), ("ttft_s_p99", 1, "TTFT p99, s")
    save(panels(middle, "order", x, shown, across="trace", ylim=(0, None)), options, "hits_first_token")
    return 0


# What each replay says


def row_of(cell: Cell, found: Mapping[Cell, dict[str, Any]], folder: Path) -> dict[str, Any]:
    """Hits, times, fairness and waits of a replay, and how it differs from `fcfs` of the same place, by session."""
    result, fcfs = found[cell], found[replace(cell, order="fcfs")]
    first, prompts = _times(result), _numbers(result, "prompt_tokens")
    units, every = _sessions(cell.trace, len(first)), np.arange(len(first))
    tails = tails_of(cell.trace)
    waits = {cause: sum(result[f"wait_{cause}_s"]) / len(first) for cause in CAUSES}
    return {
        "trace": cell.trace, "eviction": cell.eviction, "num_blocks": cell.num_blocks, "load": cell.load,
        "order": cell.order, "requests": len(first), "rate_per_s": len(first) / result["arrivals_s"],
        "hit_tokens": int(_numbers(result, "hit_tokens").sum()), "prompt_tokens": int(prompts.sum()),
        "bound_tokens": bound(cell.trace, len(cells.streams_of(cell))),
        "hit_rate": float(_numbers(result, "hit_tokens").sum() / prompts.sum()),
        "ttft_s_mean": float(first.mean()), "ttft_s_p50": float(np.percentile(first, 50)),
        **{name: of(first, every) for name, of in tails.items()},
        "ttft_s_short": float(first[prompts <= np.percentile(prompts, 25)].mean()),
        "ttft_s_continued": float(first[_continues(units)].mean()),
        "deadlines_met": float(np.mean(first <= _numbers(result, "deadline_s"))),
        "most_passed_over": max(result["passed_by"]), "overdue": result["overdue"], "bound_on_wait": result["bound"],
        "preemptions": result["preemptions"], "duration_s": result["duration_s"],
        **{f"wait_{cause}_s": wait for cause, wait in waits.items()},
        **dict.fromkeys(_BESIDE, ""), **(_kept_beside(cell, result, fcfs, folder) if is_judged(cell) else {}),
    }  # fmt: skip


def _kept_beside(cell: Cell, result: Mapping[str, Any], fcfs: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """`beside`, of an earlier run where nothing has changed."""
    files = [Path(__file__), Path(statistics.__file__), *cells.files_of(cell.trace)]
    return kept(folder, (*astuple(cell), "beside"), lambda: beside(cell, result, fcfs), files)


MEASURES = ("points", "ttft_s", "ttft_s_p99", "ttft_s_slowest_tenth", "jain_tenants")
"""What is judged beside `fcfs`: points of the hit rate, mean time to first token, its tails, fairness."""
_BESIDE = tuple(f"{name}_{what}" for name in MEASURES for what in ("beside_fcfs", "low", "high", "p", "tested", "unit"))


def is_judged(cell: Cell) -> bool:
    """Whether an order is compared with `fcfs`: under lru at the middle capacity, at loads of 0.9 and 1.1."""
    middle = cell.num_blocks == cells.CAPACITIES[cell.trace][1]
    return cell.order != "fcfs" and cell.eviction == "lru" and middle and cell.load in cells.JUDGED


def beside(cell: Cell, result: Mapping[str, Any], fcfs: Mapping[str, Any]) -> dict[str, Any]:
    """The differences from `fcfs` over the sessions of a trace; of tails and fairness at a load of 0.9 alone."""
    first, before = _times(result), _times(fcfs)
    units = _sessions(cell.trace, len(first))
    found = {
        "points": hits_beside(units, result, fcfs),
        "ttft_s": sessions([(np.bincount(units, weights=first - before), np.bincount(units) * 1.0)], "session"),
    }
    if cell.load == MIDDLE_LOAD:
        found |= {name: swapped(first, before, units, of, "session") for name, of in tails_of(cell.trace).items()}
    return {
        key: value
        for name, made in found.items()
        for key, value in _estimate(name, made, 100.0 if name == "points" else 1.0).items()
    }


def hits_beside(units: Ints, result: Mapping[str, Any], fcfs: Mapping[str, Any]) -> Estimate:
    """Difference of the hit rate over sessions."""
    more = _numbers(result, "hit_tokens") - _numbers(fcfs, "hit_tokens")
    return sessions(
        [tuple(np.bincount(units, weights=one) for one in (more, _numbers(fcfs, "prompt_tokens")))], "session"
    )


def tails_of(trace: str) -> dict[str, Callable[[Floats, Ints], float]]:
    """Statistics of times to first token of some requests, and of their places among those of the trace."""
    names = {name: number for number, name in enumerate({one.tenant: None for one in cells.requests_of(trace)})}
    tenants = np.array([names[one.tenant] for one in cells.requests_of(trace)])

    def jain(times: Floats, places: Ints) -> float:
        counts = np.bincount(tenants[places])
        means = np.bincount(tenants[places], weights=times)[counts > 0] / counts[counts > 0]
        return float(means.sum() ** 2 / (len(means) * (means**2).sum()))

    def slowest_tenth(times: Floats, places: Ints) -> float:
        return float(np.sort(times)[-max(1, len(times) // 10) :].mean())

    return {
        "ttft_s_p99": lambda times, places: float(np.percentile(times, 99)), "ttft_s_slowest_tenth": slowest_tenth,
        "jain_tenants": jain,
    }  # fmt: skip


@functools.cache
def bound(trace: str, num_streams: int) -> int:
    """The most tokens that requests of so many of its streams could hit in any order."""
    streams = cells.streams(trace)[:num_streams]
    return sum(most_hits([*trace_items(one)], cells.block_size(trace)).together for one in streams)


def adjusted(rows: Rows) -> Rows:
    """With the p of each measure adjusted, by Holm's method, over all that are judged by it."""
    for name in MEASURES:
        judged = [row for row in rows if row[f"{name}_p"] != ""]
        for row in rows:
            row[f"{name}_p_adjusted"] = ""
        for row, p in zip(judged, holm([row[f"{name}_p"] for row in judged]), strict=True):
            row[f"{name}_p_adjusted"] = p
    return rows


def _times(result: Mapping[str, Any]) -> Floats:
    if None in result["ttft_s"]:
        raise RuntimeError(f"a request got no token: {[reason for reason in result['reasons'] if reason][:1]}")
    return _numbers(result, "ttft_s")


def _numbers(result: Mapping[str, Any], key: str) -> Floats:
    return np.array(result[key], dtype=np.float64)


@functools.cache
def _sessions(trace: str, count: int) -> Ints:
    """(count,) the session of each of its first requests, numbered in order of their first request."""
    places: dict[str | None, int] = {}
    return np.array([places.setdefault(one.session, len(places)) for one in cells.requests_of(trace)[:count]])


def _continues(units: Ints) -> npt.NDArray[np.bool_]:
    """Which requests are not the first of their session."""
    later = np.ones(len(units), dtype=bool)
    later[np.unique(units, return_index=True)[1]] = False
    return later


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

    Intervals and p by session at the middle capacity and a load of 0.9, where all streams are replayed.
    """
    rows: Rows = []
    for cell, result in found.items():
        if cell.eviction != "hazard" or cell.order == "fcfs":
            continue
        lru, fcfs, plain = (
            found[other]
            for other in (
                replace(cell, eviction="lru"), replace(cell, order="fcfs"), replace(cell, eviction="lru", order="fcfs"),
            )
        )  # fmt: skip
        hits = [_numbers(one, "hit_tokens") for one in (result, lru, fcfs, plain)]
        prompts = _numbers(result, "prompt_tokens")
        points = [100 * float(one.sum() / prompts.sum()) for one in hits]
        row = {
            "trace": cell.trace, "num_blocks": cell.num_blocks, "load": cell.load, "order": cell.order,
            "lru": points[1], "hazard": points[0], "gain_of_hazard": points[0] - points[1],
            "gain_of_hazard_under_fcfs": points[2] - points[3], "gain_of_order_under_lru": points[1] - points[3],
            "gain_of_order_under_hazard": points[0] - points[2],
            "interaction": points[0] - points[1] - points[2] + points[3], "low": "", "high": "", "p": "",
            "p_adjusted": "",
        }  # fmt: skip
        if _is_middle(row):
            units = _sessions(cell.trace, len(prompts))
            parts = np.bincount(units, weights=hits[0] - hits[1] - hits[2] + hits[3])
            crossed = sessions([(parts, np.bincount(units, weights=prompts))], "session")
            low, high = crossed.interval or (crossed.value, crossed.value)
            row |= {"low": max(-100.0, 100 * low), "high": min(100.0, 100 * high)}
            row["p"] = 1.0 if crossed.p is None else crossed.p
        rows.append(row)
    judged = [row for row in rows if row["p"] != ""]
    for row, p in zip(judged, holm([row["p"] for row in judged]), strict=True):
        row["p_adjusted"] = p
    return rows


# Tables and the picture


def _is_middle(row: Mapping[str, Any]) -> bool:
    return row["load"] == MIDDLE_LOAD and row["num_blocks"] == cells.CAPACITIES[row["trace"]][1]


def _orders(rows: Rows) -> str:
    """Every order under lru at the middle capacity and a load of 0.9."""
    body = []
    for row in rows:
        body.append([
            row["trace"], row["order"], f"{100 * row['hit_rate']:.1f}",
            f"{100 * row['hit_tokens'] / row['bound_tokens']:.0f}", _beside(row, "points", "+.1f"),
            f"{row['ttft_s_mean']:.3g}", f"{row['ttft_s_p50']:.3g}", _beside(row, "ttft_s", "+.3g"),
            f"{100 * row['deadlines_met']:.0f}", _causes(row),
        ])  # fmt: skip
    header = ["trace", "order", "hit rate, %", "of the bound, %", "points beside fcfs", "TTFT mean, s", "p50",
              "mean beside fcfs, s", "deadlines met, %", "% of the wait: rows, blocks, budget, passed"]  # fmt: skip
    return table(header, body)


def _tails(rows: Rows) -> str:
    """What the same replays cost those who wait longest, and how alike tenants wait."""
    body = [
        [row["trace"], row["order"], f"{row['ttft_s_p99']:.3g}", _beside(row, "ttft_s_p99", "+.3g"),
         f"{row['ttft_s_slowest_tenth']:.3g}", _beside(row, "ttft_s_slowest_tenth", "+.3g"),
         f"{row['jain_tenants']:.2f}", _beside(row, "jain_tenants", "+.2f")]
        for row in rows
    ]  # fmt: skip
    header = ["trace", "order", "TTFT p99, s", "beside fcfs", "slowest tenth, s", "beside fcfs", "Jain, tenants",
              "beside fcfs"]  # fmt: skip
    return table(header, body)


def _beside(row: Mapping[str, Any], name: str, digits: str) -> str:
    if row["order"] == "fcfs":
        return ""
    low, high = (format(row[f"{name}_{end}"], digits) for end in ("low", "high"))
    return f"{format(row[f'{name}_beside_fcfs'], digits)} [{low}, {high}] {verdict(row, name)}"


def _causes(row: Mapping[str, Any]) -> str:
    waits = [row[f"wait_{cause}_s"] for cause in CAUSES]
    return ", ".join(f"{100 * wait / max(sum(waits), 1e-9):.0f}" for wait in waits)


def _interaction(rows: Rows) -> str:
    """At the middle capacity and a load of 0.9, and the least and most at any capacity and load."""
    ranges: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        ranges.setdefault((row["trace"], row["order"]), []).append(row["interaction"])
    header = ["trace", "order", "lru, %", "hazard, %", "hazard adds, points", "under fcfs it adds",
              "order adds under lru", "under hazard", "interaction, points", "at any size and load"]  # fmt: skip
    return table(header, [
        [row["trace"], row["order"], f"{row['lru']:.1f}", f"{row['hazard']:.1f}", f"{row['gain_of_hazard']:+.1f}",
         f"{row['gain_of_hazard_under_fcfs']:+.1f}", f"{row['gain_of_order_under_lru']:+.1f}",
         f"{row['gain_of_order_under_hazard']:+.1f}",
         f"{row['interaction']:+.1f} [{row['low']:+.1f}, {row['high']:+.1f}] "
         + ("shown" if row["p_adjusted"] < 0.05 else "not shown"),
         "{:+.1f} to {:+.1f}".format(*(of(ranges[row["trace"], row["order"]]) for of in (min, max)))]
        for row in rows
        if _is_middle(row)
    ])  # fmt: skip


def _places(rows: Rows) -> str:
    """Each load and capacity under lru: hit rate and p99 beside fcfs's, by order."""
    chosen = [row for row in rows if row["eviction"] == "lru"]
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


def _starvation(rows: Rows) -> str:
    """Over all loads, capacities and policies: who was passed over, and what the bounds did."""
    body = []
    for name in dict.fromkeys(row["order"] for row in rows):
        chosen = [row for row in rows if row["order"] == name]
        says = chosen[0]["bound_on_wait"]
        bounded = says.startswith("waited")
        most = [max(row["most_passed_over"] for row in chosen if row["trace"] == trace)
                for trace in dict.fromkeys(row["trace"] for row in chosen)]  # fmt: skip
        kept = sum(row["overdue"] > 0 for row in chosen)
        body.append([
            name, "seconds waited" if bounded else "none" if says else "in order of arrival",
            ", ".join(f"{count:,}" for count in most),
            f"{sum(row['overdue'] for row in chosen):,} in {kept} of {len(chosen)}" if bounded else "",
        ])  # fmt: skip
    return table(["order", "bound on the wait", "most passed over, each trace", "bound enforced, replays"], body)


def _regrets(rows: Rows) -> str:
    header = ["trace", "order", "hit tokens of the best", "regret, tokens a case", "best in cases",
              "mean TTFT", "p50", "slowest (p99, slowest tenth)", "worst case: mean, slowest"]  # fmt: skip

    def share(row: Mapping[str, Any], name: str) -> str:
        low, high = row[f"regret_ttft_{name}_low"], row[f"regret_ttft_{name}_high"]
        return f"{row[f'regret_ttft_{name}']:+.0%} [{low:+.0%}, {high:+.0%}]"

    return table(header, [
        [row["trace"], row["order"], f"{row['best_hit_tokens']:,.0f}",
         f"{row['regret_hit_tokens']:,.0f} [{row['regret_hit_tokens_low']:,.0f}, {row['regret_hit_tokens_high']:,.0f}]",
         f"{row['best_in']} of {row['cases']}", *(share(row, name) for name in exact.STATISTICS),
         f"{row['regret_ttft_mean_worst']:+.0%}, {row['regret_ttft_slowest_worst']:+.0%}"]
        for row in rows
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
