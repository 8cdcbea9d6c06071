"""PagedAttention's memory claims on public lengths: waste of reservations (Fig. 2), savings of sharing (Fig. 15)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.pagedattention.sharing import saving, usage
from experiments.pagedattention.utilisation import CONTIGUOUS, PAGED, Ints, Reservation, closed_form, saturated
from experiments.shared import ARXIV, AZURE, columns, finish, kept, panels, parse, save, table, trace_path
from framework.workload import build
from framework_workloads.trace import open_trace
from framework_workloads.trace.own_format import as_trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POOL_SLOTS = 16_384
LENGTHS: dict[str, tuple[str, int, bool]] = {
    "Azure conv, p + o <= 2048": (AZURE, 2048, True),
    "Azure conv, all": (AZURE, 16_384, False),
    "arXiv summarisation, all": (ARXIV, 4096, False),
}
"""Name -> (trace, longest sequence L, leave out longer requests)."""
IN_ENGINE = {"Azure conv, p + o <= 2048": 16_528, "arXiv summarisation, all": 4_000}
"""Requests of each that go through the engine: all of Azure's set, and the first of arXiv's 28,257, each of which takes
three times as long: all of them would be twenty CPU minutes more."""
PAPER_FIG_2 = {"max": 0.204, "pow2": 0.268, "oracle": 0.382, "paged 16": 0.963}
PAPER_MEANS = {"Alpaca's means": (19.31, 58.45), "ShareGPT's means": (161.31, 337.99)}
"""Mean prompt and output tokens of the paper's two data sets; we draw log-normal lengths around them."""
PAPER_FIG_15 = {
    ("Alpaca's means", "samples"): "6.1 to 9.8",
    ("Alpaca's means", "beams"): "37.6 to 55.2",
    ("ShareGPT's means", "samples"): "16.2 to 30.5",
    ("ShareGPT's means", "beams"): "44.3 to 66.3",
}
"""Per cent saved at widths 2 to 6, as the paper gives them."""
WIDTHS = (2, 4, 6)
SHARING_REQUESTS = {"samples": 500, "beams": 60}
"""Requests of each set: a beam search forks at every token, which takes twenty times as long as sampling."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Both parts: rows, tables, plots, provenance."""
    options = parse(__doc__, "pagedattention", arguments)
    traces = [trace_path(AZURE), trace_path(ARXIV)]
    with ProcessPoolExecutor(options.jobs) as pool:
        closed = closed_rows()
        engine_cells = [(options.out, *cell) for cell in _engine_cells(options.quick)]
        sharing_cells = [(options.out, *cell) for cell in _sharing_cells(options.quick)]
        engine = list(pool.map(_engine_row, engine_cells))
        sharing = list(pool.map(_sharing_row, sharing_cells))
    rows = {"utilisation_closed_form": closed, "utilisation_engine": engine, "sharing": sharing}
    finish(options, rows, _tables(closed, engine, sharing), traces, pool_slots=POOL_SLOTS, seed=0)
    save(_plot_engine(engine), options, "utilisation")
    x, shown = ("width", 1, "samples or beams a request"), ("saving_cow", 0.01, "blocks saved by sharing, %")
    widths = sorted({row["width"] for row in sharing})
    save(panels(sharing, "lengths", x, shown, across="kind", ylim=(0, 100), xticks=widths), options, "sharing")
    return 0


# Lengths


def lengths(name: str) -> tuple[Ints, Ints, int]:
    """(prompts, outputs, longest sequence) of a set in LENGTHS; an output of 0 counts as 1."""
    file, limit, cut = LENGTHS[name]
    pairs = np.array([(r.input_tokens, max(1, r.output_tokens)) for r in open_trace(trace_path(file))], dtype=np.int64)
    if cut:
        pairs = pairs[pairs.sum(axis=1) <= limit]
    assert pairs.sum(axis=1).max() <= limit, f"{name}: a request passes {limit} tokens"
    return pairs[:, 0], pairs[:, 1], limit


def sharing_lengths(name: str, count: int) -> list[tuple[int, int]]:
    """(prompt, output) lengths for the sharing part: a trace's first requests, or drawn around the paper's means."""
    if name in PAPER_MEANS:
        prompt, output = PAPER_MEANS[name]
        options = {"num_requests": count, "prompt_tokens": round(prompt), "output_tokens": round(output), "spread": 1.0}
        drawn = as_trace(build("forks", options), 16)
        return [(min(r.input_tokens, 2048), min(r.output_tokens, 2048)) for r in drawn]
    prompts, outputs, _ = lengths(name)
    return list(zip(prompts[:count].tolist(), outputs[:count].tolist(), strict=True))


# Rows


def closed_rows() -> list[dict[str, Any]]:
    """The closed form of every set and reservation."""
    rows = []
    for name in LENGTHS:
        prompts, outputs, limit = lengths(name)
        for how in (*CONTIGUOUS, *PAGED):
            rows.append(
                {
                    "lengths": name,
                    "requests": len(prompts),
                    "longest_tokens": limit,
                    "reservation": how.label,
                    "utilisation": closed_form(prompts, outputs, limit, how),
                }
            )
    return rows


def _engine_cells(quick: bool) -> list[tuple[str, Reservation, int]]:
    if quick:
        return [("Azure conv, p + o <= 2048", how, 60) for how in (CONTIGUOUS[0], PAGED[1])]
    return [(name, how, count) for name, count in IN_ENGINE.items() for how in (*CONTIGUOUS, *PAGED)]


def _engine_row(cell: tuple[Path, str, Reservation, int]) -> dict[str, Any]:
    out, *what = cell
    return _kept(out, what, lambda: engine_row(*cell[1:]))


