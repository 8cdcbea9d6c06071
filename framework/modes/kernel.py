"""mode=kernel: the gate, then the grid. A backend that fails the gate is never timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from framework import tracking
from framework.config.sections import KernelOptions
from framework.engine.executors.checks import default_device, require_backend
from framework.interfaces.backend import AttentionBackend
from framework.kernel.cells import for_device
from framework.kernel.grid import Grid
from framework.modes.session import provenance
from framework.registry.components import build_component
from framework.registry.options import call_checked, section
from framework.results.layout import KERNEL, ROOFLINE
from framework.tracking import RunDirectory, RunLabel, Trackers


def kernel(config: Mapping[str, Any]) -> dict[str, Any]:
    """Judge and measure `config`'s backend over the grid of its `kernel` section. See build.run.

    The rows, one a cell, are in kernel.jsonl and, not in result.json, under "rows" of what is returned. `status` is
    "ok", or "failed" when the gate or a timed batch was wrong, with `reasons`; what is wrong is not timed.

    Raises:
        BackendUnavailable: no cell of the grid can run here; result.json says so as well.
    """
    settings = section(config, "run")
    options = call_checked("kernel", KernelOptions, section(config, "kernel"))
    device, cache = default_device(config.get("device")), section(config, "cache")
    options = for_device(options, device, int(cache.get("block_size") or 16))
    name = str((config.get("backend") or {}).get("name", "torch"))
    with RunDirectory(Path(settings["dir"]), overwrite=bool(settings.get("overwrite", True))) as run:
        tracker = section(config, "tracker")
        trackers = Trackers(run, tracking.build(tracker.pop("name", "none"), tracker))
        trackers.start(config, _label(config, name))
        origin = provenance(config, device)
        run.write_provenance(origin)
        grid = Grid(_maker(config), name, device, options, str(cache.get("layout") or "NHD"), _origin(origin))
        result = {"status": "failed", "mode": "kernel", "backend": name, "device": device}
        try:
            for step, row in enumerate(grid.run()):
                run.writer(KERNEL).write(row)
                trackers.log(step, {key: value for key, value in row.items() if isinstance(value, (int, float))})
            result |= _summary(grid)
            _plot(grid, run.path)
        finally:
            trackers.finish(result, failed=result["status"] != "ok")
    if result["status"] == "unavailable":
        require_backend(_maker(config)(), grid.first_spec, device)
    return {**result, "rows": grid.rows}


def _maker(config: Mapping[str, Any]) -> Callable[[], AttentionBackend]:
    chosen, seed = config.get("backend") or "torch", int(config.get("seed", 0))

    def make() -> AttentionBackend:
        backend: AttentionBackend = build_component("backend", chosen, {"seed": seed})
        return backend

    return make


def _label(config: Mapping[str, Any], backend: str) -> RunLabel:
    settings = section(config, "run")
    return RunLabel(
        name=str(settings.get("name") or f"kernel-{backend}"),
        group=str(settings.get("group") or ""),
        job_type=f"kernel-{backend}",
    )


def _origin(provenance: Mapping[str, Any]) -> dict[str, Any]:
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
    rows = grid.rows
    counts = {
        status: sum(row["status"] == status for row in rows) for status in dict.fromkeys(r["status"] for r in rows)
    }
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
    from framework.figures.roofline import roofline

    figure = roofline(grid.rows)
    if figure is not None:
        figure.savefig(folder / ROOFLINE, dpi=150)
        figure.savefig(folder / "roofline.svg")
