"""How much of the gap between LRU and the offline optimum an online policy can close, by knowing what, at what cost."""

from __future__ import annotations

import functools
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.gap import pictures, policies, scoring
from experiments.gap.policies import VARIANTS, build, with_labels, with_times
from experiments.gap.scoring import FRACTIONS, Field, closed_at, closed_by, closed_by_at, field_of, points_over_lru
from experiments.shared import digest, kept, parse, publish, save, table, trace_path, write_provenance, write_rows
from experiments.tournament.cells import SYNTHETIC, TRACES, stream
from framework.replay.paths import RequestPaths
from framework.replay.reference import replay

if TYPE_CHECKING:
    import argparse

ANATOMY = {"conversation": ("hazard", "fitted", "arc", "workload_aware", "tail_lru")}
"""Policies by trace; on the others the first three."""
QUICK = ("arc", "hazard")
QUICK_FRACTIONS = (0.02, 0.1, 0.35)
PARAMETERS = ("hazard", "hazard tolerance=0.001", "hazard window=4096")
TRANSFER_FRACTIONS = (0.02, 0.06, 0.2)
LABEL_ERRORS = (0.0, 0.1, 0.17, 0.3, 0.5, 0.83)
TIME_SIGMAS = (0.0, 1.0, 2.0)
INFORMED = {"conversation": 10_000 / 182_790, "agentic coding": 2_000 / 54_711, SYNTHETIC: 0.06}


@dataclass(frozen=True, slots=True)
class Cell:
    """One replay. `foretold`: "labels E" or "times S": what the clients foretell; "" for nothing."""

    trace: str
    policy: str
    fraction: float
    folder: Path
    foretold: str = ""

    @property
    def file(self) -> Path:
        name = f"{self.trace}-{self.policy}-{self.fraction:.4g}-{self.foretold}".replace(" ", "_").replace("=", "")
        return self.folder / f"{name}.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay what is not there yet, then draw and print."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if "--quick" in arguments and "--out" not in arguments:
        arguments += ["--out", str(Path(tempfile.gettempdir()) / "gap-quick")]
    options = parse(__doc__, "gap", arguments)
    traces = [SYNTHETIC] if options.quick else [name for name, file in TRACES.items() if trace_path(file)]
    fractions = QUICK_FRACTIONS if options.quick else FRACTIONS
    folder = options.out / "cells"
    folder.mkdir(exist_ok=True)
    cells = _cells(traces, fractions, folder, quick=options.quick)
    results = dict(zip(cells, _run_all(cells, options.jobs), strict=True))
    fields = {trace: bounds(trace, fractions) for trace in traces}
    anatomy = _anatomy(fields, fractions, results)
    information = _information(results)
    parts = {"anatomy": anatomy, "information": information}
    if not options.quick:
        parts |= {"transfer": _transfer(traces, results), "variants": _variants(traces, results)}
    for name, rows in parts.items():
        write_rows(options.out / f"{name}.csv", rows)
    write_provenance(
        options,
        [] if options.quick else [trace_path(TRACES[trace]) for trace in traces],
        fractions=fractions,
        resamples=scoring.NUM_RESAMPLES,
        units={trace: f"{field.lru.shape[1]} x {stream(trace).unit_name}" for trace, field in fields.items()},
        cpu_s=round(sum(result["cpu_s"] for result in results.values()), 1),
    )
    _show(options, list(fields), parts, fractions)
    return 0


def _cells(traces: Sequence[str], fractions: Sequence[float], folder: Path, *, quick: bool) -> list[Cell]:
    everywhere = ANATOMY["conversation"][:3]
    cells = [
        Cell(trace, policy, part, folder)
        for trace in traces
        for policy in (QUICK if quick else ANATOMY.get(trace, everywhere))
        for part in fractions
    ]
    for trace in traces:
        if trace not in INFORMED:
            continue
        errors = (0.0, 0.17) if quick else LABEL_ERRORS if trace in ANATOMY else ()
        foretold = [f"labels {error}" for error in errors]
        foretold += [f"times {sigma}" for sigma in ((1.0,) if quick else TIME_SIGMAS)]
        cells += [Cell(trace, "hinted", INFORMED[trace], folder, what) for what in ("", *foretold)]
    if not quick:
        others = (*PARAMETERS, *(f"without {name}" for name in VARIANTS))
        cells += [Cell(t, p, part, folder) for p in others for t in traces for part in TRANSFER_FRACTIONS]
    return list(dict.fromkeys(cells))


