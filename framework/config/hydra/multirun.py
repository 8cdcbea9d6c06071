"""Hydra's run, composed once instead of twice, and its multirun as a resumable sweep.

Every word of a sweep is checked before a job starts, and finished jobs are not launched.

In this process jobs run one by one under a progress bar; a launcher (joblib, submitit, ray) gets what is missing.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, cast

from hydra._internal.callbacks import Callbacks
from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import configure_log, run_job, setup_globals
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from framework import registry
from framework.cli.progress import sweep_progress
from framework.config.check import check_below
from framework.config.hydra.compose import HYDRA_ERRORS, checked, refusal, without_hydra
from framework.config.hydra.overrides import normalise, quote, unquote
from framework.errors import ConfigError, FrameworkError
from framework.files.atomic import no_empty_folders
from framework.files.secrets import masked
from framework.results.layout import RESULT, SWEEP
from framework.sweep.identity import Repeats, identity
from framework.sweep.job import (
    Outcome,
    folder_name,
    folder_tail,
    is_done,
    key_of,
    require_sweep_folder,
    watched,
)
from framework.tracking.provenance import handed_on

Task = Callable[[DictConfig], Outcome]
MOST_JOBS = 100_000


@dataclass(frozen=True, slots=True)
class _Sweep:
    """One --multirun: what all its jobs share."""

    config: DictConfig
    context: HydraContext
    task: Task
    repeats: Repeats = field(default_factory=Repeats)
    existing: dict[str, str] = field(default_factory=dict)
    """Names of the folders that were there when the sweep began, by their last words, hashes of overrides."""

    @property
    def folder(self) -> Path:
        return Path(str(self.config.hydra.sweep.dir)).absolute()

    def composed(self, number: int, words: Sequence[str]) -> DictConfig:
        """The configuration of one job, Hydra's node included. Raises FrameworkError where it cannot be composed."""
        loader = self.context.config_loader
        try:
            config = loader.load_sweep_config(self.config, list(words))
        except HYDRA_ERRORS as error:
            raise refusal(error, words, loader.get_search_path()) from error
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
        return config

    def would_repeat(self, job: _Job) -> bool:
        """Whether a job would give what an earlier one of this sweep gives."""
        try:
            return self.repeats.repeats(job.words, lambda: job.plain)
        except FrameworkError:
            return False  # the job itself will say why

    def say_repeats(self) -> None:
        """One sentence on the jobs that were left out."""
        if self.repeats.names and self.config.run.progress:
            which = ", ".join(f"{name} ({count})" for name, count in self.repeats.names.items())
            print(f"run with one seed only, since nothing in them uses it: {which}", file=sys.stderr)  # noqa: T201


@dataclass(frozen=True)
class _Job:
    """One job of a sweep. Composing takes a tenth of a second and the result a third of a MB: nothing keeps it."""

    sweep: _Sweep
    number: int
    words: Sequence[str]
    name: str

    @property
    def directory(self) -> Path:
        return self.sweep.folder / self.name

    @property
    def launched(self) -> list[str]:
        """The words as Hydra composes them, its folders among them: the sweep is named after a mode that may vary."""
        sweep = quote(str(self.sweep.config.run.sweep))
        return [*self.words, f"run.sweep={sweep}", f"hydra.sweep.subdir={quote(self.name)}"]

    @cached_property
    def plain(self) -> dict[str, Any]:
        """The configuration checked. Raises FrameworkError: it cannot be run."""
        return checked(without_hydra(self.sweep.composed(self.number, self.launched))).plain()

    def done(self) -> Outcome | None:
        """The outcome of a job whose good result is there already."""
        if not (self.directory / RESULT).exists():
            return None
        try:
            if not is_done(self.directory, identity(self.plain)):
                return None
        except FrameworkError:
            return None  # the job itself will say why
        report = self.sweep.config.run.report or None
        return Outcome(directory=str(self.directory), sweep=str(self.sweep.folder), state="skipped", report=report)


