"""Small fleets, and views of replicas whose numbers are given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from framework import api
from framework.types import BlockHash
from framework_fleet.router import Load, ReplicaView, RoutedRequest

SIZE = 4


def run(folder: Path, mode: Any = "fleet", **sections: Any) -> dict[str, Any]:
    """The result of a run over a small drawn workload of agents; `mode` a name, or its options too."""
    options = {
        "mode": mode,
        "executor": "roofline",
        "workload": {"name": "agents", "num_sessions": 12, "rate_per_s": 30.0},
        "cache": {"block_size": 16, "num_blocks": 160},
        "run": {"dir": str(folder), "events": True},
    }
    return api.run({**options, **sections})


def events(folder: Path) -> list[dict[str, Any]]:
    """The event log, without whose events they are."""
    rows = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    for row in rows:
        row.pop("replica", None)
    return rows


def rows(folder: Path, name: str = "requests.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def view(
    index: int = 0, *, matched: tuple[int, ...] = (0,), active: int = 0, prefill: int = 0, blocks: int = 0,
    waiting: int = 0, running: int = 0, used: int = 0, num_blocks: int = 100,
) -> ReplicaView:  # fmt: skip
    """A replica of these numbers; `matched` tokens in the pool and in each tier below."""
    made = ReplicaView(index, num_blocks, SIZE, lambda at: matched, lambda at: blocks)
    made.load = Load(0.0, running, waiting, used)
    made.active, made.active_prefill_tokens = active, prefill
    return made


def asked(tokens: int = 40, number: int = 0, prompt: str = "a", now_s: float = 0.0, **facts: Any) -> RoutedRequest:
    """A request of so many tokens; prompts share leading blocks as far as their letters are equal; the last repeats."""
    letters = [prompt[min(at, len(prompt) - 1)] for at in range(tokens // SIZE)]
    hashes = [BlockHash("".join(letters[: at + 1]).encode()) for at in range(len(letters))]
    return RoutedRequest(number=number, num_tokens=tokens, hashes=hashes, block_size=SIZE, now_s=now_s, **facts)
