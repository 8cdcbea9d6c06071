"""Conformance kit of trackers: any run can be followed, and none is changed by it.

`tracker_checks` are plain functions `check(make)`; `make()` builds a fresh tracker. Each follows made-up runs whose
directories hold what a run writes. A tracker that sends something over a network is checked with options that keep it
off the network, or sends a few made-up runs.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from framework.interfaces.tracker import RunLabel, Tracker
from framework_testing.driver import Violation
from framework_testing.rules import checks_of, need

Make = Callable[[], Tracker]

CONFIG = {"mode": "serve", "seed": 0, "cache": {"block_size": 16, "num_blocks": 64}, "eviction": {"name": "lru"}}
SUMMARY = {
    "status": "ok", "hit_rate": 0.5, "num_requests": 2, "ttft_s_p50": None, "clock": "wall", "odd": float("nan"),
    "by_status": {"finished": 2}, "reasons": ["a \u2260 b"],
}  # fmt: skip
STEPS: tuple[Mapping[str, Any], ...] = (
    {"time_s": 0.0, "utilisation": 0.25, "live_slots": 4},
    {"time_s": 0.1, "utilisation": None, "live_slots": 8},
    {"time_s": 0.2, "utilisation": float("nan"), "live_slots": 2**40, "late": 1},
    {},
)
MANY = 1000
"""Steps of a run that is long enough to show what goes wrong after the first few."""
LABEL = RunLabel(name="a run", group="a sweep", job_type="prefix-lru", tags=("one",))


@contextmanager
def _folder() -> Iterator[Path]:
    """A run directory with what a run has written by its end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.yaml").write_text("mode: serve\n", encoding="utf-8")
        (folder / "result.json").write_text(json.dumps({"status": "ok"}), encoding="utf-8")
        for file in ("metrics.jsonl", "requests.jsonl"):
            (folder / file).write_text('{"step": 0, "request": "r0"}\n', encoding="utf-8")
        yield folder


def _call(tracker: Tracker, method: str, *arguments: Any, **keywords: Any) -> None:
    try:
        getattr(tracker, method)(*arguments, **keywords)
    except (Exception, SystemExit) as error:
        raise Violation(
            f"{type(tracker).__name__}.{method} raised {type(error).__name__}: {error}; called with {arguments}"
        ) from error


def _follow(
    tracker: Tracker, folder: Path, config: Mapping[str, Any] = CONFIG, steps: Sequence[Mapping[str, Any]] = STEPS,
    summary: Mapping[str, Any] = SUMMARY, *, label: RunLabel = LABEL, failed: bool = False,
) -> None:  # fmt: skip
    """A whole run; of its steps every third is said."""
    _call(tracker, "start", config, folder, label)
    for number, metrics in enumerate(steps):
        _call(tracker, "log", 3 * number, metrics)
    _call(tracker, "finish", summary, failed=failed)


def check_it_follows_a_run(make: Make) -> None:
    """It takes what a run of many steps gives it, None, NaN and text beyond ASCII included; label or not."""
    for label in (LABEL, RunLabel()):
        with _folder() as folder:
            _follow(make(), folder, steps=[STEPS[step % len(STEPS)] for step in range(MANY)], label=label)


def check_it_follows_a_failed_run(make: Make) -> None:
    """A run that failed ends like any other, also one that left no result and logged nothing."""
    with _folder() as folder:
        _follow(make(), folder, failed=True)
        _follow(make(), folder, {}, (), {}, label=RunLabel(), failed=True)


def check_a_run_that_never_started_can_finish(make: Make) -> None:
    """`finish` without `start` does nothing, and raises nothing."""
    _call(make(), "finish", {}, failed=True)


def check_what_it_is_given_stays(make: Make) -> None:
    """Configuration, metrics and summary are the run's: a tracker leaves them as they were."""
    config, steps, summary = deepcopy(CONFIG), [dict(metrics) for metrics in STEPS], deepcopy(SUMMARY)
    with _folder() as folder:
        tracker = make()
        _follow(tracker, folder, config, steps, summary)
    need(tracker, repr(config) == repr(CONFIG), "changed the configuration", config)
    need(tracker, repr(steps) == repr([dict(one) for one in STEPS]), "changed the metrics of a step", steps)
    need(tracker, repr(summary) == repr(SUMMARY), "changed the summary", summary)


def check_the_files_of_the_run_stay(make: Make) -> None:
    """It may write files of its own into the run's directory, and changes and removes none of the run's."""
    with _folder() as folder:
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        tracker = make()
        _follow(tracker, folder)
        after = {name: (folder / name).read_bytes() if (folder / name).is_file() else None for name in before}
        changed = [name for name in before if before[name] != after[name]]
        need(tracker, not changed, "changed or removed files of the run", changed)


def check_two_runs_at_once_stay_apart(make: Make) -> None:
    """Two runs of one process, step by step in turn, are two runs: nothing is kept in the class or the module."""
    first, second = make(), make()
    with _folder() as one, _folder() as other:
        _call(first, "start", CONFIG, one, LABEL)
        _call(second, "start", CONFIG, other, RunLabel(name="another run"))
        for step, metrics in enumerate(STEPS):
            _call(first, "log", step, metrics)
            _call(second, "log", step, metrics)
        _call(first, "finish", SUMMARY)
        _call(second, "log", len(STEPS), STEPS[0])
        _call(second, "finish", SUMMARY)


tracker_checks = checks_of(globals())
