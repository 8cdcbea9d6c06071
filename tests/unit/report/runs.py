"""Run directories as a run would leave them, in a few bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml


def make_run(folder: Path, *, result: dict[str, Any] | None, events: bool = False, **settings: Any) -> None:
    folder.mkdir(parents=True)
    config = {
        "mode": "serve",
        "seed": settings.get("seed", 0),
        "cache": {"num_blocks": settings.get("num_blocks", 64), "block_size": 16},
        "eviction": {"name": settings.get("eviction", "lru"), **settings.get("options", {})},
        "workload": settings.get("workload") or {"name": "trace", "path": settings.get("path", "trace.jsonl")},
        "run": {"dir": str(folder), "name": None},
        "tracker": {"name": "none"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    if result is not None:
        (folder / "result.json").write_text(json.dumps({"status": "ok", **result}))
    if events:
        write_inside(folder)


def write_inside(folder: Path) -> None:
    """Metrics and events of a tiny run with a fork and an eviction."""
    kinds = ("live", "internal", "reserved", "external", "cached_idle", "free")
    steps = [
        {"step": s, "time_s": 0.1 * s, **{f"{kind}_slots": 10 * (i + s) for i, kind in enumerate(kinds)}}
        for s in range(1, 6)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    events: list[dict[str, Any]] = [
        {"event": "admit", "step": 1, "request": 0, "sequence": 1, "cached": 0},
        {"event": "step", "step": 1, "sequences": [1], "new": [32]},
        {"event": "admit", "step": 1, "block": 1, "key": "aa"},
        {"event": "admit", "step": 1, "block": 2, "key": "bb"},
        {"event": "fork", "step": 2, "request": 0, "sequence": 2, "parent": 1},
        {"event": "step", "step": 2, "sequences": [1, 2], "new": [1, 1]},
        {"event": "evict", "step": 3, "block": 1, "key": "aa"},
        {"event": "admit", "step": 4, "block": 1, "key": "cc"},
        {"event": "finished", "step": 5, "request": 0, "sequence": 1},
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
