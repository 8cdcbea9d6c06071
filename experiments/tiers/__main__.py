"""A second tier below the pool on the conversation trace: what each published rule hits, and what it writes for it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.shared import CONVERSATION, parse, publish, save, table, trace_path, write_provenance, write_rows
from framework.engine.executors.base import Step
from framework.registry.components import build_component
from framework.replay.optimum import replay_optimum
from framework.replay.paths import RequestPaths, build_paths
from framework.replay.reference import replay
from framework.replay.roofline import Roofline
from framework.replay.tiers import ReplayTiers, TierSpec
from framework.workload.traces import open_trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POOL = 10_000
HOSTS = (5_000, 10_000, 20_000, 40_000)
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
Cell = tuple[str, int, int]
"""(rule, blocks of the pool, blocks of the host tier)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """All cells: rows, tables, plot, provenance."""
    options = parse(__doc__, "tiers", arguments)
    path = trace_path(CONVERSATION)
    cells = [(rule, 1_000, 2_000) for rule in ("on_eviction", "on_second_hit")] if options.quick else _cells()
    with ProcessPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(_row, cells))
    loads = _load_or_recompute()
    write_rows(options.out / "rules.csv", rows)
    write_rows(options.out / "load_or_recompute.csv", loads)
    write_provenance(options, [path], assumed={"links_bytes_per_s": LINKS, "operation_s": OPERATION_S})
    publish(options, {"rules": _rules(rows), "load-or-recompute": _loads(loads)})
    save(_plot(rows), options, "rules")
    return 0


def _cells() -> list[Cell]:
    return [(rule, POOL, host) for host in HOSTS for rule in RULES]


@functools.cache
def _paths() -> RequestPaths:
    """The conversation trace, once a process."""
    return build_paths(open_trace(trace_path(CONVERSATION)))


def _row(cell: Cell) -> dict[str, Any]:
    rule, pool, host = cell
    paths = _paths()
    lru = functools.partial(build_component, "eviction", "lru", {})
    below = ReplayTiers(paths, [TierSpec(host, lru())], build_component("tiering", RULES[rule], {}))
    found = replay(paths, lru(), pool, below=below)
    below.lower.check()
    tier = below.lower.tiers[0]
    return {
        "rule": rule,
        "pool_blocks": pool,
        "host_blocks": host,
        "pool_hit_blocks": below.pool_hits,
        "host_hit_blocks": tier.counts.hits,
        "stored_blocks": tier.counts.stored,
        "unread_blocks": tier.num_unread,
        "hit_rate_tokens": found.hit_rate,
        "bound_hit_blocks": replay_optimum(paths, pool + host).hit_blocks,
    }


def _load_or_recompute() -> Rows:
    """Seconds to load a context over each link, and to prefill it on an H100 at the roofline's 80 %; a model."""
    rows: Rows = []
    for shape in SHAPES:
        devices = 1 if shape == "llama-3.1-8b" else 4
        h100 = Roofline(device="h100", shape=shape, num_devices=devices)
        for tokens in CONTEXTS:
            step = Step(1, np.arange(1), np.array([tokens]), np.array([0]), 0, np.arange(1))
            prefill = h100(step, None)  # type: ignore[arg-type]  # of a step it reads the step alone
            size = h100.kv_bytes_per_token * tokens
            times = {link: OPERATION_S + size / rate for link, rate in LINKS.items()}
            rows.append(
                {"shape": shape, "h100s": devices, "tokens": tokens, "bytes": size, "prefill_s": prefill, **times}
            )
    return rows


# What a reader sees


def _rules(rows: Rows) -> str:
    header = [
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
            for row in rows
        ],
    )  # fmt: skip


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
