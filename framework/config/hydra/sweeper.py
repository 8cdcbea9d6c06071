"""Hydra's sweeper of this laboratory: sweeps that can be resumed, checked before a job starts."""

from __future__ import annotations

import base64
import itertools
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import run_job
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from framework import registry
from framework.cli.progress import sweep_progress
from framework.config.check import check_below
from framework.config.hydra.compose import HYDRA_ERRORS, checked, refusal, without_hydra
from framework.config.hydra.overrides import normalise, quote, unquote
from framework.errors import ConfigError, FrameworkError
from framework.files.once import read_once
from framework.files.secrets import masked
from framework.results.layout import RESULT, SWEEP
from framework.sweep.identity import Repeats, identity
from framework.sweep.job import (
    ENDED,
    Outcome,
    folder_name,
    folder_tail,
    is_done,
    key_of,
    require_sweep_folder,
    watched,
)

MOST_JOBS = 100_000
_MOST_UNWRITTEN = 3
"""Jobs in a row that cannot write, after which the next are not tried."""


class ResumableSweeper(Sweeper):
    """Runs what Hydra's basic sweeper would, each job in a folder named after its overrides, and only what is missing.

    In this process jobs run one by one; a launcher (joblib, submitit, ray) gets `max_batch_size` at once, or all. With
    `run.chunk=N` what it launches are N jobs each, one after the other in one process that reads each trace once.

    What each left is in `framework.sweep.job.ENDED`, as it ends; those that were done before are `skipped`.
    """

    __module__ = "hydra_plugins.framework"  # see register_sweeper

    def __init__(
        self, max_batch_size: int | None = None, params: dict[str, Any] | None = None, others: None = None
    ) -> None:
        self._batch, self._params = max_batch_size, params or {}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.master, self._loader = config, hydra_context.config_loader
        self._launcher: Launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=_Chunk(task_function, hydra_context, config), config=config
        )

    @property
    def folder(self) -> Path:
        return Path(str(self.master.hydra.sweep.dir)).absolute()

    def sweep(self, arguments: list[str]) -> Any:
        """Run the jobs of these overrides.

        Raises:
            ConfigError, hydra's own errors: a word that cannot be composed, or no job can be run; nothing was started.
        """
        jobs = chosen_options([normal_choices(words) for words in self._product(arguments)])
        if not jobs:
            raise ConfigError(
                "the sweep has no job: a range is empty or a glob matches nothing; --help lists what is installed"
            )
        self._check(jobs)
        require_sweep_folder(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(masked(OmegaConf.to_container(self.master, enum_to_str=True)), self.folder / SWEEP)
        self._run(self._planned(jobs))

    def _product(self, arguments: Sequence[str]) -> Iterator[Sequence[str]]:
        parser = OverridesParser.create(config_loader=self._loader)
        words = [*(f"{key}={value}" for key, value in self._params.items()), *arguments]
        given = {one.get_key_element(): one for one in parser.parse_overrides(words)}  # the command line's win
        if "run.dir" in given:
            raise ConfigError(
                "run.dir is for a single run; the jobs of a sweep lie below sweeps/NAME: set run.sweep=NAME"
            )
        check_below("run.sweep", str(self.master.run.sweep), "hydra.sweep.dir=FOLDER")
        _require_so_many(given.values())
        return itertools.product(
            *(
                [f"{key}={value}" for value in one.sweep_string_iterator()]
                if one.is_sweep_override()
                else [f"{key}={one.get_value_element_as_str()}"]
                for key, one in given.items()
            )
        )

    def _check(self, jobs: Sequence[Sequence[str]]) -> None:
        """Compose a few jobs that together say every word of the sweep. Raises where none of them could be run."""
        seen: set[str] = set()
        configs: list[DictConfig] = []
        for number, words in enumerate(jobs):
            if not configs or not seen.issuperset(words):
                seen.update(words)
                configs.append(self.composed(number, words))
        refused: list[FrameworkError] = []
        for config in configs:
            try:
                checked(without_hydra(config))
            except FrameworkError as error:
                refused.append(error)
            else:
                return
        raise refused[0]

    def composed(self, number: int, words: Sequence[str]) -> DictConfig:
        """The configuration of one job, Hydra's node included. Raises FrameworkError where it cannot be composed."""
        return _composed(self._loader, self.master, number, words)

    def _planned(self, jobs: Sequence[Sequence[str]]) -> list[_Job]:
        """The jobs, but for those that would repeat an earlier one; each in the folder that its overrides had in an
        earlier call, where the sweep may have varied other keys."""
        existing = {path.name.rpartition("-")[2]: path.name for path in self.folder.iterdir()}
        varied, repeats = varied_keys(jobs), Repeats()
        names = [existing.get(folder_tail(words)) or folder_name(words, varied) for words in jobs]
        every = [_Job(self, number, words, name) for number, (words, name) in enumerate(zip(jobs, names, strict=True))]
        planned = [job for job in every if not job.is_repeat(repeats)]
        if repeats.names and self.master.run.progress:
            which = ", ".join(f"{name} ({count})" for name, count in repeats.names.items())
            print(f"run with one seed only, since nothing in them uses it: {which}", file=sys.stderr)  # noqa: T201
        return planned

    def _run(self, jobs: Sequence[_Job]) -> None:
        """Launch what is missing; in this process stop where so many in a row cannot write.

        What another process runs comes last, when it may have ended.
        """
        here = self.master.hydra.runtime.choices["hydra/launcher"] == "basic"
        done = {job.number: outcome for job in jobs if (outcome := job.done()) is not None}
        missing = [job for job in jobs if job.number not in done]
        chunk = int(self.master.run.chunk)
        chunks = [missing[start : start + chunk] for start in range(0, len(missing), chunk)]
        size = 1 if here else max(1, (self._batch or len(missing)) // chunk)
        ENDED.extend(done.values())
        elsewhere: list[tuple[_Job, Outcome]] = []
        unwritten = 0
        with sweep_progress(len(jobs), len(done), enabled=bool(self.master.run.progress)) as tick:
            for start in range(0, len(chunks), size):
                batch = chunks[start : start + size]
                jobs_now = list(itertools.chain(*batch))
                watch = nullcontext(tick) if here else watched([job.directory for job in jobs_now], tick)
                with watch as finish:
                    returned = self._launcher.launch(
                        [_launched(jobs) for jobs in batch], initial_job_idx=jobs_now[0].number
                    )
                    outcomes = itertools.chain(*(one.return_value for one in returned))
                    for job, outcome in zip(jobs_now, outcomes, strict=True):
                        finish(outcome)
                        if outcome.state == "elsewhere":
                            elsewhere.append((job, outcome))
                        else:
                            ENDED.append(outcome)
                        unwritten = unwritten + 1 if outcome.disk else 0
                left = len(missing) - (start + size) * chunk
                if unwritten >= _MOST_UNWRITTEN and left > 0:
                    reason = f"stopped after {unwritten} jobs in a row that could not write; {left} jobs were not run"
                    ENDED.append(
                        Outcome(directory=None, sweep=str(self.folder), status=1, state="failed", reason=reason)
                    )
                    break
        ENDED.extend(job.done() or outcome for job, outcome in elsewhere)


@dataclass(frozen=True)
class _Chunk:
    """What a launcher is given to run: a job, and those that `hydra.sweeper.others` names, one after the other."""

    task: TaskFunction
    context: HydraContext
    master: DictConfig

    def __call__(self, config: DictConfig) -> list[Outcome]:
        others = HydraConfig.get().sweeper.others
        if not others:
            return [self.task(config)]
        with read_once():
            outcomes = [self.task(config)]
            for number, words in json.loads(base64.b64decode(others)):
                composed = _composed(self.context.config_loader, self.master, number, words)
                done = run_job(
                    hydra_context=self.context, task_function=self.task, config=composed,
                    job_dir_key="hydra.sweep.dir", job_subdir_key="hydra.sweep.subdir",
                )  # fmt: skip
                outcomes.append(done.return_value)
        return outcomes


def _launched(jobs: Sequence[_Job]) -> list[str]:
    """The words of the first of these jobs, with the others in one of them: whatever a launcher does to words, it does
    nothing to letters."""
    first, *others = jobs
    if not others:
        return first.launched
    text = json.dumps([(job.number, job.launched) for job in others]).encode()
    return [*first.launched, f"hydra.sweeper.others={quote(base64.b64encode(text).decode())}"]


def _composed(loader: ConfigLoader, master: DictConfig, number: int, words: Sequence[str]) -> DictConfig:
    try:
        config = loader.load_sweep_config(master, list(words))
    except HYDRA_ERRORS as error:
        raise refusal(error, words) from error
    with open_dict(config):
        config.hydra.job.id = config.hydra.job.num = number
    return config


def register_sweeper() -> None:
    """Let Hydra of this process make the sweeper, which it does by a name below `hydra_plugins` only."""
    Plugins.instance().register(ResumableSweeper)  # imports that package, where a Hydra plugin is installed
    package = sys.modules.setdefault("hydra_plugins", ModuleType("hydra_plugins"))
    package.framework = sys.modules[__name__]  # type: ignore[attr-defined]


@dataclass(frozen=True)
class _Job:
    """One job of a sweep. Composing takes a tenth of a second and the result a third of a MB: nothing keeps it."""

    sweep: ResumableSweeper
    number: int
    words: Sequence[str]
    name: str

    @property
    def directory(self) -> Path:
        return self.sweep.folder / self.name

    @property
    def launched(self) -> list[str]:
        """The words as Hydra composes them, its folders among them: the sweep is named after a mode that may vary."""
        sweep = quote(str(self.sweep.master.run.sweep))
        return [*self.words, f"run.sweep={sweep}", f"hydra.sweep.subdir={quote(self.name)}"]

    @cached_property
    def plain(self) -> dict[str, Any]:
        """The configuration checked. Raises FrameworkError: it cannot be run."""
        return checked(without_hydra(self.sweep.composed(self.number, self.launched))).plain()

    def is_repeat(self, repeats: Repeats) -> bool:
        """Whether it would give what an earlier one of this sweep gives."""
        try:
            return repeats.repeats(self.words, lambda: self.plain)
        except FrameworkError:
            return False  # the job itself will say why

    def done(self) -> Outcome | None:
        """The outcome of a job whose good result is there already."""
        if not (self.directory / RESULT).exists():
            return None
        try:
            if not is_done(self.directory, identity(self.plain)):
                return None
        except FrameworkError:
            return None  # the job itself will say why
        report = self.sweep.master.run.report or None
        return Outcome(directory=str(self.directory), sweep=str(self.sweep.folder), state="skipped", report=report)


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
    commands: dict[tuple[str, ...], None] = {}
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
        commands[tuple(kept)] = None
    for key in dict.fromkeys(key for key, _ in left_out):
        names = ", ".join(name for one, name in left_out if one == key)
        print(f"{key} is left out where the choice has no such option: {names}", file=sys.stderr)  # noqa: T201
    return [list(words) for words in commands]


def _require_so_many(overrides: Iterable[Override]) -> None:
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