def _kept(out: Path, what: list[Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A row of an earlier run, as long as the lengths and this experiment's code are what they were."""
    files = [trace_path(AZURE), trace_path(ARXIV), *sorted(Path(__file__).parent.glob("[a-z]*.py"))]
    return kept(out / "cells", [*(str(getattr(word, "label", word)) for word in what), POOL_SLOTS], make, files)


def engine_row(name: str, how: Reservation, count: int) -> dict[str, Any]:
    """The engine's shares of one set under one reservation."""
    prompts, outputs, limit = lengths(name)
    prompts, outputs = prompts[:count], outputs[:count]
    found = saturated(prompts, outputs, limit, how, POOL_SLOTS)
    closed = closed_form(prompts, outputs, limit, how)
    return {"lengths": name, "requests": count, "reservation": how.label, "closed_form": closed, **asdict(found)}


def _sharing_cells(quick: bool) -> list[tuple[str, str, int, int]]:
    if quick:
        return [("Alpaca's means", "samples", 2, 12), ("Alpaca's means", "beams", 2, 12)]
    names = (*PAPER_MEANS, "Azure conv, p + o <= 2048", "arXiv summarisation, all")
    return [
        (name, kind, width, count) for name in names for kind, count in SHARING_REQUESTS.items() for width in WIDTHS
    ]


def _sharing_row(cell: tuple[Path, str, str, int, int]) -> dict[str, Any]:
    out, *what = cell
    return _kept(out, what, lambda: sharing_row(*cell[1:]))


def sharing_row(name: str, kind: str, width: int, count: int) -> dict[str, Any]:
    """What one width of one kind saves on one set."""
    pairs = sharing_lengths(name, count)
    naive, cow, both = (
        usage(pairs, width, beam=kind == "beams", allocator=allocator) for allocator in ("naive", "cow", "prefix_cow")
    )
    return {
        "lengths": name,
        "kind": kind,
        "width": width,
        "requests": len(pairs),
        "mean_prompt_tokens": float(np.mean([prompt for prompt, _ in pairs])),
        "mean_output_tokens": float(np.mean([output for _, output in pairs])),
        "steps": naive.num_steps,
        "block_steps_naive": naive.block_steps,
        "block_steps_cow": cow.block_steps,
        "block_steps_prefix_cow": both.block_steps,
        "copied_blocks_naive": naive.copied_blocks,
        "copied_blocks_cow": cow.copied_blocks,
        "saving_cow": saving(naive, cow),
        "saving_prefix_cow": saving(naive, both),
    }


# What a reader sees


def _tables(
    closed: list[dict[str, Any]], engine: list[dict[str, Any]], sharing: list[dict[str, Any]]
) -> dict[str, str]:
    kinds = [how.label for how in (*CONTIGUOUS, *PAGED)]
    by_set: dict[str, list[dict[str, Any]]] = {}
    for row in closed:
        by_set.setdefault(f"{row['lengths']} ({row['requests']:,} requests), L = {row['longest_tokens']}", []).append(
            row
        )
    closed_table = table(
        ["lengths", *kinds], [[name, *(f"{row['utilisation']:.4f}" for row in rows)] for name, rows in by_set.items()]
    )
    parts = ("live", "internal", "reserved", "external", "free")
    engine_table = columns(engine, {
        "lengths": "{lengths}", "reservation": "{reservation}", **{part: f"{{{part}:.3f}}" for part in parts},
        "closed form": "{closed_form:.3f}", "rows at most": "{peak_rows}", "preemptions": "{preemptions}",
        "paper, Fig. 2": lambda row: PAPER_FIG_2.get(row["reservation"], ""),
    })  # fmt: skip
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in sharing:
        groups.setdefault((row["lengths"], row["kind"]), []).append(row)
    widths = [row["width"] for row in next(iter(groups.values()))]
    sharing_table = table(
        ["lengths", "mean p / o", "kind", *(f"width {width}" for width in widths), "paper, 2 to 6"],
        [
            [
                name, f"{rows[0]['mean_prompt_tokens']:.0f} / {rows[0]['mean_output_tokens']:.0f}", kind,
                *(f"{100 * row['saving_cow']:.1f} %" for row in rows), PAPER_FIG_15.get((name, kind), ""),
            ]
            for (name, kind), rows in groups.items()
        ],
    )  # fmt: skip
    return {"closed-form": closed_table, "engine": engine_table, "sharing": sharing_table}


def _plot_engine(rows: list[dict[str, Any]]) -> Figure:
    from framework_report.figures.style import COLOURS, HATCHES, new_axes, new_figure

    names = list(dict.fromkeys(row["lengths"] for row in rows))
    figure = new_figure(9.0, 3.8)
    parts_of = figure.subfigures(1, len(names), squeeze=False)[0]
    parts = ("live", "internal", "reserved", "external", "free")
    for index, name in enumerate(names):
        axes = new_axes(parts_of[index])
        mine = [row for row in rows if row["lengths"] == name]
        labels, base = [row["reservation"] for row in mine], np.zeros(len(mine))
        for part, colour, hatch in zip(parts, COLOURS, HATCHES, strict=False):
            values = np.array([row[part] for row in mine])
            axes.bar(labels, values, bottom=base, color=colour, hatch=hatch, edgecolor="white", width=0.75,
                     label=part if index == 0 else None)  # fmt: skip
            base = base + values
        axes.set_title(f"{name}, {mine[0]['requests']:,} requests", fontsize="medium")
        axes.set_ylabel("share of the pool")
        axes.set_ylim(0, 1)
        axes.tick_params(axis="x", rotation=60)
    figure.legend(loc="outside lower center", ncols=len(parts), fontsize="small")
    return figure


if __name__ == "__main__":
    sys.exit(main())