@functools.cache
def bounds(trace: str, fractions: tuple[float, ...]) -> Field:
    """LRU and the optima on a trace, once a process."""
    source = stream(trace)
    return field_of(source.paths, source.units, fractions)


@functools.cache
def _paths(trace: str, foretold: str) -> RequestPaths:
    kind, _, value = foretold.partition(" ")
    paths = stream(trace).paths
    if kind == "labels":
        return with_labels(paths, float(value))
    return with_times(paths, float(value)) if kind == "times" else paths


def run(cell: Cell) -> dict[str, Any]:
    """The cell's result, from its file where that is of the same code and trace."""
    return kept(cell.file, _key(cell), lambda: _replayed(cell))


def _replayed(cell: Cell) -> dict[str, Any]:
    paths = _paths(cell.trace, cell.foretold)
    capacity = max(1, round(cell.fraction * paths.num_nodes))
    policy = build(cell.policy, paths, capacity)
    start = time.process_time()
    found = replay(paths, policy, capacity)
    return {
        "capacity_blocks": capacity,
        "hit_blocks": found.hit_blocks,
        "cpu_s": round(time.process_time() - start, 3),
        "us_per_block": round(1e6 * (time.process_time() - start) / paths.num_references, 3),
        "unit_hits": np.bincount(stream(cell.trace).units, weights=found.request_hits).astype(int).tolist(),
    }


def _key(cell: Cell) -> str:
    """Changes with the trace, the replay and the policies: a stale cell is run again."""
    from framework.replay import reference
    from framework_builtin.eviction import _groups, _returns, hazard, hinted, tail_lru, tool_ttl, workload_aware

    modules = (policies, reference, _groups, _returns, hazard, hinted, tail_lru, tool_ttl, workload_aware)
    files = [Path(str(module.__file__)) for module in modules]
    if cell.trace != SYNTHETIC:
        files.append(trace_path(TRACES[cell.trace]))
    return digest(cell.trace, cell.policy, cell.fraction, cell.foretold, files=files)


def _run_all(cells: Sequence[Cell], jobs: int) -> list[dict[str, Any]]:
    from rich.progress import track

    with ProcessPoolExecutor(jobs) as pool:
        futures = [pool.submit(run, cell) for cell in cells]
        for future in track(as_completed(futures), "replaying", total=len(futures)):
            future.result()
    return [future.result() for future in futures]


# What was found


def _hits(results: dict[Cell, dict[str, Any]], trace: str, policy: str, fractions: Sequence[float]) -> Any:
    """(K, U) hits of a policy; None when it was not replayed at all of these capacities."""
    rows = {
        c.fraction: r["unit_hits"] for c, r in results.items() if (c.trace, c.policy, c.foretold) == (trace, policy, "")
    }
    return np.array([rows[part] for part in fractions], np.float64) if all(f in rows for f in fractions) else None


