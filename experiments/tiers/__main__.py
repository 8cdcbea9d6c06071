"""A second tier below the pool: what each published rule hits, what it writes for it, and what that does to TTFT."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.shared import (
    AGENTIC,
    CONVERSATION,
    digest,
    kept,
    parse,
    publish,
    save,
    table,
    trace_path,
    write_provenance,
    write_rows,
)
from experiments.tiers.timed import LINKS as TIMED_LINKS
from experiments.tiers.timed import timed_cells, timed_row, timed_table
from framework.registry.components import build_component
from framework.replay.optimum import optimum_hits
from framework.replay.paths import RequestPaths, build_paths
from framework.replay.reference import replay
from framework.replay.roofline import Roofline
from framework.replay.stack import lru_curve, reuse_distances
from framework.replay.tiers import ReplayTiers, TierSpec
from framework.workload.trace_file import TraceFile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POOL = 10_000
HOSTS = (5_000, 10_000, 20_000, 40_000)
AGENTIC_CELLS, AGENTIC_REQUESTS = (1_000, 2_000), 800
"""(pool, host tier) of the agentic trace, and how many of its requests are replayed: each has 280 blocks."""
SIZES = (1_000, 2_000, 5_000, 10_000, 20_000, 40_000)
RULES: dict[str, dict[str, Any]] = {
    "on_eviction": {"name": "on_eviction"},
    "on_eviction, copy stays": {"name": "on_eviction", "exclusive": False},
    "write_through": {"name": "write_through"},
    "on_second_hit": {"name": "on_second_hit"},
}
LINKS = {"PCIe 5.0 x16, 50 GB/s": 50e9, "PCIe 4.0 x16, 25 GB/s": 25e9, "NVMe, 7 GB/s": 7e9, "NVMe, 3.5 GB/s": 3.5e9}
"""Bytes/s assumed of each link; no hardware was measured."""
SHAPES = ("llama-3.1-8b", "llama-3.1-70b")
CONTEXTS = (512, 2_048, 8_192, 32_768, 131_072)
OPERATION_S = 100e-6  # a load's fixed time: SGLang's simulated storage

Rows = list[dict[str, Any]]
Cell = tuple[str, str, int, int]
"""(trace, rule, blocks of the pool, blocks of the host tier)."""
TRACES = {"conversation": CONVERSATION, "agentic": AGENTIC}


def main(arguments: Sequence[str] | None = None) -> int:
    """All cells: rows, tables, plot, provenance."""
    options = parse(__doc__, "tiers", arguments)
    rules = ("on_eviction", "on_second_hit")
    cells = [("conversation", rule, 1_000, 2_000) for rule in rules] if options.quick else _cells()
    traces = sorted({cell[0] for cell in cells}, reverse=True)
    with ProcessPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(functools.partial(_kept, options.out, _row), cells))
        timed = list(pool.map(functools.partial(_kept, options.out, timed_row), timed_cells(quick=options.quick)))
        sizes = [row for rows_ in pool.map(_sizes, traces) for row in rows_]
    loads = _load_or_recompute()
    found = {"rules": rows, "sizes": sizes, "timed": timed, "load_or_recompute": loads}
    for name, own in found.items():
        write_rows(options.out / f"{name}.csv", own)
    assumed = {"links_bytes_per_s": LINKS, "timed_links_bytes_per_s": TIMED_LINKS, "operation_s": OPERATION_S}
    write_provenance(options, [trace_path(TRACES[trace]) for trace in traces], assumed=assumed)
    tables = {"rules": _rules(rows), "sizes": _size_table(sizes), "timed": timed_table(timed)}
    publish(options, {**tables, "load-or-recompute": _loads(loads)})
    save(_plot([row for row in rows if row["trace"] == "conversation"]), options, "rules")
    save(_capacities(rows), options, "hit_rate_over_host")
    save(_price_of_hits(rows), options, "bytes_against_hits")
    return 0


def _cells() -> list[Cell]:
    conversation = [("conversation", rule, POOL, host) for host in HOSTS for rule in RULES]
    return [*conversation, *(("agentic", rule, *AGENTIC_CELLS) for rule in RULES)]


@functools.cache
def _paths(trace: str) -> RequestPaths:
    """A trace in blocks of 512 tokens, once a process."""
    requests = iter(TraceFile(path=trace_path(TRACES[trace])).open(512))
    return build_paths(itertools.islice(requests, AGENTIC_REQUESTS) if trace == "agentic" else requests)


def _kept(out: Path, make: Callable[[Any], dict[str, Any]], cell: tuple[Any, ...]) -> dict[str, Any]:
    """The row of a cell, kept from an earlier run where cell, code and trace are the same."""
    code, trace = Path(__file__).parent.glob("*.py"), trace_path(TRACES.get(cell[0], CONVERSATION))
    key = digest(cell, POOL, AGENTIC_REQUESTS, files=[*code, trace])
    name = "-".join(str(part) for part in cell).replace(" ", "_").replace(",", "")
    row = kept(out / "cells" / f"{name}.json", key, lambda: make(cell))
    return {column: value for column, value in row.items() if column != "key"}


def _sizes(trace: str) -> Rows:
    """LRU everywhere and `on_eviction`: by the stack property two tiers hit what one cache of both hits."""
    paths = _paths(trace)
    distances = reuse_distances(paths)
    sums = sorted({pool + host for pool in SIZES for host in (0, *SIZES)})
    lru = dict(zip(sums, lru_curve(paths, sums, distances), strict=True))
    return [
        {"trace": trace, "pool_blocks": pool, "host_blocks": host, "pool_hit_blocks": lru[pool],
         "hit_blocks": lru[pool + host], "prompt_blocks": paths.num_references}
        for pool in SIZES
        for host in (0, *SIZES)
    ]  # fmt: skip


def _row(cell: Cell) -> dict[str, Any]:
    trace, rule, pool, host = cell
    paths = _paths(trace)
    lru = functools.partial(build_component, "eviction", "lru", {})
    below = ReplayTiers(paths, [TierSpec(host, lru())], build_component("tiering", RULES[rule], {}))
    found = replay(paths, lru(), pool, below=below)
    below.lower.check()
    tier = below.lower.tiers[0]
    return {
        "trace": trace,
        "rule": rule,
        "pool_blocks": pool,
        "host_blocks": host,
        "pool_hit_blocks": below.pool_hits,
        "host_hit_blocks": tier.counts.hits,
        "stored_blocks": tier.counts.stored,
        "unread_blocks": tier.num_unread,
        "prompt_blocks": paths.num_references,
        "hit_rate_tokens": found.hit_rate,
        "bound_hit_blocks": int(optimum_hits(paths, pool + host, pinned=False).sum()),
        "pool_bound_hit_blocks": int(optimum_hits(paths, pool, pinned=False).sum()),
    }


def _load_or_recompute() -> Rows:
    """Seconds to load a context over each link, and to prefill it on an H100 at the roofline's 80 %; a model."""
    rows: Rows = []
    for shape in SHAPES:
        devices = 1 if shape == "llama-3.1-8b" else 4
        h100 = Roofline(device="h100", shape=shape, num_devices=devices)
        for tokens in CONTEXTS:
            prefill = h100.prefill_s(0, tokens)
            size = h100.kv_bytes_per_token * tokens
            times = {link: OPERATION_S + size / rate for link, rate in LINKS.items()}
            rows.append(
                {"shape": shape, "h100s": devices, "tokens": tokens, "bytes": size, "prefill_s": prefill, **times}
            )
        even = {link: _break_even(h100, rate) for link, rate in LINKS.items()}
        rows.append({"shape": shape, "h100s": devices, "tokens": 0, "bytes": 0, "prefill_s": 0.0, **even})
    return rows


