"""StepLines keeps every promise of a tracker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from framework.interfaces.tracker import RunLabel
from framework_testing import tracker_checks

from framework_example.tracker import StepLines


@pytest.mark.parametrize("check", tracker_checks, ids=lambda check: check.__name__)
def test_it_passes_its_kit(check: Any) -> None:
    check(StepLines)


def test_every_step_has_its_line(tmp_path: Path) -> None:
    tracker = StepLines(file="steps.tsv")
    tracker.start({}, tmp_path, RunLabel(name="mine"))
    for step in range(3):
        tracker.log(step, {"time_s": 0.1 * step})
    tracker.finish({"hit_rate": 0.5})
    lines = (tmp_path / "steps.tsv").read_text(encoding="utf-8").splitlines()
    assert [line.split("\t")[0] for line in lines] == ["run", "0", "1", "2", "end"]
