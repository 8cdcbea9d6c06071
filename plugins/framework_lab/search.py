"""`python -m framework search NAME OVERRIDE...`: let optuna choose what a sweep would enumerate."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from framework import registry
from framework.cli.exit import FAILED
from framework.cli.options import require_in_bounds
from framework.commands import run_command
from framework.config.check import check_below
from framework.errors import ConfigError, FrameworkError, did_you_mean
from framework.files.atomic import is_disk_failure, no_empty_folders
from framework.files.jsonl import require_file
from framework.files.lock import Lock
from framework.files.secrets import masked
from framework.interfaces.command import Command
from framework.results.catalogue import catalogue, find
from framework.results.layout import JOURNAL, LOCK
from framework.results.reading import read_result, what_went_wrong
from framework.sweep.identity import digest, digest_of, identity, inputs
from framework.sweep.job import JobDone, begin, fail, folder_name, is_done, require_sweep_folder
from framework_report.records import Trial, Trials, write_trials
from framework_workloads.lines import iter_objects

_CHECKED = ("allocator", "eviction", "hash", "backend")
_MAX_ALIKE = 5
"""A call ends when so many trials of its own, one after another, failed for the same reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One thing to choose.

    Attributes:
        key: as in an override.
        choices: of which one; empty where numbers are meant.
        low, high, step: bounds, both included; step None is continuous.
        whole: integers only.
        log: search orders of magnitude.
    """

    key: str
    choices: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    whole: bool = False
    log: bool = False

    @property
    def first(self) -> str:
        """This axis's word with the first of its choices, or its lower bound."""
        return f"{self.key}={self.choices[0] if self.choices else int(self.low) if self.whole else self.low}"

    def suggest(self, trial: Any) -> str:
        """This axis's word for a trial, such as `cache.num_blocks=64`."""
        if self.choices:
            return f"{self.key}={trial.suggest_categorical(self.key, self.choices)}"
        if self.whole:
            step = int(self.step or 1)
            return f"{self.key}={trial.suggest_int(self.key, int(self.low), int(self.high), step=step, log=self.log)}"
        return f"{self.key}={trial.suggest_float(self.key, self.low, self.high, step=self.step, log=self.log)!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What to search, for what, and where it is kept.

    Attributes:
        fixed: overrides of every trial; axes: what varies.
        metric: key of `result.json`; maximize or minimize it.
        trials: as many in all, those of earlier calls and failed ones included.
    """

    folder: Path
    fixed: tuple[str, ...]
    axes: tuple[Axis, ...]
    metric: str
    maximize: bool
    trials: int
    seed: int = 0


def search(plan: Search, say: Callable[[str], None] = lambda line: None) -> Trials:
    """Run what is missing of `plan`; all trials so far. One process a folder; a killed one's work is kept.

    The sampler is seeded by the number of finished trials, so a resumed search asks what an unbroken one would.

    Five trials in a row that failed for one reason end the call: the fault is not in what varies. A later call
    goes on from there.

    Raises:
        ConfigError: optuna is not installed, the plan cannot be composed, or `plan.folder` holds foreign files.
        RunDirectoryError: another process searches here, or nothing can be written; that trial will be tried again.
    """
    optuna = _optuna()
    require_sweep_folder(plan.folder)
    with no_empty_folders(plan.folder.absolute()):
        plan.folder.mkdir(parents=True, exist_ok=True)
        lock = Lock(plan.folder / LOCK)
        try:
            study, reasons = _study(optuna, plan, say), deque[str](maxlen=_MAX_ALIKE)
            history = _trials(study, plan)
            write_trials(plan.folder, history)
            while len(history.trials) < plan.trials:
                if len(reasons) == _MAX_ALIKE and reasons[0] and len(set(reasons)) == 1:
                    done = f"{len(history.trials)} of {plan.trials} trials"
                    say(f"stopped after {done}: the last {_MAX_ALIKE} failed alike")
                    break
                reasons.append(_one(optuna, study, plan, len(history.trials), say))
                history = _trials(study, plan)
                write_trials(plan.folder, history)
            return history
        finally:
            lock.release()


def axes_of(overrides: Sequence[str]) -> tuple[tuple[str, ...], tuple[Axis, ...]]:
    """Overrides, in either spelling, parted into fixed words and axes.

    Raises:
        ConfigError: a word that is no override, or nothing to search.
        UnknownPlugin, PluginImportError: a choice that cannot be had.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    from framework.config.hydra.compose import global_loader
    from framework.config.hydra.overrides import normalise

    words = normalise(overrides)
    try:
        with global_loader(importable_only=True) as loader:
            parsed = OverridesParser.create(config_loader=loader).parse_overrides(words)
    except HydraException as error:
        raise ConfigError(f"cannot read the overrides: {' '.join(str(error).split())}") from error
    fixed = tuple(override.input_line for override in parsed if not override.is_sweep_override())
    axes = tuple(_axis(override) for override in parsed if override.is_sweep_override())
    if any(override.get_key_element() == "run.dir" for override in parsed):
        raise ConfigError("run.dir is for a single run; trials lie below the search's folder: leave it out")
    if not axes:
        raise ConfigError("nothing to search: give an override several values, such as eviction=lru,fifo")
    if twice := [axis.key for number, axis in enumerate(axes) if axis.key in (one.key for one in axes[:number])]:
        raise ConfigError(f"{twice[0]} is given several values twice; give all of them at once")
    return tuple(str(word) for word in fixed), axes


