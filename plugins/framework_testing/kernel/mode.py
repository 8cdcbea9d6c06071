"""mode=kernel: the gate, then the grid. A backend that fails the gate is never timed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from rich.console import Console

from framework.config.config import Config
from framework.engine.executors.checks import default_device, require_backend
from framework.interfaces.mode import OnBegin
from framework.modes.session import Session
from framework.registry.components import build_component
from framework.results.console import Table, new_console, print_table
from framework.results.layout import RESULT
from framework.results.metric import in_scale
from framework.results.reading import read_json
from framework_testing.kernel.cells import for_device
from framework_testing.kernel.grid import Grid
from framework_testing.kernel.plugin import KernelOptions
from framework_workloads.lines import read_jsonl

ROWS, _ROOFLINE, _ROOFLINE_SVG = "kernel.jsonl", "roofline.png", "roofline.svg"
_MOST_REASONS = 6


def kernel(config: Config, asked: KernelOptions, on_begin: OnBegin = lambda path: None) -> dict[str, Any]:
    """Judge and measure `config`'s backend over the grid that was asked for. See api.run.

    The rows, one a cell, are in kernel.jsonl and, not in result.json, under "rows" of what is returned. `status` is
    "ok", or "failed" when the gate or a timed batch was wrong, with `reasons`; what is wrong is not timed.

    Raises:
        BackendUnavailable: no cell of the grid can run here; result.json says so as well.
    """
    device, cache, name = default_device(config.device), config.cache, config.backend.name
    make = partial(build_component, "backend", config.backend.plain(), {"seed": config.seed})
    options = for_device(asked, device, cache.block_size)
    # A backend's first call compiles and tunes, which may take any time.
    with Session(config, on_begin=on_begin, stalls=False) as session:
        session.facts |= {"backend": name, "device": device}
        grid = Grid(make, name, device, options, cache.layout, config.replay.device)
        grid.origin = origin_of(session.begin(device, f"kernel-{name}"))
        result = session.record(lambda: _measure(grid, session), lambda complete: _summary(grid))
    if result["status"] == "unavailable":
        require_backend(make(), grid.cells[0].spec, device)
    return {**result, "rows": grid.rows}


def _measure(grid: Grid, session: Session) -> None:
    """Every cell, written and printed as it is known; then the picture of all."""
    for step, row in enumerate(grid.run()):
        session.run.log(ROWS, row)
        session.log(step, {key: value for key, value in row.items() if isinstance(value, (int, float))})
        if session.settings.progress:
            outcome = (
                f"{row['time_s'] * 1e6:,.1f} us" if row.get("time_s") else "; ".join(row.get("reasons") or ())[:160]
            )
            print(f"{row['cell']}: {row['status']} {outcome}".rstrip(), file=sys.stderr, flush=True)  # noqa: T201
    _plot(grid, session.run.path)


def origin_of(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """What every row carries, so that a row means something on its own."""
    device, libraries = provenance["device"], provenance["libraries"]
    return {
        "device_model": device.get("model") or provenance["cpu"]["model"],
        "num_threads": device.get("torch_threads"),
        "torch": libraries.get("torch"),
        "triton": libraries.get("triton"),
        "date": provenance["started_at"],
    }


def _summary(grid: Grid) -> dict[str, Any]:
    rows, counts = grid.rows, dict(Counter(row["status"] for row in grid.rows))
    summary: dict[str, Any] = {"status": grid.status, "num_cells": len(rows), "cells": counts}
    if grid.reasons:
        summary["reasons"] = grid.reasons
    if grid.ceilings is not None:
        summary["ceilings"] = asdict(grid.ceilings)
    shares = [row["share_of_ceiling"] for row in rows if row.get("share_of_ceiling") is not None]
    if shares:
        summary["share_of_ceiling_max"], summary["share_of_ceiling_min"] = max(shares), min(shares)
    timed = [row for row in rows if row.get("time_s")]
    if timed:
        # Means over the grid's cells, so that runs over one grid can be ranked; rows have each.
        summary["time_s"] = geometric_mean([row["time_s"] for row in timed])
        summary["bandwidth_bytes_per_s"] = geometric_mean([row["gb_per_s"] * 1e9 for row in timed])
    if grid.screened:
        summary["screen"] = [asdict(kernel) for kernel in grid.screened]
    return {**summary, **grid.origin}


def _plot(grid: Grid, folder: Path) -> None:
    from framework_report.figures.style import save
    from framework_testing.kernel import roofline_figure as roofline

    figure = roofline.draw(grid.rows)
    if figure is not None:
        save(figure, folder / _ROOFLINE)
        save(figure, folder / _ROOFLINE_SVG)


def show(folders: Sequence[Path]) -> None:
    """Print the rows of kernel runs, backends side by side; of one run also its ceilings and its compiled kernels."""
    paths = [folder / ROWS for folder in folders]
    console = new_console(default=100, most=100)
    if rows := [row for path in paths if path.exists() for row in read_jsonl(path)]:
        print_rows(rows, console)
    if len(folders) != 1:
        return
    result = read_json(folders[0] / RESULT) or {}
    if ceilings := result.get("ceilings"):
        console.print(
            f"ceilings, measured in this run: {in_scale(ceilings['bytes_per_s'], 'bytes/s')} ({ceilings['bytes_by']}), "
            f"{in_scale(ceilings['flops_per_s'], 'FLOP/s')} ({ceilings['flops_by']})",
            style="dim",
        )
    if result.get("screen"):
        _print_screen(result["screen"], console)
    console.print(f"results in {folders[0]}", soft_wrap=True)


def print_rows(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """One table a shape, the rows of a cell together; then what was not measured, and why."""
    for shape in dict.fromkeys(map(_shape, rows)):
        chosen = [row for row in rows if _shape(row) == shape]
        first, cells = chosen[0], [*dict.fromkeys(map(_cell, chosen))]
        chosen.sort(key=lambda row: cells.index(_cell(row)))
        console.print(f"{shape}, on {first['device_model']}, torch {first['torch']}, {first['date'][:10]}")
        header = ["backend", "cell", "status", "time", "B/s", "FLOP/s", "of ceiling", "x dense"]
        table = Table("", header, [[row["backend"], _cell(row), *_numbers(row)] for row in chosen])
        print_table(console, table, most_rows=len(rows))
    targets = ", ".join(dict.fromkeys(row["target"] for row in rows if row["status"] == "modelled"))
    if targets:
        console.print(f"modelled: no time was taken; the least that the ceilings of {targets} allow", style="dim")
    refused = ((f"{row['backend']} {row['status']}", reason) for row in rows for reason in row.get("reasons") or ())
    reasons = [*dict.fromkeys(refused)]
    for subject, reason in reasons[:_MOST_REASONS]:
        console.print(f"{subject}: {reason}", style="red" if subject.endswith("failed") else "dim")
    if len(reasons) > _MOST_REASONS:
        console.print(f"and {len(reasons) - _MOST_REASONS} more, in {ROWS}", style="dim")


def _shape(row: Mapping[str, Any]) -> str:
    stored = "" if row["kv_dtype"] == row["dtype"] else f" over {row['kv_dtype']}"
    return f"heads {row['heads']} {row['dtype']}{stored}, blocks of {row['block_size']} {row['layout']}"


def _cell(row: Mapping[str, Any]) -> str:
    ragged = " ragged" if row["lengths"] == "ragged" else ""
    return f"{row['work']} {row['batch']} x {row['context']}{ragged}"


def _numbers(row: Mapping[str, Any]) -> list[str]:
    if row["status"] == "modelled":
        return ["modelled", f">= {in_scale(row['floor_s'], 's')}", "-", "-", "-", "-"]
    if row["status"] != "ok":
        return [str(row["status"]), "-", "-", "-", "-", "-"]
    dense = row.get("speed_vs_dense_sdpa")
    return [
        "measured",
        in_scale(row["time_s"], "s"),
        in_scale(row["gb_per_s"] * 1e9, "bytes/s").removesuffix("B/s"),
        in_scale(row["tflop_per_s"] * 1e12, "FLOP/s").removesuffix("FLOP/s"),
        f"{100 * row['share_of_ceiling']:.0f} % {row['bound']}",
        "-" if dense is None else f"{dense:.2f}",
    ]


def _print_screen(screen: Sequence[Mapping[str, Any]], console: Console) -> None:
    keys = ("registers", "spills", "stack_bytes", "shared_bytes", "matrix_instructions", "async_loads")
    header = ["compiled ahead of time", "registers", "spills", "stack B", "shared B", "matrix", "async loads"]
    rows = [[kernel["name"], *(str(kernel[key]) for key in keys)] for kernel in screen]
    print_table(console, Table("", header, rows))
    console.print("sources: " + "; ".join(dict.fromkeys(kernel["source"] for kernel in screen)), style="dim")
