"""Trackers: the run directory always, and no tracker that can hurt a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from framework import registry
from framework.errors import FrameworkError
from framework.interfaces.tracker import RunLabel, Tracker
from framework.results.reading import read_result
from framework.tracking.run_directory import RunDirectory
from framework.tracking.tracker import TrackedRun, TrackerWarning
from framework_workloads.lines import read_jsonl

RESULT = {
    "hit_rate": 0.75, "output_tokens_per_s": 1234.5, "num_requests": 48, "ttft_s_p50": None, "clock": "wall",
    "by_status": {"finished": 47, "failed": 1}, "bad": float("nan"),
}  # fmt: skip


class _Bad(Tracker):
    """Raises in one of its methods, from its n-th call on."""

    def __init__(self, method: str, nth: int, error: BaseException | None = None) -> None:
        self.method, self.nth, self.calls = method, nth, []
        self.error = error or OSError("the sink is blocked")

    def _call(self, method: str) -> None:
        self.calls.append(method)
        if method == self.method and self.calls.count(method) >= self.nth:
            raise self.error

    def start(self, config: Mapping[str, Any], folder: Path, label: RunLabel) -> None:
        self._call("start")

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._call("log")

    def finish(self, summary: Mapping[str, Any], *, failed: bool = False) -> None:
        self._call("finish")


def _run(directory: Path, tracker: Tracker, steps: int = 5) -> None:
    with RunDirectory(directory) as run:
        tracked = TrackedRun(run, tracker)
        tracked.start({"seed": 1, "cache": {"block_size": 16}}, RunLabel(name="n", group="sweep", job_type="cow-lru"))
        for number in range(2):
            run.log("requests.jsonl", {"key": f"r{number}", "ttft_s": 0.5 * number, "tokens": [1, 2]})
        for step in range(steps):
            tracked.log(
                step, {"time_s": step / 10, "utilisation": 0.5, "live_slots": 8, "free_slots": 8, "nan": float("nan")}
            )
        tracked.finish(RESULT)


@pytest.mark.parametrize("error", [OSError("the sink is blocked"), SystemExit(0)])
@pytest.mark.parametrize(("method", "nth", "calls"), [("start", 1, 1), ("log", 1, 2), ("log", 3, 4), ("finish", 1, 7)])
def test_a_tracker_that_raises_is_reported_once_and_the_run_goes_on(
    tmp_path: Path, method: str, nth: int, calls: int, error: BaseException
) -> None:
    bad = _Bad(method, nth, error)
    with pytest.warns(TrackerWarning, match=f"tracker _Bad.{method} failed.*{type(error).__name__}") as warned:
        _run(tmp_path, bad)
    assert len(warned) == 1, [str(one.message) for one in warned]
    assert len(bad.calls) == calls, bad.calls
    assert len(read_jsonl(tmp_path / "metrics.jsonl")) == 5
    assert read_result(tmp_path)["hit_rate"] == 0.75


def test_an_interrupt_is_not_contained(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path, _Bad("log", 1, KeyboardInterrupt()))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nome", {}, "no tracker named 'nome'.*did you mean 'none'"),
        ("none", {"project": "x"}, "has no option 'project'"),
    ],
)
def test_a_tracker_that_cannot_be_built_is_refused_before_the_run(name: str, options: dict, message: str) -> None:
    with pytest.raises(FrameworkError, match=message):
        registry.build("tracker", name, options)
