"""The command line: `python -m framework.run [OVERRIDES]` and the console script `kvcache-framework`.

Overrides in, one checked configuration out, and `framework.api.run` called with it, once a job. Exit status: see
`framework.cli.exit`.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from framework import __version__
from framework.cli import COMMAND
from framework.cli.exit import (
    DONE,
    FAILED,
    FULL_ERROR,
    INVALID,
    command,
    complain,
    drop_output,
    end_with_parent,
    exit_with,
    full_error,
    output_failed,
    sentence,
    status_of,
)
from framework.errors import BackendUnavailable, ConfigError, FrameworkError, RunDirectoryError, RunDirectoryInUse
from framework.files.atomic import is_disk_failure

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from framework.config.config import Config
    from framework.sweep.job import Outcome, State


_NOT_HYDRAS = {
    r"hydra\.sweep\.subdir=": "is not supported: a job's folder is named after its overrides; set run.sweep=NAME",
    r"hydra/sweeper=(?!resumable$)": "is not supported: the framework's own leaves out what is done; "
    "`python -m framework search` lets optuna choose",
}
"""Words of Hydra's that are refused, as patterns, and what to do instead."""


def main() -> None:
    """The console script: runs `sys.argv` and exits with its status."""
    os.environ.pop(COMMAND, None)  # of a worker that started this process: what is run here is said by its own
    exit_with(lambda: call(sys.argv[1:]))


def call(arguments: Sequence[str]) -> int:
    """The exit status of one command line, as `main` would run it. Prints; raises only under HYDRA_FULL_ERROR=1."""
    from framework.sweep.job import ENDED

    ENDED.clear()
    try:
        status = _called(arguments)
    finally:
        _finish(ENDED)
    return status or _status(ENDED)


@command
def _called(arguments: Sequence[str]) -> int:
    if {"--help", "-h"} & set(arguments):
        from framework.config.hydra.help import help_text

        print(help_text(), end="")  # noqa: T201
    elif "--version" in arguments:
        print(f"kvcache-framework {__version__}")  # noqa: T201
    else:
        return _dispatch(arguments)
    return DONE


def job(config: DictConfig) -> Outcome:
    """One run: the task that Hydra calls, in this process or in a launcher's worker. A failure is an outcome."""
    from hydra.core.hydra_config import HydraConfig

    from framework.api import run
    from framework.registry.culprit import named
    from framework.results.reading import what_went_wrong
    from framework.sweep.job import ENDED, JobDone, Outcome, fail

    end_with_parent()
    hydra = HydraConfig.get()
    sweep = str(Path(hydra.sweep.dir).absolute()) if _is_sweep(hydra) else None
    directory = str(Path(hydra.runtime.output_dir))
    state: State = "ok"
    status, reason, failure = DONE, "", None
    result: dict[str, Any] = {}
    settings: Config | None = None
    began_s = time.monotonic()
    try:
        settings, on_begin = _prepare(config, hydra, directory, sweep)
        result = run(settings, on_begin=on_begin)
        if skipped := result.get("num_skipped_lines"):
            complain(f"{_job_name(hydra)}{skipped:,} lines of the trace were left out (workload.on_error=skip)")
        if unit := result.get("guessed_time_unit"):
            complain(f"{_job_name(hydra)}times of the trace are read in {unit}; workload.time_unit overrules it")
        if reason := what_went_wrong(result):
            status, state = FAILED, "failed"
            complain(f"{_job_name(hydra)}{reason}; see {directory}")
    except (Exception, SystemExit) as error:  # what exits outside of the run itself ends its job, not the sweep
        failure = named(error)
        reason = sentence(failure)
        status, state = status_of(failure), "failed"
        if isinstance(error, BackendUnavailable):
            state = "unavailable"
        elif isinstance(error, RunDirectoryInUse) and sweep is not None:
            status, state = DONE, "elsewhere"
        elif isinstance(error, JobDone):
            status, state, reason = DONE, "skipped", ""
        if state not in ("elsewhere", "skipped"):
            complain(_job_name(hydra) + reason)
    if sweep is None:
        status = _show(settings, result, directory) or status
    elif status != DONE:
        fail(Path(directory), state, reason, list(hydra.overrides.task))
    _remove_empty(Path(directory))
    outcome = Outcome(
        directory=directory,
        sweep=sweep,
        status=status,
        state=state,
        reason=reason,
        disk=failure is not None and is_disk_failure(failure),
        mode="" if settings is None else settings.mode.name,
        report=config.run.report or None,
        took_s=time.monotonic() - began_s,
        error=None if sweep else failure,
    )
    if sweep is None:
        ENDED.append(outcome)
    return outcome