def multirun(hydra: Any, name: str, words: Sequence[str], task: Task) -> Iterator[Outcome]:
    """Every job of a sweep in order, as each ends; those that were done before are `skipped`.

    Raises:
        hydra's own errors: a word that cannot be composed; nothing was started.
    """
    config = hydra.compose_config(
        config_name=name, overrides=list(words), with_log_configuration=True, run_mode=RunMode.MULTIRUN
    )
    for part in ("launcher", "sweeper"):
        target = str(OmegaConf.select(config, f"hydra.{part}._target_"))
        if not Plugins.instance().is_in_toplevel_plugins_module(target):
            raise ConfigError(f"hydra.{part}._target_={target} is no Hydra {part}; choose one by hydra/{part}=NAME")
    callbacks = Callbacks(config)
    callbacks.on_multirun_start(config=config, config_name=name)
    context = HydraContext(config_loader=hydra.config_loader, callbacks=callbacks)
    sweeper = Plugins.instance().instantiate_sweeper(config=config, hydra_context=context, task_function=task)
    arguments = OmegaConf.to_container(config.hydra.overrides.task, resolve=False)
    assert isinstance(arguments, list)
    if not _is(sweeper, BasicSweeper):
        raise ConfigError(f"{type(sweeper).__name__} is not supported; `python -m framework search` chooses trials")
    yield from _jobs(_Sweep(config, context, task), cast(BasicSweeper, sweeper), arguments)
    callbacks.on_multirun_end(config=config, config_name=name)


def _is(plugin: Any, kind: type) -> bool:
    """Whether `plugin` is of this very class. By name: Hydra's plugin scan loads modules anew that were imported."""
    found = type(plugin)
    return (found.__module__, found.__qualname__) == (kind.__module__, kind.__qualname__)


def _jobs(sweep: _Sweep, sweeper: BasicSweeper, arguments: Sequence[str]) -> Iterator[Outcome]:
    parser = OverridesParser.create(config_loader=sweep.context.config_loader)
    # A word of the command line replaces the same key of a conf/sweep file.
    overrides = parser.parse_overrides([f"{key}={value}" for key, value in sweeper.params.items()])
    given = parser.parse_overrides(list(arguments))
    keys = {override.get_key_element() for override in given}
    merged = [override for override in overrides if override.get_key_element() not in keys] + given
    if "run.dir" in keys:
        raise ConfigError("run.dir is for a single run; the jobs of a sweep lie below sweeps/NAME: set run.sweep=NAME")
    _require_so_many(merged)
    check_below("run.sweep", str(sweep.config.run.sweep), "hydra.sweep.dir=FOLDER")
    jobs = chosen_options([normal_choices(words) for words in sweeper.split_arguments(merged, None)[0]])
    composed = [sweep.composed(number, words) for number, words in enumerate(_representatives(jobs))]
    choices = [config.hydra.runtime.choices for config in composed]
    for sentence in dict.fromkeys(clash for chosen in choices for clash in registry.clashes(chosen)):
        print(sentence, file=sys.stderr)  # noqa: T201
    if not jobs:
        return
    _require_one_that_can_run(composed)
    require_sweep_folder(sweep.folder)
    sweep.folder.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(masked(OmegaConf.to_container(sweep.config, enum_to_str=True)), sweep.folder / SWEEP)
    sweep.existing.update({path.name.rpartition("-")[2]: path.name for path in sweep.folder.iterdir()})
    varied = varied_keys(jobs)
    every = [_job(sweep, number, words, varied) for number, words in enumerate(jobs)]
    planned = [job for job in every if not sweep.would_repeat(job)]
    sweep.say_repeats()
    done = {job.number: outcome for job in planned if (outcome := job.done()) is not None}
    if _is(sweeper.launcher, BasicLauncher):
        yield from _in_process(sweep, planned, done)
    else:
        yield from _launched(sweep, sweeper, planned, done)


def _job(sweep: _Sweep, number: int, words: Sequence[str], varied: Collection[str]) -> _Job:
    """A job in the folder that its overrides had in an earlier call, where the sweep may have varied other keys."""
    name = sweep.existing.get(folder_tail(words)) or folder_name(words, varied)
    return _Job(sweep, number, words, name)


