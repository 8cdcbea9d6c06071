"""`python -m framework curve TRACE`: hit rate over capacity for many eviction policies."""

from __future__ import annotations

import argparse
import csv
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from framework.cli.exit import complain
from framework.cli.options import require_in_bounds
from framework.cli.progress import reference_progress
from framework.errors import ConfigError
from framework.files.atomic import beside, require_new, write_json
from framework.interfaces.command import Command
from framework_workloads.trace import formats, open_trace

if TYPE_CHECKING:
    from framework_cache_only.curves import CurvePoint
    from framework_cache_only.paths import RequestPaths

_POLICIES = "lru,fifo,lfu,s3fifo,arc,optimum"
_HEAD = "hit rate, %"
_CAPACITIES = "0.5%,1%,2%,5%,10%,20%,50%,100%"


class Curve(Command):
    """Hit rate over capacity for many eviction policies."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", metavar="TRACE", help="plain, .gz or .zst")
        parser.add_argument("--format", default="auto", metavar="NAME", help=f"auto, {', '.join(formats())}")
        parser.add_argument("--block-tokens", type=int, metavar="N", help="tokens a block")
        parser.add_argument("--on-error", default="raise", choices=["raise", "skip"], help="what a bad line does")
        parser.add_argument("--limit", type=int, metavar="N", help="only the first N requests")
        parser.add_argument("--policies", default=_POLICIES, help=f"comma-separated; default {_POLICIES}")
        parser.add_argument(
            "--capacities", default=_CAPACITIES,
            help="comma-separated: blocks (10000), bytes (40GiB; needs --shape) or share of the distinct blocks (25%%)",
        )  # fmt: skip
        parser.add_argument("--shape", help="model shape that gives a block's bytes, such as llama-3.1-8b")
        parser.add_argument("--dtype", default="bfloat16", help="of K and V, with --shape")
        parser.add_argument("--full-blocks-only", action="store_true", help="a partial last block is never cached")
        parser.add_argument("--leaf-first", action="store_true", help="evict only blocks without resident children")
        parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--csv", metavar="FILE")
        parser.add_argument("--json", metavar="FILE", help="- for stdout alone")
        parser.add_argument("--plot", metavar="FILE", help=".pdf, .svg or .png")
        parser.add_argument("--force", action="store_true", help="replace files that exist already")

    def run(self, options: argparse.Namespace) -> int:
        _run(options)
        return 0


def _run(options: argparse.Namespace) -> None:
    from framework_cache_only.curves import hit_curves
    from framework_cache_only.paths import build_paths
    from framework_report.figures.style import require_format

    require_in_bounds(options, "limit", "block_tokens", "jobs")
    if options.plot is not None:
        require_format(Path(options.plot))
    require_new(options.csv, options.plot, options.json, inputs=[options.file], force=options.force)
    trace = open_trace(
        options.file, format=options.format, block_tokens=options.block_tokens, on_error=options.on_error
    )
    if trace.block_tokens == 0:
        next(iter(trace))  # a trace without requests is that, whatever its format
        raise ConfigError(f"{trace.path} has lengths only: no block is ever shared, every hit rate is 0")
    paths = build_paths(islice(trace, options.limit), full_blocks_only=options.full_blocks_only)
    name = trace.path.name if options.limit is None else f"{trace.path.name}, first {paths.num_requests:,} requests"
    capacities = _capacities(options, paths)
    policies = list(dict.fromkeys(name.strip() for name in options.policies.split(",") if name.strip()))
    if not policies:
        raise ConfigError("--policies names none")
    with reference_progress(paths.num_references * len(capacities) * len(policies)) as progress:
        points = hit_curves(
            paths, {name: name for name in policies}, capacities,
            jobs=options.jobs, seed=options.seed, leaf_first=options.leaf_first, progress=progress,
        )  # fmt: skip
    if options.csv:
        _write_csv(Path(options.csv), points)
    if options.plot:
        _plot(Path(options.plot), name, points, _ceiling(paths))
    if trace.num_skipped:
        complain(f"{trace.num_skipped:,} lines were left out (--on-error skip); the first: {trace.first_error}")
    _report(options, name, trace.num_skipped, paths, points)


def _capacities(options: argparse.Namespace, paths: RequestPaths) -> list[int]:
    from framework.modes.replay_input import capacity_blocks
    from framework.replay.roofline import Roofline

    bytes_per_block = None
    if options.shape:
        roofline = Roofline(shape=options.shape, kv_dtype=options.dtype)
        bytes_per_block = roofline.kv_bytes_per_token * paths.block_tokens
    texts = [text for text in options.capacities.split(",") if text.strip()]
    if not texts:
        raise ConfigError("--capacities names none")
    return sorted({capacity_blocks(t, working_set=paths.num_nodes, bytes_per_block=bytes_per_block) for t in texts})


def _report(
    options: argparse.Namespace, name: str, skipped: int, paths: RequestPaths, points: Sequence[CurvePoint]
) -> None:
    if options.json:
        data = {
            "trace": Path(options.file).name,
            "num_requests": paths.num_requests,
            "num_skipped_lines": skipped,
            "block_tokens": paths.block_tokens,
            "prompt_blocks": paths.num_references,
            "unique_blocks": paths.num_nodes,
            "infinite_hit_blocks": int(paths.infinite_hits.sum()),
            "infinite_hit_rate": _ceiling(paths),
            "points": [asdict(point) for point in points],
        }
        if options.json == "-":
            print(json.dumps(data, indent=2))  # noqa: T201
            return
        write_json(Path(options.json), data)
    _print_table(name, points, paths)


def _write_csv(path: Path, points: Sequence[CurvePoint]) -> None:
    rows = [asdict(point) for point in points]
    with beside(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _ceiling(paths: RequestPaths) -> float:
    """The hit rate of a cache that never evicts."""
    return float(paths.hit_tokens(paths.infinite_hits).sum() / max(1, paths.input_tokens.sum()))


def _plot(path: Path, name: str, points: Sequence[CurvePoint], ceiling: float) -> None:
    from framework_report.figures import curve
    from framework_report.figures.style import save_plot

    lines = []
    for label in dict.fromkeys(point.policy for point in points):
        mine = sorted((p for p in points if p.policy == label), key=lambda p: p.num_blocks)
        lines.append(curve.Line(label=label, x=[p.num_blocks for p in mine], y=[100 * p.hit_rate for p in mine]))
    xs = sorted({float(point.num_blocks) for point in points})
    lines.append(curve.Line(label="infinite cache", x=xs, y=[100 * ceiling] * len(xs), reference=True))
    figure = curve.draw(lines, x_label="capacity (blocks)", y_label=_HEAD, title=name)
    save_plot(figure, path)


def _print_table(name: str, points: Sequence[CurvePoint], paths: RequestPaths) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    capacities = sorted({point.num_blocks for point in points})
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    table.add_column("policy", no_wrap=True)
    for capacity in capacities:
        table.add_column(f"{capacity:,}", justify="right", no_wrap=True)
    for label in dict.fromkeys(point.policy for point in points):
        rates = {point.num_blocks: point.hit_rate for point in points if point.policy == label}
        table.add_row(label, *(f"{100 * rates[capacity]:.1f}" for capacity in capacities))
    table.add_section()
    table.add_row("infinite cache", *[f"{100 * _ceiling(paths):.1f}"] * len(capacities), style="dim")
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(80, 16 + 9 * len(capacities))
    console.print(
        f"{name}: {_HEAD} of prompt tokens, over capacity in blocks of {paths.block_tokens} tokens", markup=False
    )
    console.print(table)
