"""What the files of a sweep's folder tell of jobs in other processes."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from framework.sweep.job import Outcome, begin, fail
from framework.sweep.watch import Watch


class Reports:
    """Collects what a Watch reports; `wait` returns once there are so many."""

    def __init__(self) -> None:
        self.found: list[Outcome] = []
        self._more = threading.Condition()

    def __call__(self, outcome: Outcome) -> None:
        with self._more:
            self.found.append(outcome)
            self._more.notify_all()

    def wait(self, count: int) -> list[tuple[str, str]]:
        with self._more:
            assert self._more.wait_for(lambda: len(self.found) >= count, timeout=20), self.found
        return [(Path(str(outcome.directory)).name, outcome.state) for outcome in self.found]


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    for name in "abc":
        begin(tmp_path / name, [f"eviction={name}"], "hash")
    return [tmp_path / name for name in "abc"]


def result(folder: Path, **facts: object) -> None:
    (folder / "result.json").write_text(json.dumps({"status": "ok", **facts}))


def test_a_job_is_reported_as_soon_as_its_files_say_that_it_ended(folders: list[Path]) -> None:
    reports = Reports()
    with Watch(folders, reports, every_s=0.01) as watch:
        result(folders[1])
        assert reports.wait(1) == [("b", "ok")]
        fail(folders[0], "unavailable", "no such device")
        assert reports.wait(2)[1] == ("a", "unavailable")
    assert reports.found[0].took_s is not None
    for folder in folders:
        watch.finish(Outcome(directory=str(folder), state="ok"))
    assert reports.wait(3)[2:] == [("c", "ok")], "each once"


def test_what_lay_in_a_folder_before_is_not_this_job_s_end(folders: list[Path]) -> None:
    result(folders[0])
    fail(folders[1], "failed", "an earlier run's")
    reports = Reports()
    with Watch(folders, reports, every_s=0.01):
        result(folders[2])
        assert reports.wait(1) == [("c", "ok")]
        begin(folders[1], ["eviction=b"], "hash")
        result(folders[1])
        assert reports.wait(2)[1] == ("b", "ok")


def test_a_bad_result_waits_for_the_reason_and_then_for_the_launcher(folders: list[Path]) -> None:
    reports = Reports()
    with Watch(folders, reports, every_s=0.01) as watch:
        result(folders[0], status="failed", reasons=["no"])
        (folders[1] / "result.json").write_text('{"status": "o')
        result(folders[2])
        assert reports.wait(1) == [("c", "ok")]
    watch.finish(Outcome(directory=str(folders[0]), state="failed", status=1))
    watch.finish(Outcome(directory=str(folders[2])))
    assert reports.wait(2) == [("c", "ok"), ("a", "failed")]
