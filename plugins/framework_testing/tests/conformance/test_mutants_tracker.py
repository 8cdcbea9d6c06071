"""Each known-bad tracker must be caught, by a check that is named here; those that are right pass the whole kit."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from framework import registry
from framework.interfaces.tracker import RunLabel, Tracker
from framework_testing import tracker as kit
from framework_testing import tracker_checks
from framework_testing.driver import Violation


class Lines(Tracker):
    """Right: keeps what it is shown."""

    def __init__(self) -> None:
        self.lines: list[str] | None = None

    def start(self, config: Mapping[str, Any], folder: Path, label: RunLabel) -> None:
        self.lines = [label.name]

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        assert self.lines is not None
        self.lines.append(f"{step} {dict(metrics)}")

    def finish(self, summary: Mapping[str, Any], *, failed: bool = False) -> None:
        self.lines = None


class Remembers(Lines):
    """Right: knows where the run's files are."""

    def start(self, config: Mapping[str, Any], folder: Path, label: RunLabel) -> None:
        super().start(config, folder, label)
        self.folder = folder


class OneRunAtATime(Lines):
    """Remembers in the class."""

    running: ClassVar[list[str]] = []

    def start(self, config: Mapping[str, Any], folder: Path, label: RunLabel) -> None:
        if self.running:
            raise RuntimeError("a run is open")
        self.running.append(label.name)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        pass

    def finish(self, summary: Mapping[str, Any], *, failed: bool = False) -> None:
        self.running.clear()


def wrong(name: str, check: Any, base: type[Lines] = Lines, **methods: Any) -> tuple[type[Tracker], Any]:
    """A right tracker with these methods in place of its own, and the check that must catch it."""
    return type(name, (base,), methods), check


MUTANTS = [
    wrong("HasRoomForFive", kit.check_it_follows_a_run, log=lambda self, step, metrics:
          Lines.log(self, step, metrics) if len(self.lines) < 5 else {}["full"]),
    wrong("SumsNumbers", kit.check_it_follows_a_run, log=lambda self, step, metrics: sum(metrics.values())),
    wrong("CannotFail", kit.check_it_follows_a_failed_run, finish=lambda self, summary, failed=False:
          Lines.finish(self, {"rate": summary["hit_rate"]})),
    wrong("ClosesWhatWasNeverOpened", kit.check_a_run_that_never_started_can_finish,
          finish=lambda self, summary, failed=False: self.lines.clear()),
    wrong("TakesTheMetrics", kit.check_what_it_is_given_stays,
          log=lambda self, step, metrics: metrics.pop("live_slots", None)),
    wrong("AddsToTheSummary", kit.check_what_it_is_given_stays,
          finish=lambda self, summary, failed=False: summary.update(url="https://example.org")),
    wrong("WritesTheResultAnew", kit.check_the_files_of_the_run_stay, Remembers,
          finish=lambda self, summary, failed=False:
          self.lines and (self.folder / "result.json").write_text("{}")),
    wrong("SweepsTheFolder", kit.check_the_files_of_the_run_stay, Remembers,
          finish=lambda self, summary, failed=False:
          self.lines and (shutil.rmtree(self.folder), self.folder.mkdir())),
    (OneRunAtATime, kit.check_two_runs_at_once_stay_apart),
]  # fmt: skip


@pytest.mark.parametrize(("mutant", "check"), MUTANTS, ids=lambda one: getattr(one, "__name__", str(one)))
def test_a_bad_tracker_is_caught_by_the_check_that_names_its_fault(mutant: type[Tracker], check: Any) -> None:
    with pytest.raises(Violation, match=mutant.__name__):
        check(mutant)
    OneRunAtATime.running.clear()


def test_every_check_catches_something() -> None:
    assert {check for _, check in MUTANTS} == set(tracker_checks)


@pytest.mark.parametrize("check", tracker_checks, ids=lambda check: check.__name__)
def test_right_trackers_pass(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    check(Lines)
    check(registry.load("tracker", "none"))


@pytest.mark.parametrize("check", tracker_checks, ids=lambda check: check.__name__)
def test_the_tracker_of_weights_and_biases_passes_offline(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    check(registry.load("tracker", "wandb"))
