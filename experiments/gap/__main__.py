"""How much of the gap between LRU and the offline optimum an online policy can close, by knowing what, at what cost."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.gap import scoring
from experiments.gap.cells import SYNTHETIC, TRACES, Cell, at_hand, bounds, run_all, stream
from experiments.gap.scoring import FRACTIONS, Field, closed_at, closed_by, closed_by_at, points_over_lru
from experiments.shared import finish, panels, parse, save, table, trace_path

POLICIES = ("hazard",)
DRAWN = ("lru", "hazard", "pinned optimum", "published optimum")
QUICK_FRACTIONS = (0.02, 0.1, 0.35)
LABEL_ERRORS = (0.0, 0.1, 0.17, 0.3, 0.5, 0.83)
TIME_SIGMAS = (0.0, 1.0, 2.0)
INFORMED = {
    "conversation": (10_000 / 182_790, LABEL_ERRORS, TIME_SIGMAS),
    "agentic coding": (2_000 / 54_711, (), TIME_SIGMAS),
    "agent text": (0.02, (0.0,), (0.0,)),
    SYNTHETIC: (0.06, (0.0, 0.17), (1.0,)),
}
"""By trace: capacity, errors of labels, errors of times."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay what is not there yet, then draw and print."""
    options = parse(__doc__, "gap", arguments)
    traces = [SYNTHETIC] if options.quick else at_hand()
    fractions = QUICK_FRACTIONS if options.quick else FRACTIONS
    folder = options.out / "cells"
    folder.mkdir(exist_ok=True)
    cells = _cells(traces, fractions, folder, quick=options.quick)
    results = run_all(cells, options.jobs)
    fields = {trace: bounds(trace, fractions) for trace in traces}
    anatomy, information = _anatomy(fields, fractions, results, folder), _information(results)
    foretold = table(
        ["trace", "blocks", "foretold", "error", "gap closed, %"],
        [[r["trace"], f"{r['capacity_blocks']:,}", r["foretold"], f"{r['error']:g}",
          _percent(r["closed"], r["low"], r["high"])] for r in information],
    )  # fmt: skip
    finish(
        options,
        {"anatomy": anatomy, "information": information},
        {"anatomy": _anatomy_table(anatomy, fractions), "information": foretold},
        [] if options.quick else [trace_path(TRACES[trace]) for trace in traces],
        fractions=fractions,
        resamples=scoring.NUM_RESAMPLES,
        units={trace: f"{field.lru.shape[1]} x {stream(trace).unit_name}" for trace, field in fields.items()},
        cpu_s=round(sum(result["cpu_s"] for result in results.values()), 1),
    )
    drawn = [{**row, "rate": row["hit_blocks"] / row["references"]} for row in anatomy if row["policy"] in DRAWN]
    x, shown = ("capacity_blocks", 1, "capacity, blocks"), ("rate", 0.01, "hit rate by block, %")
    save(panels(drawn, "policy", x, shown, across="trace", down=True, xscale="log"), options, "anatomy")
    hinted = [
        {**row, "of": f"{row['trace']}: {row['foretold']}"} for row in information if row["foretold"] != "nothing"
    ]
    x = ("error", 1, "error: share of wrong labels, or sigma of the log of times")
    save(panels(hinted, "of", x, ("closed", 0.01, "gap closed, %")), options, "information")
    return 0


def _cells(traces: Sequence[str], fractions: Sequence[float], folder: Path, *, quick: bool) -> list[Cell]:
    cells = [Cell(trace, policy, part, folder) for trace in traces for policy in POLICIES for part in fractions]
    for trace in traces:
        if trace in INFORMED:
            part, errors, sigmas = INFORMED[trace]
            foretold = ["", *(f"labels {error}" for error in errors), *(f"times {sigma}" for sigma in sigmas)]
            cells += [Cell(trace, "hinted", part, folder, what) for what in foretold]
    return list(dict.fromkeys(cells))


# What was found


def _anatomy(
    fields: dict[str, Field], fractions: tuple[float, ...], results: dict[Cell, dict[str, Any]], folder: Path
) -> list[dict[str, Any]]:
    """One row a trace, policy and capacity, the bounds among the policies."""
    rows = []
    for trace, field in fields.items():
        found = {"lru": field.lru, "pinned optimum": field.optimum, "published optimum": field.published}
        for name in POLICIES:
            hit = [results[Cell(trace, name, part, folder)]["unit_hits"] for part in fractions]
            found[name] = np.array(hit, np.float64)
        for policy, hits in found.items():
            area, low, high = closed_by(field, hits)
            shares, points = closed_at(field, hits), points_over_lru(field, hits)
            for index, part in enumerate(fractions):
                cost = results.get(Cell(trace, policy, part, folder), {}).get("us_per_block", "")
                rows.append(
                    {
                        "trace": trace,
                        "policy": policy,
                        "fraction": part,
                        "capacity_blocks": field.capacities[index],
                        "hit_blocks": int(hits[index].sum()),
                        "references": field.num_references,
                        "closed": float(shares[index]),
                        "points_over_lru": float(points[index]),
                        "area_closed": area,
                        "area_low": low,
                        "area_high": high,
                        "us_per_block": cost,
                    }
                )
    return rows


def _information(results: dict[Cell, dict[str, Any]]) -> list[dict[str, Any]]:
    """Share closed at one capacity, over the error of what clients foretell."""
    rows = []
    for cell, result in results.items():
        if cell.policy != "hinted":
            continue
        field = bounds(cell.trace, (cell.fraction,))
        closed, low, high = closed_by_at(field, np.array([result["unit_hits"]], np.float64))
        kind, _, value = cell.foretold.partition(" ")
        rows.append(
            {
                "trace": cell.trace,
                "capacity_blocks": result["capacity_blocks"],
                "foretold": kind or "nothing",
                "error": float(value) if value else 0.0,
                "hit_blocks": result["hit_blocks"],
                "closed": closed,
                "low": low,
                "high": high,
            }
        )
    return rows


def _anatomy_table(anatomy: list[dict[str, Any]], fractions: Sequence[float]) -> str:
    rows = []
    for trace in dict.fromkeys(row["trace"] for row in anatomy):
        mine = [row for row in anatomy if row["trace"] == trace]
        for policy in dict.fromkeys(row["policy"] for row in mine):
            if policy in ("lru", "pinned optimum"):
                continue
            cells = [row for row in mine if row["policy"] == policy]
            costs = [row["us_per_block"] for row in cells if row["us_per_block"] != ""]
            rows.append(
                [trace, policy, _percent(*(cells[0][f"area_{name}"] for name in ("closed", "low", "high"))),
                 *(f"{100 * row['closed']:.0f}" if row["closed"] == row["closed"] else "-" for row in cells),
                 f"{min(row['points_over_lru'] for row in cells):+.2f}", f"{np.median(costs):.1f}" if costs else "-"]
            )  # fmt: skip
    parts = [f"{100 * part:g} %" for part in fractions]
    return table(["trace", "policy", "area closed, %", *parts, "worst, points", "us a block"], rows)


def _percent(value: float, low: float, high: float) -> str:
    return f"{100 * value:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


if __name__ == "__main__":
    sys.exit(main())