def maximises(metric: str, asked: bool | None = None) -> bool:
    """Whether larger values of a result's key are better: as asked, else as the catalogue of results says.

    Raises:
        ConfigError: no result has such a number, or neither direction is better and none was asked for.
    """
    declared = find(metric)
    if declared is None or not declared.numeric:
        numbers = [key for key, one in catalogue().items() if one.numeric]
        what = "is no number" if declared is not None else "is in no result"
        raise ConfigError(f"metric {metric!r} {what}; docs/results.md has them all{did_you_mean(metric, numbers)}")
    if asked is None and not declared.better:
        raise ConfigError(f"neither more nor less of {metric} is better; say --minimize or --maximize")
    return declared.better == "higher" if asked is None else asked


class SearchCommand(Command):
    """Let optuna choose what a sweep would enumerate.

    The overrides are those of a sweep: `eviction=lru,fifo` is a choice, `cache.num_blocks=range(64,512,64)` a grid of
    numbers, `interval(0.1,0.9)` and `tag(log,interval(1,1e3))` are continuous, `int(interval(1,64))` is whole.
    Trials lie in `sweeps/NAME`, one folder an override set, as a sweep's jobs do; the journal beside them resumes a
    killed search, and a trial that was run before is read, not run again.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", help="folder of the search below sweeps/; the same name resumes it")
        parser.add_argument("overrides", nargs="+", metavar="OVERRIDE", help="as for framework.run")
        parser.add_argument("--metric", default="hit_rate", help="key of result.json (default: hit_rate)")
        add_direction(parser)
        parser.add_argument("--trials", type=int, default=50, help="in all, earlier calls included (default: 50)")
        parser.add_argument("--seed", type=int, default=0, help="of the sampler")
        parser.add_argument("--folder", default="sweeps", help="where searches lie (default: sweeps)")

    def parse(self, parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
        return parser.parse_intermixed_args(words)  # an option may stand between two overrides

    def run(self, options: argparse.Namespace) -> int:
        require_in_bounds(options, "trials")
        check_below("search NAME", options.name, "--folder FOLDER")
        if "/" in options.name:
            raise ConfigError(
                f"search NAME is one folder's name, found {options.name!r}; for another place set --folder"
            )
        fixed, axes = axes_of(options.overrides)
        plan = Search(
            folder=Path(options.folder) / options.name,
            fixed=fixed,
            axes=axes,
            metric=options.metric,
            maximize=maximises(options.metric, options.maximize),
            trials=options.trials,
            seed=options.seed,
        )
        history = search(plan, say=lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201
        run_command("report", [str(plan.folder), "--publish"])
        if history.best is None:
            print(f"none of {len(history.trials)} trials was good", file=sys.stderr)  # noqa: T201
            return FAILED
        words = " ".join(history.best.overrides)
        print(f"best of {len(history.trials)}: {plan.metric} {history.best.value:g} with {words}")  # noqa: T201
        return 0


def _one(optuna: Any, study: Any, plan: Search, done: int, say: Callable[[str], None]) -> str:
    """Run one more trial. Why it failed, empty where it did not."""
    study.sampler = optuna.samplers.TPESampler(seed=(plan.seed * 1_000_003 + done) % 2**32)
    with _journal(plan):
        trial = study.ask()
        varied = [axis.suggest(trial) for axis in plan.axes]
        trial.set_user_attr("overrides", varied)
    value, reason = _evaluate((*plan.fixed, *varied), plan)
    with _journal(plan):
        if value is None:
            trial.set_user_attr("reason", reason)
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, value)
    say(f"trial {done + 1} of {plan.trials}: {' '.join(varied)}: {reason or f'{plan.metric} {value:g}'}")
    return reason


def _evaluate(words: Sequence[str], plan: Search) -> tuple[float | None, str]:
    """(metric, "") of one trial, run or read; (None, reason) where it failed."""
    from framework.api import run
    from framework.config.hydra.compose import checked, compose

    directory = plan.folder.absolute() / folder_name(words, {axis.key for axis in plan.axes})
    try:
        settings = checked(compose(words))
        wanted = identity(settings.plain())
        if is_done(directory, wanted):
            result: Mapping[str, Any] = read_result(directory)
        else:
            where = settings.run.changed(dir=str(directory), progress=False)
            on_begin = partial(begin, overrides=words, wanted=wanted)
            try:
                result = run(settings.changed(run=where), on_begin=on_begin)
            except JobDone:  # a sweep in the same folder was faster
                result = read_result(directory)
        reason = what_went_wrong(result)
        if not reason and not isinstance(result.get(plan.metric), (int, float)):
            reason = f"its result has no number {plan.metric!r}"
    except Exception as error:  # one failed trial is one failed row, whatever a plugin raised
        if is_disk_failure(error):
            raise  # it says nothing of the trial, which stays begun and is tried again
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if reason:
        fail(directory, "failed", reason, words)
        return None, reason
    return float(result[plan.metric]), ""


def _study(optuna: Any, plan: Search, say: Callable[[str], None]) -> Any:
    """The study of these settings and this code. Trials of others stay in the journal, where no sampler sees them.

    Raises:
        ConfigError: a line of the journal that no search writes; names it.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = plan.folder / JOURNAL
    _drop_partial_line(path)
    for _ in iter_objects(path, ConfigError) if path.exists() else ():
        pass  # each line is an object
    name = _identity(plan)
    with _journal(plan):
        backend = _backend(path)
        try:
            storage = optuna.storages.JournalStorage(backend)
        except Exception as error:  # whatever optuna trips over
            raise ConfigError(
                f"{path}:{backend.line}: no line of a search: {type(error).__name__}: {' '.join(str(error).split())}; "
                "restore the file, or remove it to begin the search anew (trials' results are kept, and read)"
            ) from error
        known = {study.study_name for study in storage.get_all_studies()}
    if known and name not in known:
        say("the search begins anew, since settings, code or files have changed; results that still hold are read")
    with _journal(plan):
        return optuna.create_study(
            storage=storage,
            study_name=name,
            direction="maximize" if plan.maximize else "minimize",
            load_if_exists=True,
        )