def varied_keys(jobs: Sequence[Sequence[str]]) -> set[str]:
    """Keys that do not have one value in all jobs."""
    seen: dict[str, set[str]] = {}
    counts: Counter[str] = Counter()
    for words in jobs:
        for word in words:
            seen.setdefault(key_of(word), set()).add(word)
            counts[key_of(word)] += 1
    return {key for key, words in seen.items() if len(words) > 1 or counts[key] < len(jobs)}


def normal_choices(words: Sequence[str]) -> list[str]:
    """The words of a job, `eviction={name:lru_k,k:3}` among them as a choice and its options."""
    return [normal for word in words for normal in (normalise([word]) if "={" in word else [word])]


def chosen_options(jobs: Sequence[Sequence[str]]) -> list[list[str]]:
    """Jobs in which each choice of a sweep has only the options that it knows, each job once: the cross product of
    `eviction=lru,lru_k eviction.k=2,3` is lru, and lru_k with both. What is left out is said on standard error.

    An option that no choice of the sweep knows stays, and is refused.
    """
    choices: dict[str, set[str]] = {}
    for words in jobs:
        for word in words:
            if (key := key_of(word)) in registry.groups():
                choices.setdefault(key, set()).add(unquote(word.partition("=")[2]))
    known = {
        (group, name): options
        for group, names in choices.items() if len(names) > 1
        for name in names if (options := registry.options_known(group, name)) is not None
    }  # fmt: skip
    left_out: dict[tuple[str, str], None] = {}
    found: dict[tuple[str, ...], None] = {}
    for words in jobs:
        chosen = {key_of(word): unquote(word.partition("=")[2]) for word in words if key_of(word) in choices}
        kept = []
        for word in words:
            group, _, option = key_of(word).partition(".")
            mine, option = known.get((group, chosen.get(group, ""))), option.partition(".")[0]
            if (
                not option
                or mine is None
                or option in mine
                or not any(option in known.get((group, name), ()) for name in choices[group])
            ):
                kept.append(word)
            else:
                left_out[f"{group}.{option}", chosen[group]] = None
        found[tuple(kept)] = None
    for key in dict.fromkeys(key for key, _ in left_out):
        names = ", ".join(name for one, name in left_out if one == key)
        print(f"{key} is left out where the choice has no such option: {names}", file=sys.stderr)  # noqa: T201
    return [list(words) for words in found]


def _require_so_many(overrides: Sequence[Override]) -> None:
    """Refuse a sweep of more jobs than anybody waits for, before its list is made.

    Raises:
        ConfigError: names the override that has most values.
    """
    counts = {override.input_line: num_values(override) for override in overrides if override.is_sweep_override()}
    if math.prod(counts.values()) > MOST_JOBS:
        widest = max(counts, key=lambda word: counts[word])
        raise ConfigError(f"{widest}: the sweep has more than {MOST_JOBS:,} jobs")


def num_values(override: Override) -> int:
    """How many values an override asks for, counted up to MOST_JOBS + 1.

    Raises:
        ConfigError: it is no list of values, such as an interval.
    """
    try:
        return sum(1 for _ in islice(override.sweep_iterator(), MOST_JOBS + 1))
    except (HydraException, ValueError) as error:
        raise ConfigError(
            f"{override.input_line}: {error}; a sweep takes a list of values, choice(...), range(...) or glob(...)"
        ) from error


def _require_one_that_can_run(configs: Sequence[DictConfig]) -> None:
    """Raise what is wrong with the first of these configurations, where no other can be run either."""
    refused: list[FrameworkError] = []
    for config in configs:
        try:
            checked(without_hydra(config))
        except FrameworkError as error:
            refused.append(error)
        else:
            return
    raise refused[0]


def _representatives(jobs: Sequence[Sequence[str]]) -> Iterator[Sequence[str]]:
    """A few jobs that together say every word of the sweep: composing these finds what cannot be composed."""
    seen: set[str] = set()
    for words in jobs:
        if not seen.issuperset(words):
            seen.update(words)
            yield words


_MOST_UNWRITTEN = 3
"""Jobs in a row that cannot write, after which the next are not tried."""


