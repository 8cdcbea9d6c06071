"""A leaderboard of eviction policies: how much of the gap between LRU and the pinned optimum each closes on each trace.

Every installed policy takes part, at its defaults or with the options of its file in `entries/`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.gap.cells import SYNTHETIC, TRACES, Cell, at_hand, bounds, build, file_of, run_all, stream
from experiments.gap.scoring import closed_by, points_over_lru
from experiments.leaderboard.entry import Entry, read_entries, with_installed
from experiments.shared import ROOT, begun, checksum, parser_of, save, table
from framework import registry
from framework.errors import FrameworkError
from framework.interfaces import CONTRACT, CONTRACT_MINOR
from framework_report.statistics import paired
from framework_testing import eviction_checks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FRACTIONS = (0.01, 0.035, 0.1)
"""Three of the capacities of the gap experiment; agents in blocks of 2,048 tokens, for speed."""
_INTRODUCTION = """# Leaderboard of eviction policies

How much of the gap between LRU and the pinned offline optimum a policy closes on a trace: the area between their hits
over the logarithm of the capacity, at 1, 3.5 and 10 % of the trace's distinct blocks. 100 is the optimum, 0 is LRU,
below 0 is worse than LRU. Coding agents are replayed in blocks of 2,048 tokens, the others as they are.