def _remove_empty(directory: Path) -> None:
    """Hydra makes a job's folder before anybody knows whether it can be run."""
    with suppress(OSError):
        while Path.cwd() in directory.parents:
            directory.rmdir()
            directory = directory.parent


def _prepare(
    config: DictConfig, hydra: Any, directory: str, sweep: str | None
) -> tuple[Config, Callable[[Path], None]]:
    """The settings of one run, checked, and what marks the folder of a sweep's job once that job begins."""
    from framework.config.check import without_effect
    from framework.config.hydra.compose import checked
    from framework.sweep.identity import identity
    from framework.sweep.job import begin

    if sweep is not None and not hydra.job.chdir and Path(hydra.runtime.cwd).is_dir():
        os.chdir(hydra.runtime.cwd)  # a cluster's worker starts elsewhere, and paths of the command line are relative
    settings = checked(config)
    on_begin: Callable[[Path], None] = lambda directory: None  # noqa: E731
    if sweep is None:
        for warning in without_effect(settings):
            complain(warning)
    else:
        on_begin = partial(begin, overrides=list(hydra.overrides.task), wanted=identity(settings.plain()))
        # The sweep's own progress has the terminal.
        settings = settings.changed(run=settings.run.changed(progress=False))
    return settings.changed(run=settings.run.changed(dir=directory)), on_begin


def _job_name(hydra: Any) -> str:
    return f"job {hydra.job.num} ({hydra.job.override_dirname}): " if _is_sweep(hydra) else ""


def _show(settings: Config | None, result: Mapping[str, Any], directory: str) -> int:
    """What one run found, if it has a result. Its exit status: FAILED where standard output cannot be written."""
    from framework.registry.components import build_component
    from framework.results.console import print_result

    if not result or settings is None:
        return DONE
    try:
        if not build_component("mode", settings.mode.plain(), {}).show([Path(directory)]):
            print_result({**result, "run_directory": directory})
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        complain(f"standard output cannot be written: {error.strerror}; the results are in {directory}")
        drop_output()
        return FAILED
    return DONE


def _is_sweep(hydra: Any) -> bool:
    return str(hydra.mode).endswith("MULTIRUN")


def _dispatch(arguments: Sequence[str]) -> int:
    import hydra

    from framework.config.config import conf_folder
    from framework.config.hydra.compose import CONFIG_NAME, HYDRA_ERRORS, VERSION_BASE, refusal
    from framework.config.hydra.overrides import normalise
    from framework.config.hydra.source import register
    from framework.config.hydra.sweeper import register_sweeper
    from framework.sweep.job import ENDED

    _refuse_unreadable(arguments)
    for word in arguments:
        for pattern, instead in _NOT_HYDRAS.items():
            if re.match(rf"\+*{pattern}", word):
                raise ConfigError(f"{word} {instead}")
    words = sorted(normalise(arguments), key=lambda word: "=" in word and word[0] != "-")  # -m may stand between them
    shows = {"--cfg", "-c", "--info", "-i", "--hydra-help", "--shell-completion", "-sc"} & set(words)
    register(importable_only=not shows)
    register_sweeper()
    begin = hydra.main(version_base=VERSION_BASE, config_path=str(conf_folder()), config_name=CONFIG_NAME)(job)
    try:
        with _hydras(words):
            if words[-1:] == ["query=bash"]:
                _complete(begin)
            else:
                begin()
    except SystemExit as end:  # of its argparse
        return INVALID if end.code else DONE
    except HYDRA_ERRORS as error:
        raise refusal(error, [word for word in words if "=" in word]) from error
    except OSError as error:  # Hydra makes the run directory before the job begins
        if error.filename is None:
            raise
        raise RunDirectoryError(
            error.errno or 0,
            f"run.dir or run.sweep: {error.filename!r} cannot be made: {error.strerror}; choose another",
        ) from error
    if full_error() and ENDED and ENDED[0].error is not None:
        raise ENDED[0].error
    return DONE