def _anatomy(
    fields: dict[str, Field], fractions: tuple[float, ...], results: dict[Cell, dict[str, Any]]
) -> list[dict[str, Any]]:
    """One row a trace, policy and capacity, the bounds among the policies."""
    rows = []
    names = list(dict.fromkeys(cell.policy for cell in results if not cell.foretold))
    for trace, field in fields.items():
        found = {"lru": field.lru, "pinned optimum": field.optimum, "published optimum": field.published}
        for name in names:
            hits = _hits(results, trace, name, fractions)
            if hits is not None:
                found[name] = hits
        for policy, hits in found.items():
            area, at, points = closed_by(field, hits), closed_at(field, hits), points_over_lru(field, hits)
            for index, part in enumerate(fractions):
                cost = [r["us_per_block"] for c, r in results.items()
                        if (c.trace, c.policy, c.fraction, c.foretold) == (trace, policy, part, "")]  # fmt: skip
                rows.append(
                    {
                        "trace": trace,
                        "policy": policy,
                        "fraction": part,
                        "capacity_blocks": field.capacities[index],
                        "hit_blocks": int(hits[index].sum()),
                        "references": field.num_references,
                        "closed": float(at[index]),
                        "points_over_lru": float(points[index]),
                        "area_closed": area.value,
                        "area_low": area.low,
                        "area_high": area.high,
                        "us_per_block": cost[0] if cost else "",
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
        closed = closed_by_at(field, np.array([result["unit_hits"]], np.float64))
        kind, _, value = cell.foretold.partition(" ")
        rows.append(
            {
                "trace": cell.trace,
                "capacity_blocks": result["capacity_blocks"],
                "foretold": kind or "nothing",
                "error": float(value) if value else 0.0,
                "hit_blocks": result["hit_blocks"],
                "closed": closed.value,
                "low": closed.low,
                "high": closed.high,
            }
        )
    return rows


def _transfer(traces: Sequence[str], results: dict[Cell, dict[str, Any]]) -> list[dict[str, Any]]:
    """Parameters chosen on all traces but one, judged on that one."""
    scores = {}
    for trace in traces:
        field = bounds(trace, TRANSFER_FRACTIONS)
        for name in PARAMETERS:
            scores[trace, name] = closed_by(field, _hits(results, trace, name, TRANSFER_FRACTIONS))
    rows = []
    for left_out in traces:
        others = [trace for trace in traces if trace != left_out]
        chosen = max(PARAMETERS, key=lambda name: sum(scores[trace, name].value for trace in others))
        best = max(PARAMETERS, key=lambda name: scores[left_out, name].value)
        found = scores[left_out, chosen]
        rows.append(
            {
                "left_out": left_out,
                "chosen_on_the_others": chosen,
                "closed": found.value,
                "low": found.low,
                "high": found.high,
                "best_of_all": best,
                "its_closed": scores[left_out, best].value,
            }
        )
    return rows


def _variants(traces: Sequence[str], results: dict[Cell, dict[str, Any]]) -> list[dict[str, Any]]:
    """Hazard with one of its choices undone, at the capacities of the transfer."""
    rows = []
    for name in ("hazard", *(f"without {name}" for name in VARIANTS)):
        for trace in traces:
            field = bounds(trace, TRANSFER_FRACTIONS)
            hits = _hits(results, trace, name, TRANSFER_FRACTIONS)
            found = closed_by(field, hits)
            worst = float(points_over_lru(field, hits).min())
            rows.append(
                {"variant": name, "trace": trace, "closed": found.value, "low": found.low, "high": found.high,
                 "worst_points": worst}
            )  # fmt: skip
    return rows


def _show(
    options: argparse.Namespace,
    traces: Sequence[str],
    parts: dict[str, list[dict[str, Any]]],
    fractions: Sequence[float],
) -> None:
    anatomy, information, transfer = parts["anatomy"], parts["information"], parts.get("transfer")
    tables = {"anatomy": _anatomy_table(anatomy, fractions)}
    tables["information"] = table(
        ["trace", "blocks", "foretold", "error", "gap closed, %"],
        [[r["trace"], f"{r['capacity_blocks']:,}", r["foretold"], f"{r['error']:g}",
          _percent(r["closed"], r["low"], r["high"])] for r in information],
    )  # fmt: skip
    if transfer:
        tables["transfer"] = table(
            ["left out", "chosen on the others", "gap closed there, %", "best in hindsight", "its gap closed, %"],
            [[r["left_out"], r["chosen_on_the_others"], _percent(r["closed"], r["low"], r["high"]), r["best_of_all"],
              f"{100 * r['its_closed']:.1f}"] for r in transfer],
        )  # fmt: skip
        tables["variants"] = table(
            ["", "trace", "gap closed, %", "worst, points"],
            [[r["variant"], r["trace"], _percent(r["closed"], r["low"], r["high"]), f"{r['worst_points']:+.2f}"]
             for r in parts["variants"]],
        )  # fmt: skip
    publish(options, tables)
    save(pictures.anatomy(anatomy, list(traces)), options, "anatomy")
    save(pictures.information(information), options, "information")


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