**Score**: the mean over the traces of that share, cut at -100 and 100, so that no single trace dominates. Its brackets
are a 95 % interval over traces (Student's t of as many values as there are traces, which for a mean is the jackknife):
the unit of evidence is the trace, and two of Mooncake's and two of kv-cache-tester's are less than four independent
ones. It is the only interval here that says something of a trace that is not in the table. Brackets at a trace are
95 % intervals by resampling its own sessions or runs of requests. They cover the sample only: on the conversation trace
`hazard` closed 17.5 to 21.0 % on each quarter alone, all below the interval of the whole, [22.6, 28.0] (an earlier
revision, eight capacities).

Worst: the lowest difference to LRU on any trace at any capacity, in points of the hit rate. On agent text LRU is within
0.3 points of the optimum at all capacities: its share is of a small gap. A row is valid when the kit passes, the policy
knows no future and exceeds no capacity, and whole traces were replayed from a committed revision. Entries that fail the
kit, know the future or exceed the capacity have no place and stand below the others.
"""
_HOW_TO_ENTER = """To enter, install a package with an eviction policy and add a file to
`experiments/leaderboard/entries/`; see `experiments/leaderboard/README.md`.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge all entries by the kit, replay them on all traces, rank them, and write the page."""
    options = _parse(arguments)
    try:
        entries = _chosen(with_installed(read_entries(options.entries)), options.policies)
    except FrameworkError as error:
        print(error, file=sys.stderr)
        return 2
    if not options.traces:
        print("no trace at hand; put them into a folder and set KVLAB_TRACES to it", file=sys.stderr)
        return 2
    state = options.checkout  # before the first result; "+" where files differ from the revision
    revision = (state["git_revision"] or "")[:12] + "+" * bool(state["git_dirty"])
    rows = _all_rows(entries, options)
    reasons = _reasons(options, revision)
    for row in rows:
        row |= {"revision": revision, "contract": f"{CONTRACT}.{CONTRACT_MINOR}"}
        row["ranked"] = not row["against"]
        row["against"] = [*row.pop("against"), *reasons]
        row["valid"] = not row["against"]
    ranked = sorted(
        rows, key=lambda row: (not row["ranked"], -row["score"] if row["score"] == row["score"] else math.inf)
    )
    left_out = sorted(set(registry.names("eviction")) - {entry.policy for entry in entries})
    record = {"command": _command(options), "date": time.strftime("%Y-%m-%d"), "machine": _machine(),
              "left_out": left_out, "rows": ranked}  # fmt: skip
    (options.out / "leaderboard.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    page = _page(ranked, record)
    ((ROOT / "docs" if options.publish else options.out) / "leaderboard.md").write_text(page, encoding="utf-8")
    save(_picture(ranked), options, "leaderboard")
    print(page)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    entries = Path(__file__).resolve().parent / "entries"
    parser = parser_of(__doc__, "leaderboard", quick="two capacities; loses the valid stamp", jobs=True)
    parser.add_argument("--traces", nargs="+", choices=[*TRACES, SYNTHETIC], help="default: those at hand; needs --out")
    parser.add_argument("--entries", type=Path, default=entries, help="folder of entries, one TOML file each")
    parser.add_argument("--policies", nargs="+", help="only these entries")
    options = begun(parser, arguments)
    if options.publish and options.traces:
        parser.error("--traces would overwrite the whole results; give --out FOLDER")
    options.cells = (ROOT / "experiments" / "gap" / "results" if options.publish else options.out) / "cells"
    options.traces = [name + " by 2048" * name.startswith("agentic") for name in options.traces or at_hand()]
    options.fractions = FRACTIONS[1:] if options.quick else FRACTIONS
    return options


def judge(entry: Entry) -> list[str]:
    """Why an entry has no valid stamp, whatever the trace; empty when it has."""
    against = []
    kind: Any = registry.load("eviction", entry.policy)
    if kind.needs_future:
        against.append("it knows the future")
    if kind.bypass:
        against.append("it may exceed the capacity")
    for check in eviction_checks:
        try:
            check(lambda: build(entry.spec, 64, 16))
        except Exception as error:
            against.append(f"kit: {check.__name__}: {str(error).splitlines()[0]}")
            break
    return against


def _all_rows(entries: Sequence[Entry], options: argparse.Namespace) -> list[dict[str, Any]]:
    cells = [
        Cell(trace, entry.spec, part, options.cells)
        for entry in entries
        for trace in options.traces
        for part in options.fractions
    ]
    results = run_all(list(dict.fromkeys(cells)), options.jobs)
    rows = []
    for entry in entries:
        found = [_on(trace, entry, options, results) for trace in options.traces]
        against = judge(entry)
        rows.append(
            {
                "name": entry.name,
                "policy": entry.policy,
                "options": dict(entry.options),
                "by": entry.by,
                "source": entry.source,
                **_score([on["closed"] for on in found]),
                "worst_points": min(on["worst_points"] for on in found),
                "kit": not any(reason.startswith("kit") for reason in against),
                "against": against,
                "traces": found,
            }
        )
    return rows


def _on(trace: str, entry: Entry, options: argparse.Namespace, results: dict[Cell, dict[str, Any]]) -> dict[str, Any]:
    """What one entry does on one trace."""
    field = bounds(trace, options.fractions)
    mine = [results[Cell(trace, entry.spec, part, options.cells)] for part in options.fractions]
    hits = np.array([result["unit_hits"] for result in mine], np.float64)
    (closed, low, high), file = closed_by(field, hits), file_of(trace)
    return {
        "trace": trace, "sha256": checksum(file) if file else "",
        "unit": stream(trace).unit_name,
        "block_tokens": field.paths.block_tokens, "num_references": field.num_references,
        "capacities": list(field.capacities), "hit_blocks": hits.sum(axis=1).astype(int).tolist(),
        "lru_hit_blocks": field.lru.sum(axis=1).astype(int).tolist(),
        "pinned_optimum_hit_blocks": field.optimum.sum(axis=1).astype(int).tolist(),
        "closed": closed, "low": low, "high": high,
        "worst_points": float(points_over_lru(field, hits).min()),
        "gap_points": points_over_lru(field, field.optimum).tolist(),
    }  # fmt: skip


def _score(closed: Sequence[float]) -> dict[str, float]:
    """Mean and interval over the traces that leave a gap, each share cut at -1 and 1; NaN where there is none."""
    known = [min(1.0, max(-1.0, value)) for value in closed if not math.isnan(value)]
    if not known:
        return dict.fromkeys(("score", "low", "high"), math.nan)
    found = paired(known, "trace")
    low, high = found.interval or (math.nan, math.nan)
    return {"score": found.value, "low": low, "high": high}


def _chosen(entries: Sequence[Entry], names: Sequence[str] | None) -> list[Entry]:
    for entry in entries:
        registry.find("eviction", entry.policy)
    return [entry for entry in entries if names is None or entry.name in names]


def _reasons(options: argparse.Namespace, revision: str) -> list[str]:
    """Why no row of this run is valid."""
    unnamed = revision.endswith("+") or not revision
    return ["--quick: two capacities"] * options.quick + ["the checkout has changes that no revision names"] * unnamed


def _machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def _command(options: argparse.Namespace) -> str:
    names = [] if options.publish else ["--traces", *(json.dumps(name) for name in options.traces)]
    names += ["--policies ..."] * bool(options.policies)
    return " ".join(["python -m experiments.leaderboard", *["--quick"] * options.quick, *names])


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f}"


def _interval(row: dict[str, Any], value: str) -> str:
    return f"{_percent(row[value])} [{_percent(row['low'])}, {_percent(row['high'])}]"


def _page(rows: Sequence[dict[str, Any]], record: dict[str, Any]) -> str:
    traces = rows[0]["traces"]
    header = ["", "entry", "score, %", *(f"{found['trace']}, %" for found in traces), "worst, points", "kit", "valid"]
    body = [
        [place if row["ranked"] else "-", row["name"], _interval(row, "score"),
         *(_interval(found, "closed") for found in row["traces"]), f"{row['worst_points']:+.2f}",
         "pass" if row["kit"] else "FAIL", "yes" if row["valid"] else "no: " + "; ".join(row["against"])]
        for place, row in enumerate(rows, start=1)
    ]  # fmt: skip
    pins = table(
        ["trace", "SHA-256", "tokens a block", "interval by", "capacities, blocks", "gap, points"],
        [[f["trace"], f["sha256"], f["block_tokens"], f["unit"], ", ".join(map(str, f["capacities"])),
          ", ".join(f"{gap:.2f}" for gap in f["gap_points"])] for f in traces],
    )  # fmt: skip
    sources = table(["entry", "source"], [[row["name"], row["source"]] for row in rows if row["source"]])
    revision, contract = rows[0]["revision"] or "unknown", rows[0]["contract"]
    made = f"Revision {revision}, contract {contract}, {record['date']}, {record['machine']}."
    command = f"Command: `{record['command']}`."
    if record["left_out"]:
        command += f" Installed and not replayed this time: {', '.join(record['left_out'])}."
    return f"{_INTRODUCTION}\n{table(header, body)}\n\n{made} {command}\n\n{pins}\n\n{sources}\n\n{_HOW_TO_ENTER}"


def _picture(rows: Sequence[dict[str, Any]]) -> Figure:
    """Each ranked entry's score with its interval, and its share on each trace; cut at -100 %."""
    from framework_report.figures.style import COLOURS, MARKERS, new_axes, new_figure

    shown = [row for row in rows if row["ranked"]]
    figure = new_figure(8.0, 1.6 + 0.24 * len(shown))
    axes, places = new_axes(figure, grid="both"), range(len(shown))
    for index, found in enumerate(shown[0]["traces"] if shown else ()):
        shares = [100 * max(-1.0, row["traces"][index]["closed"]) for row in shown]
        axes.plot(shares, places, MARKERS[index + 1], color=COLOURS[index + 1], markersize=5, label=found["trace"])
    for place, row in enumerate(shown):
        low, high = (100 * min(1.0, max(-1.0, row[end])) for end in ("low", "high"))
        axes.plot([low, high], [place, place], color="#222222", linewidth=1.2)
    axes.plot([100 * row["score"] for row in shown], places, "|", color="#222222", markersize=9, markeredgewidth=2,
              label="score, with its interval over traces")  # fmt: skip
    axes.set_yticks(list(places), [row["name"] for row in shown])
    axes.invert_yaxis()
    axes.axvline(0, color="#222222", linewidth=0.8)
    axes.set_xlabel("area between LRU (0) and the pinned optimum (100) that is closed, %; cut at -100")
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    return figure


if __name__ == "__main__":
    sys.exit(main())