@contextmanager
def _hydras(words: Sequence[str]) -> Iterator[None]:
    """Hydra's command line, and its errors raised to us instead of printed."""
    from framework.tracking.provenance import handed_on

    arguments, full = sys.argv, os.environ.get(FULL_ERROR, "")
    with handed_on():  # the command as the user gave it
        sys.argv, os.environ[FULL_ERROR] = [arguments[0], *words], "1"
        try:
            yield
        finally:
            sys.argv, os.environ[FULL_ERROR] = arguments, full


def _complete(begin: Callable[[], None]) -> None:
    """Hydra's completion of a shell's line, in the user's own spelling; nothing where the line is wrong."""
    from framework.config.hydra.compose import HYDRA_ERRORS
    from framework.config.hydra.overrides import normalise

    line, _, word = os.environ.get("COMP_LINE", "").rpartition(" ")
    bare, printed = word.lstrip("+"), io.StringIO()
    with suppress(FrameworkError, *HYDRA_ERRORS), redirect_stdout(printed):
        os.environ["COMP_LINE"] = " ".join([*normalise(line.split()), bare])
        begin()
    print(" ".join(word.removesuffix(bare) + entry for entry in printed.getvalue().split()))  # noqa: T201


def _finish(outcomes: Sequence[Outcome]) -> None:
    """The end of every command, failed or not: a sweep's report is written here."""
    from framework.commands import run_command
    from framework.registry.components import build_component
    from framework.results.layout import FAILURE, RESULT

    sweeps = {outcome.sweep: outcome.report for outcome in outcomes if outcome.sweep is not None and outcome.report}
    for folder, report in sweeps.items():
        if not any(next(Path(folder).glob(f"*/{name}"), None) for name in (RESULT, FAILURE)):
            continue
        name, *options = shlex.split(report)
        try:
            run_command(name, [folder, *options])
        except Exception as error:  # the results are safe; `python -m framework report` can be asked again
            if output_failed(error):
                raise
            complain(f"no report of {folder}: {sentence(error)}")
    for mode in {outcome.mode for outcome in outcomes if outcome.mode and outcome.sweep is not None}:
        shown = [Path(one.directory) for one in outcomes if one.directory and one.mode == mode]
        build_component("mode", mode, {}).show(shown)
    for outcome in outcomes:
        if outcome.directory is None and outcome.reason:
            complain(outcome.reason)
    if len(outcomes) > 1 and any(_is_failure(outcome) for outcome in outcomes):
        failed = sum(1 for outcome in outcomes if _is_failure(outcome) and outcome.directory)
        complain(f"{failed} of {sum(1 for outcome in outcomes if outcome.directory)} jobs failed")
    if elsewhere := sum(outcome.state == "elsewhere" for outcome in outcomes):
        again = "run the same command again when they have ended"
        complain(f"{elsewhere} of {len(outcomes)} jobs are running elsewhere; {again}")


def _status(outcomes: Sequence[Outcome]) -> int:
    """A backend that cannot run here is a row of a sweep, not a failure of it, unless nothing could run."""
    if not outcomes:
        return 0
    if len(outcomes) == 1 or all(outcome.status for outcome in outcomes):
        return outcomes[0].status if len({outcome.status for outcome in outcomes}) == 1 else FAILED
    return FAILED if any(_is_failure(outcome) for outcome in outcomes) else 0


def _is_failure(outcome: Outcome) -> bool:
    return outcome.status != 0 and outcome.state != "unavailable"


def _refuse_unreadable(arguments: Sequence[str]) -> None:
    """Letters that this locale cannot read reach Python as lone surrogates, which no configuration can hold."""
    for word in arguments:
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            raise ConfigError(
                f"command line: {word!a} holds letters that cannot be read as {sys.getfilesystemencoding()}; "
                "set PYTHONUTF8=1, or a locale with UTF-8"
            )


if __name__ == "__main__":
    from framework.run import main as importable_main

    importable_main()
