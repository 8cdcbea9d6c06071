"""All installed eviction policies on all traces at hand, at several capacities, ranked by their gap to the optimum."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any

from experiments.shared import MissingTrace, parse, publish, save, table, trace_path, write_provenance, write_rows
from experiments.tournament.cells import OPTIMUM, SYNTHETIC, TRACES, Cell, run, stream
from experiments.tournament.ranking import NUM_RESAMPLES, Standing, rank
from framework import registry
from framework.report.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FRACTIONS = (0.01, 0.03, 0.1, 0.3)
"""Capacities as shares of a trace's distinct blocks."""
QUICK_FRACTIONS = (0.03, 0.1)
QUICK_POLICIES = ("lru", "fifo", "lfu", "length_aware", "belady")
REFERENCE = "lru"
_TICKS = (0, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is not there yet, then rank."""
    options = parse(__doc__, "tournament", arguments)
    traces = [SYNTHETIC] if options.quick else _at_hand()
    policies = QUICK_POLICIES if options.quick else tuple(n for n in registry.names("eviction") if n != OPTIMUM)
    fractions = QUICK_FRACTIONS if options.quick else FRACTIONS
    folder = options.out / "cells"
    folder.mkdir(exist_ok=True)
    cells = [Cell(t, p, f, folder) for t in traces for f in fractions for p in (OPTIMUM, *policies)]
    results = _run_all(cells, options.jobs)
    offline = [policy for policy in policies if registry.load("eviction", policy).needs_future]
    references = {trace: stream(trace).unit_references.astype(float) for trace in traces}
    standings = rank(results, references, optimum=OPTIMUM, reference_policy=REFERENCE, offline=offline)
    write_rows(options.out / "cells.csv", _cell_rows(results, standings))
    write_rows(options.out / "ranking.csv", _ranking_rows(standings, offline))
    facts = {
        "resamples": NUM_RESAMPLES,
        "seed": 0,
        "units": {trace: f"{len(units)} x {stream(trace).unit_name}" for trace, units in references.items()},
        "cpu_s": round(sum(result["cpu_s"] for result in results), 1),
        "distributions": {p: registry.find("eviction", p).distribution for p in policies},
    }
    write_provenance(options, [] if options.quick else [trace_path(TRACES[trace]) for trace in traces], **facts)
    publish(options, _tables(standings, offline, results, traces))
    save(_plot(standings, offline, traces), options, "ranking")
    return 0


def _at_hand() -> list[str]:
    found = []
    for name, file in TRACES.items():
        try:
            trace_path(file)
        except MissingTrace as missing:
            print(f"left out: {missing}", file=sys.stderr)
        else:
            found.append(name)
    if not found:
        sys.exit("none of the tournament's traces is at hand; --quick --out FOLDER draws a synthetic one")
    return found


def _run_all(cells: Sequence[Cell], jobs: int) -> list[dict[str, Any]]:
    """The results in the order of the cells; those of earlier runs are read, not replayed."""
    from rich.progress import track

    with ProcessPoolExecutor(jobs) as pool:
        futures = [pool.submit(run, cell) for cell in cells]
        for future in track(as_completed(futures), "replaying", total=len(futures)):
            future.result()
    return [future.result() for future in futures]


def _cell_rows(results: Sequence[dict[str, Any]], standings: Sequence[Standing]) -> list[dict[str, Any]]:
    gaps = {(policy, *cell): gap for s in standings for policy in (s.policy, *s.equals) for cell, gap in s.gaps.items()}
    none = Interval(0.0, 0.0, 0.0)
    rows = []
    for result in results:
        gap = gaps.get((result["policy"], result["trace"], result["fraction"]), none)
        kept = {key: value for key, value in result.items() if key not in ("key", "unit_hits")}
        rows.append({**kept, "gap": gap.value, "gap_low": gap.low, "gap_high": gap.high})
    return rows


def _ranking_rows(standings: Sequence[Standing], offline: Sequence[str]) -> list[dict[str, Any]]:
    rows = []
    for place, standing in enumerate(standings, start=1):
        row: dict[str, Any] = {
            "place": place,
            "policy": standing.policy,
            "equals": " ".join(standing.equals),
            "offline": standing.policy in offline,
            "score": standing.score.value,
            "score_low": standing.score.low,
            "score_high": standing.score.high,
            f"minus_{REFERENCE}": standing.versus.value,
            f"minus_{REFERENCE}_low": standing.versus.low,
            f"minus_{REFERENCE}_high": standing.versus.high,
            "best_share": standing.best,
        }
        for trace, found in standing.by_trace.items():
            row |= {f"{trace}": found.value, f"{trace} low": found.low, f"{trace} high": found.high}
        rows.append(row)
    return rows


# What a reader sees


def _tables(
    standings: Sequence[Standing], offline: Sequence[str], results: Sequence[dict[str, Any]], traces: Sequence[str]
) -> dict[str, str]:
    ranking = table(
        ["", "policy", "score, %", f"minus {REFERENCE}, points", *(f"{trace}, %" for trace in traces), "best in"],
        [
            [place, _name(s, offline), _percent(s.score), _percent(s.versus),
             *(_percent(s.by_trace[trace]) for trace in traces), f"{100 * s.best:.0f} %"]
            for place, s in enumerate(standings, start=1)
        ],
    )  # fmt: skip
    cells = list(standings[0].gaps)
    sizes = {(r["trace"], r["fraction"]): r["capacity_blocks"] for r in results}
    best = {(r["trace"], r["fraction"]): r["hit_blocks"] for r in results if r["policy"] == OPTIMUM}
    total = {r["trace"]: r["prompt_blocks"] for r in results}
    optimum = table(
        ["trace", "capacity, of distinct blocks", "blocks", "references", "the optimum's hits", "rate, %"],
        [
            [trace, f"{100 * fraction:g} %", f"{sizes[trace, fraction]:,}", f"{total[trace]:,}",
             f"{best[trace, fraction]:,}", f"{100 * best[trace, fraction] / total[trace]:.2f}"]
            for trace, fraction in cells
        ],
    )  # fmt: skip
    gaps = table(
        ["policy", *(f"{trace} {100 * fraction:g} %" for trace, fraction in cells)],
        [[_name(s, offline), *(f"{100 * s.gaps[cell].value:.1f}" for cell in cells)] for s in standings],
    )
    return {"ranking": ranking, "gaps": gaps, "optimum": optimum}


def _name(standing: Standing, offline: Sequence[str]) -> str:
    """A policy, with those that did exactly the same in every cell."""
    names = " = ".join([standing.policy, *standing.equals])
    return f"{names} (offline)" if standing.policy in offline else names


def _percent(found: Interval) -> str:
    return f"{100 * found.value:.1f} [{100 * found.low:.1f}, {100 * found.high:.1f}]"


def _plot(standings: Sequence[Standing], offline: Sequence[str], traces: Sequence[str]) -> Figure:
    from framework.figures.style import COLOURS, MARKERS, new_axes, new_figure

    figure = new_figure(8.0, 1.4 + 0.27 * len(standings))
    axes = new_axes(figure, grid="both")
    places = range(len(standings))
    for index, trace in enumerate(traces):
        found = [standing.by_trace[trace] for standing in standings]
        axes.plot([100 * f.value for f in found], places, MARKERS[index + 1], color=COLOURS[index + 1], label=trace,
                  markersize=5, alpha=0.8)  # fmt: skip
    scores = [standing.score for standing in standings]
    values = [100 * score.value for score in scores]
    errors = [[100 * (s.value - s.low) for s in scores], [100 * (s.high - s.value) for s in scores]]
    axes.errorbar(values, places, xerr=[[max(0.0, e) for e in side] for side in errors], fmt="o", color="#222222",
                  capsize=3, markersize=6, label="all, with 95 % interval")  # fmt: skip
    axes.set_yticks(list(places), [_name(s, offline) for s in standings])
    axes.invert_yaxis()
    axes.set_xscale("symlog", linthresh=10)
    highest = 100 * max(f.high for s in standings for f in (s.score, *s.by_trace.values()))
    ticks = [tick for tick in _TICKS if tick < 1.2 * highest]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlim(0, 1.2 * highest)
    axes.set_xlabel("misses beyond the optimum's, %")
    figure.legend(loc="outside lower center", ncols=4, fontsize="small")
    return figure


if __name__ == "__main__":
    sys.exit(main())