def _backend(path: Path) -> Any:
    """optuna's reader of a journal, which says in `line` how far it has read."""
    from optuna.storages.journal import JournalFileBackend

    class Numbered(JournalFileBackend):
        line = 0

        def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
            for self.line, log in enumerate(super().read_logs(log_number_from), start=log_number_from + 1):
                yield log

    # This process holds the folder's lock already: the journal's own would outlive a kill.
    held = SimpleNamespace(acquire=lambda: True, release=lambda: None)
    return Numbered(str(path), lock_obj=cast(Any, held))


@contextmanager
def _journal(plan: Search) -> Iterator[None]:
    """What optuna raises within is a fault of what the journal holds, or of the disk that it lies on."""
    path = plan.folder / JOURNAL
    try:
        yield
    except FrameworkError:
        raise
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    except Exception as error:
        raise ConfigError(
            f"{path} holds what no search writes: {type(error).__name__}: {' '.join(str(error).split())}; restore it, "
            "or remove it to begin the search anew (trials' results are kept, and read)"
        ) from error


def _identity(plan: Search) -> str:
    """Digest of what the values of all trials are made of: the metric, what is searched, the identity of the job with
    the first of each axis, and the code or the content of every other choice."""
    from framework.config.hydra.compose import checked, compose

    try:
        parts: list[Any] = [identity(checked(compose((*plan.fixed, *(axis.first for axis in plan.axes)))).plain())]
    except FrameworkError:  # these do not go together; other trials may
        parts = [plan.fixed, registry.framework_content()]
    for key, choice in ((axis.key, choice) for axis in plan.axes for choice in axis.choices):
        if key in registry.groups():
            parts.append(registry.content_of(registry.find(key, choice)))
        parts += [digest_of(path) for _, path in inputs({key.partition(".")[0]: {key: choice}})]
    return digest([plan.metric, plan.maximize, {axis.key: repr(axis) for axis in plan.axes}, parts])


