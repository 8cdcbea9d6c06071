"""What a reader sees of the rows: tables and pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments.shared import columns, table
from experiments.tiers.cells import LINKS, RULES, SHAPES, SIZES, WORTH, WORTH_TOKENS, Rows
from framework.replay.roofline import Roofline
from framework_tiers.optimum import value

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def size_table(rows: Rows) -> str:
    header = ["trace", "pool, blocks", "alone", *(f"host {host:,}" for host in SIZES)]
    body = []
    for trace in dict.fromkeys(row["trace"] for row in rows):
        for pool in SIZES:
            matching = [row for row in rows if (row["trace"], row["pool_blocks"]) == (trace, pool)]
            shares = [f"{100 * row['hit_blocks'] / row['prompt_blocks']:.1f} %" for row in matching]
            body.append([trace, f"{pool:,}", *shares])
    return table(header, body)


def draw_hit_rates(rows: Rows) -> Figure:
    """Hit rate over the host tier's capacity, a line a rule."""
    from framework_report.figures import curve

    references = rows[0]["prompt_blocks"]
    lines = []
    for rule in dict.fromkeys(row["rule"] for row in rows):
        points = [row for row in rows if row["rule"] == rule]
        hits = [100 * (row["pool_hit_blocks"] + row["host_hit_blocks"]) / references for row in points]
        lines.append(curve.Line(label=rule, x=[row["host_blocks"] for row in points], y=hits))
    best = [row for row in rows if row["rule"] == rows[0]["rule"]]
    bound = [100 * (row["best_pool_hit_blocks"] + row["best_host_hit_blocks"]) / references for row in best]
    lines.append(curve.Line(label="optimum", x=[row["host_blocks"] for row in best], y=bound, reference=True))
    return curve.draw(lines, x_label="host tier, blocks of 512 tokens", y_label="hit rate, % of blocks")


def draw_writes(rows: Rows) -> Figure:
    """Bytes written below against hits saved, along the host tier's capacity."""
    from framework_report.figures import curve

    block = Roofline(shape=SHAPES[0]).kv_bytes_per_token * 512
    lines = []
    for rule in dict.fromkeys(row["rule"] for row in rows):
        points = sorted((row["host_hit_blocks"], row["stored_blocks"]) for row in rows if row["rule"] == rule)
        stored = [count * block / 1e12 for _, count in points]
        lines.append(curve.Line(label=rule, x=[hits for hits, _ in points], y=stored))
    return curve.draw(lines, x_label="blocks hit in the host tier", y_label="written to it, TB", measured_x=True)


def rule_table(rows: Rows) -> str:
    return columns(rows, {
        "trace": "{trace}", "pool, blocks": "{pool_blocks:,}", "host, blocks": "{host_blocks:,}", "rule": "{rule}",
        "pool hits": "{pool_hit_blocks:,}", "host hits": "{host_hit_blocks:,}", "stored": "{stored_blocks:,}",
        "stored for each host hit": lambda row: f"{_price(row):.1f}" if row["host_hit_blocks"] else "no hit",
        "never read": lambda row: f"{100 * row['unread_blocks'] / max(1, row['stored_blocks']):.0f} %",
        "best pool hits": "{best_pool_hit_blocks:,}", "best host hits": "{best_host_hit_blocks:,}",
        "share of the best value":
            lambda row: f"{100 * row['share_of_best_min']:.1f} to {100 * row['share_of_best_max']:.1f} %",
    })  # fmt: skip


def value_table(rows: Rows, loads: Rows) -> str:
    """Value of all hits over the optimum's, a pool hit being worth 1 and a host hit what its link leaves of that."""
    load = next(row for row in loads if (row["shape"], row["tokens"]) == (SHAPES[0], WORTH_TOKENS))
    worth = {link: max(0.0, 1 - load[link] / load["prefill_s"]) for link in WORTH}
    chosen = [row for row in rows if row["host_blocks"] in (20_000, 8_000)]
    return columns(chosen, {
        "trace": "{trace}", "pool, blocks": "{pool_blocks:,}", "host, blocks": "{host_blocks:,}", "rule": "{rule}",
        **{f"{link} ({weight:.2f})": lambda row, weight=weight: f"{100 * _share(row, weight):.1f} %"
           for link, weight in worth.items()},
    })  # fmt: skip


def _share(row: dict[str, Any], weight: float) -> float:
    """Share of the best value, where a pool hit is worth 1 and a host hit `weight`."""
    hits, best = ((row[f"{whose}pool_hit_blocks"], row[f"{whose}host_hit_blocks"]) for whose in ("", "best_"))
    return value(hits, (1.0, weight)) / value(best, (1.0, weight))


def _price(row: dict[str, Any]) -> float:
    """Blocks stored for each host hit; NaN where there is none."""
    return row["stored_blocks"] / row["host_hit_blocks"] if row["host_hit_blocks"] else float("nan")


def load_table(rows: Rows) -> str:
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


def draw_rules(rows: Rows) -> Figure:
    from matplotlib.ticker import LogLocator, NullFormatter

    from framework_report.figures.style import new_axes, new_figure, series_style

    figure = new_figure(9.0, 3.9)
    left, right = figure.subfigures(1, 2)
    axes, more = new_axes(left), new_axes(right)
    for index, rule in enumerate(RULES):
        points = [row for row in rows if row["rule"] == rule]
        hosts, style = [row["host_blocks"] for row in points], series_style(index)
        axes.plot(hosts, [100 * row["hit_rate_tokens"] for row in points], label=rule, **style)
        more.plot(hosts, [_price(row) for row in points], label=rule, **style)
    hosts = sorted({row["host_blocks"] for row in rows})
    for panel in (axes, more):
        panel.set(xlabel="host tier, blocks of 512 tokens", xscale="log")
        panel.set_xticks(hosts, [f"{host // 1000}k" for host in hosts])
        panel.minorticks_off()
    axes.set_title("both tiers, in tokens", fontsize="medium")
    axes.set_ylabel("hit rate, %")
    more.set_title("blocks stored for each host hit", fontsize="medium")
    more.set(ylabel="blocks", yscale="log")
    more.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    more.yaxis.set_minor_formatter(NullFormatter())
    axes.legend(fontsize="small", loc="lower right")
    return figure
