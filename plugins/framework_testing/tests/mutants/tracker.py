"""Trackers with one fault each, and a right one."""

from __future__ import annotations

import shutil

from framework.interfaces.tracker import Tracker
from framework_testing import tracker as kit


class Lines(Tracker):
    """Right: keeps what it is shown."""

    def __init__(self):
        self.lines = None

    def start(self, config, folder, label):
        self.lines = [label.name]

    def log(self, step, metrics):
        assert self.lines is not None
        self.lines.append(f"{step} {dict(metrics)}")

    def finish(self, summary, *, failed=False):
        self.lines = None


class Remembers(Lines):
    """Right: knows where the run's files are."""

    def start(self, config, folder, label):
        super().start(config, folder, label)
        self.folder = folder


class OneRunAtATime(Lines):
    """Remembers in the class."""

    running = []  # noqa: RUF012

    def start(self, config, folder, label):
        if self.running:
            raise RuntimeError("a run is open")
        self.running.append(label.name)

    def log(self, step, metrics):
        pass

    def finish(self, summary, *, failed=False):
        self.running.clear()


def wrong(name, check, base=Lines, **methods):
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

RIGHT = [(Lines, kit.tracker_checks)]