def _break_even(h100: Roofline, rate: float) -> int | None:
    """Tokens from which on loading a whole context is faster than prefilling it; None: not up to 4 million.

    Below it a few tokens may load faster too: their prefill reads all weights for little work.
    """
    tokens, slower = 1, 0
    while tokens <= 2**22:
        if OPERATION_S + h100.kv_bytes_per_token * tokens / rate >= h100.prefill_s(0, tokens):
            slower = tokens
        tokens += max(1, tokens // 64)
    return None if 2 * slower > 2**22 else slower + 1


# What a reader sees


def _size_table(rows: Rows) -> str:
    header = ["trace", "pool, blocks", "alone", *(f"host {host:,}" for host in SIZES)]
    body = []
    for trace in dict.fromkeys(row["trace"] for row in rows):
        for pool in SIZES:
            own = [row for row in rows if (row["trace"], row["pool_blocks"]) == (trace, pool)]
            shares = [f"{100 * row['hit_blocks'] / row['prompt_blocks']:.1f} %" for row in own]
            body.append([trace, f"{pool:,}", *shares])
    return table(header, body)


def _capacities(rows: Rows) -> Figure:
    """Hit rate over the host tier's capacity, a line a rule."""
    from framework.figures import curve

    own = [row for row in rows if row["trace"] == "conversation"]
    references = own[0]["prompt_blocks"]
    lines = []
    for rule in dict.fromkeys(row["rule"] for row in own):
        points = [row for row in own if row["rule"] == rule]
        hits = [100 * (row["pool_hit_blocks"] + row["host_hit_blocks"]) / references for row in points]
        lines.append(curve.Line(label=rule, x=[row["host_blocks"] for row in points], y=hits))
    best = [row for row in own if row["rule"] == own[0]["rule"]]
    bound = [100 * row["bound_hit_blocks"] / references for row in best]
    lines.append(curve.Line(label="bound", x=[row["host_blocks"] for row in best], y=bound, reference=True))
    return curve.draw(lines, x_label="host tier, blocks of 512 tokens", y_label="hit rate, % of blocks")


def _price_of_hits(rows: Rows) -> Figure:
    """Bytes written below against hits saved, along the host tier's capacity."""
    from framework.figures import tradeoff
    from framework.figures.curve import Line

    own = [row for row in rows if row["trace"] == "conversation"]
    block = Roofline(shape=SHAPES[0]).kv_bytes_per_token * 512
    lines = []
    for rule in dict.fromkeys(row["rule"] for row in own):
        points = sorted((row["host_hit_blocks"], row["stored_blocks"]) for row in own if row["rule"] == rule)
        stored = [count * block / 1e12 for _, count in points]
        lines.append(Line(label=rule, x=[hits for hits, _ in points], y=stored))
    return tradeoff.draw(lines, x_label="blocks hit in the host tier", y_label="written to it, TB")


def _rules(rows: Rows) -> str:
    header = [
        "trace",
        "rule",
        "host, blocks",
        "pool hits",
        "host hits",
        "stored",
        "stored for each host hit",
        "never read",
        "bound",
    ]
    return table(
        header,
        [
            [
                row["trace"],
                row["rule"],
                f"{row['host_blocks']:,}",
                f"{row['pool_hit_blocks']:,}",
                f"{row['host_hit_blocks']:,}",
                f"{row['stored_blocks']:,}",
                f"{_price(row):.1f}" if row["host_hit_blocks"] else "no hit",
                f"{100 * row['unread_blocks'] / max(1, row['stored_blocks']):.0f} %",
                f"{row['bound_hit_blocks']:,}",
            ]
            for row in rows
        ],
    )


def _price(row: dict[str, Any]) -> float:
    """Blocks stored for each host hit; NaN where there is none."""
    return row["stored_blocks"] / row["host_hit_blocks"] if row["host_hit_blocks"] else float("nan")


def _loads(rows: Rows) -> str:
    header = ["model", "H100s", "tokens", "prefill, ms", *(f"{link}, ms" for link in LINKS)]
    return table(
        header,
        [
            [
                row["shape"], row["h100s"], f"{row['tokens']:,}", f"{1e3 * row['prefill_s']:,.1f}",
                *(f"{1e3 * row[link]:,.1f}" for link in LINKS),
            ]
            if row["tokens"]
            else [
                row["shape"], row["h100s"], "faster from", "",
                *(_from(row[link]) for link in LINKS),
            ]
            for row in rows
        ],
    )  # fmt: skip


def _from(tokens: int | None) -> str:
    """A break-even in words."""
    return "never" if tokens is None else "always" if tokens == 1 else f"{tokens:,} tokens"


def _plot(rows: Rows) -> Figure:
    from framework.figures.style import new_axes, new_figure, series_style

    figure = new_figure(9.0, 3.9)
    left, right = figure.subfigures(1, 2)
    axes, more = new_axes(left), new_axes(right)
    for index, rule in enumerate(RULES):
        own = [row for row in rows if row["rule"] == rule]
        hosts, style = [row["host_blocks"] for row in own], series_style(index)
        axes.plot(hosts, [100 * row["hit_rate_tokens"] for row in own], label=rule, **style)
        more.plot(hosts, [_price(row) for row in own], label=rule, **style)
    axes.set_title("both tiers, in tokens", fontsize="medium")
    axes.set(xlabel="host tier, blocks of 512 tokens", ylabel="hit rate, %")
    more.set_title("blocks stored for each host hit", fontsize="medium")
    more.set(xlabel="host tier, blocks of 512 tokens", ylabel="blocks", ylim=(0, None))
    axes.legend(fontsize="small", loc="lower right")
    return figure


if __name__ == "__main__":
    sys.exit(main())
