"""Run directories as a run would leave them, in a few bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
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


def make_runs(
    folder: Path, rates: dict[str, float], *, metric: str = "hit_rate", sha256: str = "", **more: Any
) -> None:
    """A run of each policy with this value of the metric, on a trace of this checksum."""
    for eviction, rate in rates.items():
        run = folder / f"{eviction}-{sum(1 for _ in folder.iterdir())}"
        make_run(run, result={metric: rate}, eviction=eviction, **more)
        if sha256:
            add_sha256(run, sha256)


def add_sha256(folder: Path, sha256: str, name: str = "trace.jsonl") -> None:
    """What a run's provenance says of its trace."""
    text = json.dumps({"inputs": [{"name": name, "sha256": sha256}]})
    (folder / "provenance.json").write_text(text)


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
        {"event": "publish", "step": 1, "block": 1, "key": "aa"},
        {"event": "publish", "step": 1, "block": 2, "key": "bb"},
        {"event": "fork", "step": 2, "request": 0, "sequence": 2, "parent": 1},
        {"event": "step", "step": 2, "sequences": [1, 2], "new": [1, 1]},
        {"event": "evict", "step": 3, "block": 1, "key": "aa"},
        {"event": "publish", "step": 4, "block": 1, "key": "cc"},
        {"event": "finished", "step": 5, "request": 0, "sequence": 1},
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def make_sweep(folder: Path) -> Path:
    """Two policies, two sizes, three seeds; fifo is 0.1 behind, give or take; one failed, one killed."""
    rng = np.random.default_rng(0)
    for eviction in ("lru", "fifo"):
        for num_blocks in (64, 1024):
            for seed in (0, 1, 2):
                base = 0.4 + num_blocks / 10_000 - (0.1 if eviction == "fifo" else 0.0)
                result = {
                    "hit_rate": base + float(rng.normal(0, 0.01)),
                    "output_tokens_per_s": 100.0 + seed,
                    "ttft_s_p95": 0.5 + 0.1 * seed,
                    "num_evictions": 7,
                    "clock": "wall",
                }
                name = f"{eviction}_{num_blocks}-{seed}"
                first = seed == 0 and num_blocks == 64
                make_run(
                    folder / "sw" / name, result=result, eviction=eviction, num_blocks=num_blocks, seed=seed,
                    events=first,
                )  # fmt: skip
    make_run(folder / "sw" / "killed", result=None, eviction="mru")
    (folder / "sw" / "killed" / "metrics.jsonl").write_text("")
    bad = folder / "sw" / "bad_<b>&"
    bad.mkdir()
    reason = "KeyError: 50% & <script>alert(1)</script> $x_1$"
    failure = {"status": "failed", "reason": reason, "overrides": ["eviction=sieve", "seed=0", "run.sweep=s"]}
    (bad / "failure.json").write_text(json.dumps(failure))
    return folder / "sw"