def _drop_partial_line(path: Path) -> None:
    """What a killed process had half written would join the next line."""
    if path.exists():
        require_file(path, ConfigError)
    if path.is_file() and not (data := path.read_bytes()).endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)


def _trials(study: Any, plan: Search) -> Trials:
    """The finished trials, as the report reads them; what a killed process had begun has neither value nor reason."""
    trials: list[Trial] = []
    with _journal(plan):
        for trial in study.get_trials(deepcopy=False):
            value, reason = trial.value, trial.user_attrs.get("reason", "")
            if value is not None or reason:
                varied = tuple(trial.user_attrs["overrides"])
                folder = folder_name((*plan.fixed, *varied), {axis.key for axis in plan.axes})
                trials.append(Trial(len(trials) + 1, folder, varied, value, str(reason)))
    return Trials(metric=plan.metric, maximize=plan.maximize, trials=tuple(trials))


def _axis(override: Any) -> Axis:
    from hydra.core.override_parser.types import IntervalSweep, RangeSweep

    from framework.config.hydra.sweeper import MOST_JOBS, num_values

    key: str = override.get_key_element()
    value: Any = override.value()
    if isinstance(value, IntervalSweep):
        low, high = (math.nan if bound is None else bound for bound in (value.start, value.end))
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise ConfigError(f"{override.input_line}: an interval needs two finite numbers, the lower one first")
        if "log" in value.tags and low <= 0:
            raise ConfigError(f"{override.input_line}: orders of magnitude begin above 0, found {low}")
        whole = isinstance(low, int) and isinstance(high, int)
        return Axis(key=key, low=float(low), high=float(high), whole=whole, log="log" in value.tags)
    if isinstance(value, RangeSweep):
        if not 0 < num_values(override) <= MOST_JOBS:
            raise ConfigError(f"{override.input_line}: a range of no value, or of more than {MOST_JOBS:,}")
        steps = [float(word) for word in override.sweep_string_iterator()]
        whole = all(isinstance(bound, int) for bound in (value.start, value.stop, value.step))
        return Axis(key=key, low=min(steps), high=max(steps), step=float(abs(value.step)), whole=whole)
    choices = tuple(override.sweep_string_iterator())
    if (words := [f"{key}={choice}" for choice in choices]) != masked(words):
        raise ConfigError(f"{key} looks like a secret, which the journal of a search would keep: give it one value")
    if key in _CHECKED:
        for choice in choices:
            registry.load(key, choice)
    return Axis(key=key, choices=choices)


def add_direction(parser: argparse.ArgumentParser) -> None:
    """`--minimize` and `--maximize`; with neither, the catalogue of results decides."""
    both = parser.add_mutually_exclusive_group()
    default_note = "(default: as docs/results.md says of the metric)"
    both.add_argument(
        "--minimize", dest="maximize", action="store_false", default=None, help=f"smaller is better {default_note}"
    )
    both.add_argument("--maximize", dest="maximize", action="store_true", default=None, help="larger is better")


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ConfigError("searching needs optuna: pip install 'kvcache-framework[search]'") from error
    return optuna