def _in_process(sweep: _Sweep, jobs: Sequence[_Job], done: Mapping[int, Outcome]) -> Iterator[Outcome]:
    """One after another; stops when so many in a row cannot write, since the next would neither.

    What another process runs comes last, when it may have ended.
    """
    unwritten = 0
    elsewhere: list[tuple[_Job, Outcome]] = []
    with sweep_progress(len(jobs), len(done), enabled=bool(sweep.config.run.progress)) as tick:
        for place, job in enumerate(jobs):
            outcome = done.get(job.number)
            if outcome is None:
                outcome = job.done() or _run(job)  # another process may have done it meanwhile
                tick(outcome)
            if outcome.state == "elsewhere":
                elsewhere.append((job, outcome))
            else:
                yield outcome
            unwritten = unwritten + 1 if outcome.disk else 0
            left = len(jobs) - place - 1
            if unwritten >= _MOST_UNWRITTEN and left:
                reason = f"stopped after {unwritten} jobs in a row that could not write; {left} jobs were not run"
                yield Outcome(directory=None, sweep=str(sweep.folder), status=1, state="failed", reason=reason)
                break
    yield from (job.done() or outcome for job, outcome in elsewhere)


def _run(job: _Job) -> Outcome:
    setup_globals()
    with no_empty_folders(job.directory):
        returned = run_job(
            hydra_context=job.sweep.context,
            task_function=job.sweep.task,
            config=job.sweep.composed(job.number, job.launched),
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
    outcome = returned.return_value
    assert isinstance(outcome, Outcome)
    return outcome


def _launched(
    sweep: _Sweep, sweeper: BasicSweeper, jobs: Sequence[_Job], done: Mapping[int, Outcome]
) -> Iterator[Outcome]:
    """What is missing goes to the launcher, in batches where the user set `hydra.sweeper.max_batch_size`."""
    assert sweeper.launcher is not None
    yield from done.values()
    missing = [job.launched for job in jobs if job.number not in done]
    folders = [job.directory for job in jobs if job.number not in done]
    state = Singleton.get_state()
    size = sweeper.max_batch_size or max(1, len(missing))
    with sweep_progress(len(jobs), len(done), enabled=bool(sweep.config.run.progress)) as tick:
        for start in range(0, len(missing), size):
            with handed_on(), watched(folders[start : start + size], tick) as finish:
                returned = sweeper.launcher.launch(missing[start : start + size], initial_job_idx=start)
            for one in returned:
                outcome: Outcome = one.return_value
                finish(outcome)
                yield outcome
            Singleton.set_state(state)


def single_run_config(hydra: Any, name: str, words: Sequence[str]) -> DictConfig | None:
    """The configuration of the one run that `words` ask for; None where they, or a file they name, ask for a sweep.

    Raises:
        hydra's own errors: a word that cannot be composed.
    """
    try:
        config: DictConfig = hydra.compose_config(config_name=name, overrides=list(words), run_mode=RunMode.RUN)
    except HYDRA_ERRORS:
        if hydra.get_mode(name, list(words)) == RunMode.MULTIRUN:
            return None
        raise
    if config.hydra.mode == RunMode.MULTIRUN:
        return None
    config.hydra.mode = RunMode.RUN
    return config


def single_run(hydra: Any, name: str, config: DictConfig, task: Callable[[DictConfig], Any]) -> Any:
    """What `task` returns for this configuration, run as `hydra.run` does: in its folder, between its callbacks."""
    directory = Path(str(config.hydra.run.dir)).absolute()
    configure_log(config.hydra.hydra_logging, config.hydra.verbose)
    callbacks = Callbacks(config)
    callbacks.on_run_start(config=config, config_name=name)
    with no_empty_folders(directory):
        done = run_job(
            hydra_context=HydraContext(config_loader=hydra.config_loader, callbacks=callbacks),
            task_function=task,
            config=config,
            job_dir_key="hydra.run.dir",
            job_subdir_key=None,
        )
    callbacks.on_run_end(config=config, config_name=name, job_return=done)
    return done.return_value
