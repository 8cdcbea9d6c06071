"""A full replay's reference: the same engine by offline next use, named as what it is."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from framework.api import run


def replayed(folder: Path, path: Path, **replay: object) -> dict:
    return run(
        {
            "mode": "replay", "executor": "none", "allocator": {"name": "prefix"}, "eviction": {"name": "mru"},
            "cache": {"num_blocks": 12, "block_size": 512}, "workload": {"name": "trace", "path": str(path)},
            "engine": {"max_batch_requests": 1}, "replay": dict(replay),
            "run": {"dir": str(folder), "progress": False},
        }
    )  # fmt: skip


def test_a_full_replay_reports_its_gap_to_offline_next_use_when_asked(tmp_path: Path) -> None:
    draw, path = random.Random(0), tmp_path / "trace.jsonl"
    rows = []
    for at in range(150):
        name = draw.randrange(6)
        rows.append({"timestamp": at * 1000, "input_length": 512 * 4 + 10, "output_length": 1,
                     "hash_ids": [name * 10 + depth for depth in range(4)] + [10_000 + at]})  # fmt: skip
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    plain = replayed(tmp_path / "plain", path)
    asked = replayed(tmp_path / "asked", path, offline_reference=True)
    assert "offline_next_use_hit_rate" not in plain
    assert asked["hit_rate"] == plain["hit_rate"], "the run itself is the same"
    best = asked["offline_next_use_hit_rate"]
    assert best > asked["hit_rate"]
    assert asked["gap_to_offline_next_use"] == pytest.approx((best - asked["hit_rate"]) / (1 - best))
