"""Copies that are over a fixed number of steps after they were asked for: equal runs write equal logs."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from framework.api import run
from framework.tiers.fixed_steps import FixedSteps
from framework.tiers.transfers import Copy
from framework.tiers.worker import WorkerTransfers
from framework.types import BlockHash

TIERS = [{"store": "host", "num_blocks": 60}, {"store": "host", "num_blocks": 200}]


class Drawn:
    """Ends copies in an order and at times that a coin says."""

    def __init__(self, seed: int) -> None:
        self.draw, self.under_way, self.ended = random.Random(seed), list[Copy](), list[Copy]()

    def submit(self, copies: Sequence[Copy]) -> None:
        self.under_way += copies

    def _end(self, count: int) -> None:
        for _ in range(min(count, len(self.under_way))):
            self.ended.append(self.under_way.pop(self.draw.randrange(len(self.under_way))))

    def finished(self) -> Sequence[Copy]:
        self._end(self.draw.choice([0, 0, 1, 3]))
        ended, self.ended = self.ended, []
        return ended

    def wait(self, until: float | None) -> None:
        self._end(1)

    @property
    def num_pending(self) -> int:
        return len(self.under_way) + len(self.ended)


def copies(*names: str) -> list[Copy]:
    return [Copy(BlockHash(name.encode()), 0, 1, 1) for name in names]


def names(found: Sequence[Copy]) -> str:
    return "".join(copy.key.decode() for copy in found)


@pytest.mark.parametrize("seed", range(5))
def test_copies_end_in_the_order_and_at_the_step_of_their_asking(seed: int) -> None:
    step = 0
    transfers = FixedSteps(Drawn(seed), 2, lambda: step)  # type: ignore[arg-type]
    asked = {0: "ab", 1: "c", 3: "def"}
    seen = []
    for step in range(8):
        if step in asked:
            transfers.submit(copies(*asked[step]))
        seen.append(names(transfers.finished()))
    assert seen == ["", "", "ab", "c", "", "def", "", ""]
    assert transfers.num_pending == 0


def test_who_has_nothing_else_to_do_waits_for_the_first_alone() -> None:
    step = 5
    transfers = FixedSteps(Drawn(0), 9, lambda: step)  # type: ignore[arg-type]
    transfers.submit(copies("a", "b"))
    step = 6
    transfers.submit(copies("c"))
    assert names(transfers.finished()) == ""
    transfers.wait(None)
    assert names(transfers.finished()) == "ab"
    transfers.wait(None)
    assert names(transfers.finished()) == "c"


def prompts(folder: Path) -> Path:
    """Texts out of a few stems, so that what was evicted is wanted again."""
    draw, path = random.Random(5), folder / "prompts.jsonl"
    stems = ["".join(draw.choice("abcdefgh ") for _ in range(90)) for _ in range(6)]
    lines = [{"prompt": draw.choice(stems)[: draw.randint(40, 90)] + str(n), "max_tokens": 4} for n in range(40)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def served(folder: Path, name: str, **engine: Any) -> tuple[bytes, dict[str, Any]]:
    place = folder / name
    result = run(
        {
            "mode": "serve",
            "device": "cpu",
            "model": {"name": "tiny"},
            "workload": {"name": "prompts", "path": str(prompts(folder))},
            "cache": {"num_blocks": 48, "block_size": 4},
            "engine": {"max_batch_requests": 3, **engine},
            "tiering": "write_through",
            "tiers": TIERS,
            "run": {"dir": str(place), "progress": False, "events": True, "record": True, "check_requests": 0},
        }
    )
    return (place / "events.jsonl").read_bytes(), result


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> random.Random:
    """The thread takes its time, another one for each copy."""
    draw, carry_out = random.Random(), WorkerTransfers._carry_out

    def later(self: WorkerTransfers) -> None:
        time.sleep(draw.choice([0.0, 0.0, 0.004]))
        carry_out(self)

    monkeypatch.setattr(WorkerTransfers, "_carry_out", later)
    return draw


@pytest.mark.parametrize("steps", [1, 3])
def test_equal_serve_runs_and_the_replay_write_equal_logs_whatever_the_machine_does(
    steps: int, tmp_path: Path, slow: random.Random
) -> None:
    logs, results = [], []
    for number in range(2):
        slow.seed(number)
        log, result = served(tmp_path, f"served {number}", tier_copy_steps=steps)
        logs.append(log), results.append(result)
    replayed = run(
        {
            "mode": "replay",
            "executor": "none",
            "workload": {"name": "recording", "path": str(tmp_path / "served 0" / "recording.jsonl")},
            "cache": {"num_blocks": 48, "block_size": 4},
            "engine": {"max_batch_requests": 3, "tier_copy_steps": steps},
            "tiering": "write_through",
            "tiers": TIERS,
            "run": {"dir": str(tmp_path / "replayed"), "progress": False, "events": True},
        }
    )
    assert b'"event":"loaded"' in logs[0]
    assert logs[0] == logs[1] == (tmp_path / "replayed" / "events.jsonl").read_bytes()
    for key in ("tier0_hit_blocks", "tier1_hit_blocks", "tier2_hit_blocks", "loaded_blocks", "num_loads"):
        assert results[0][key] == results[1][key] == replayed[key], key


def test_without_it_they_may_differ(tmp_path: Path, slow: random.Random) -> None:
    logs = set()
    for number in range(20):
        slow.seed(number)
        logs.add(served(tmp_path, str(number))[0])
        if len(logs) > 1:
            return
    raise AssertionError("the machine made no difference: the test above shows nothing")
