"""mode=kernel: the gate, then the grid; or the links of tiers. A backend that fails the gate is never timed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from framework.config.config import Config
from framework.engine.executors.checks import default_device, require_backend
from framework.kernel.cells import for_device
from framework.kernel.grid import Grid
from framework.modes.session import OnBegin, Session
from framework.registry.components import build_component
from framework.results.layout import KERNEL, ROOFLINE, ROOFLINE_SVG


def kernel(config: Config, on_begin: OnBegin = lambda path: None) -> dict[str, Any]:
    """Judge and measure `config`'s backend over the grid of its `kernel` section. See api.run.

    The rows, one a cell, are in kernel.jsonl and, not in result.json, under "rows" of what is returned. `status` is
    "ok", or "failed" when the gate or a timed batch was wrong, with `reasons`; what is wrong is not timed.

    Raises:
        BackendUnavailable: no cell of the grid can run here; result.json says so as well.
    """
    device, cache, name = default_device(config.device), config.cache, config.backend.name
    make = partial(build_component, "backend", config.backend.plain(), {"seed": config.seed})
    options = for_device(config.kernel, device, cache.block_size)
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
        session.run.log(KERNEL, row)
        session.log(step, {key: value for key, value in row.items() if isinstance(value, (int, float))})
        if session.settings.progress:
            found = f"{row['time_s'] * 1e6:,.1f} us" if row.get("time_s") else "; ".join(row.get("reasons") or ())[:160]
            print(f"{row['cell']}: {row['status']} {found}".rstrip(), file=sys.stderr, flush=True)  # noqa: T201
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
        summary["screen"] = [asdict(found) for found in grid.screened]
    return {**summary, **grid.origin}


def _plot(grid: Grid, folder: Path) -> None:
    from framework.figures import roofline
    from framework.figures.style import save

    figure = roofline.draw(grid.rows)
    if figure is not None:
        save(figure, folder / ROOFLINE)
        save(figure, folder / ROOFLINE_SVG)
