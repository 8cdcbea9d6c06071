"""The command line: `python -m framework.run [OVERRIDES]` and the console script `kvcache-framework`.

The only module that runs Hydra: overrides in, one checked plain dict out, and `framework.build.run` called with it,
once a job. Exit status: 0 done, 1 a run failed, 2 the request could not be understood.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from framework.errors import ConfigError, DuplicatePlugin, FrameworkError, PluginError, PluginImportError, UnknownPlugin

if TYPE_CHECKING:
    import argparse

    from omegaconf import DictConfig

FAILED, REFUSED, INTERRUPTED = 1, 2, 130
_REFUSALS = (ConfigError, UnknownPlugin, DuplicatePlugin, PluginImportError, PluginError)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one job left: its directory (None if it never got that far), its exit status, why it failed."""

    directory: str | None
    status: int = 0
    reason: str = ""


def main() -> None:
    """The console script: runs `sys.argv` and exits with its status."""
    sys.exit(call(sys.argv[1:]))


def call(arguments: Sequence[str]) -> int:
    """The exit status of one command line, as `main` would run it. Prints; raises only under HYDRA_FULL_ERROR=1."""
    outcomes: list[Outcome] = []
    try:
        if _asks(arguments, "--help", "-h"):
            from framework.config.help import help_text

            print(help_text(), end="")  # noqa: T201
            return 0
        if _asks(arguments, "--version"):
            from framework.config.help import version_text

            print(version_text())  # noqa: T201
            return 0
        _dispatch(list(arguments), outcomes)
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # `| head` has read enough; keep the interpreter from complaining at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if _full_error():
            raise
        _complain(_sentence(error))
        return REFUSED if isinstance(error, _REFUSALS) else FAILED
    finally:
        _finish(outcomes)
    return _status(outcomes)


def compose(overrides: Sequence[str] = (), *, config_dir: str | Path | None = None) -> DictConfig:
    """The checked configuration of these overrides, in either spelling, for notebooks: see `framework.config.compose`.

    Raises:
        FrameworkError: an override, value or component that cannot be run.
    """
    from framework.config import compose as composing

    return composing.compose(overrides, config_dir=config_dir)


def job(config: DictConfig) -> Outcome:
    """One run: the task that Hydra calls, in this process or in a launcher's worker. A failure is an outcome."""
    from hydra.core.hydra_config import HydraConfig

    hydra = HydraConfig.get()
    directory = str(Path(hydra.runtime.output_dir).absolute())
    try:
        from framework.config.compose import checked

        settings = checked(config)
        settings["run"]["dir"] = directory
        if _is_sweep(hydra) and not settings["run"]["group"]:
            settings["run"]["group"] = Path(hydra.sweep.dir).name
        from framework.build import run

        result = run(settings)
        _print_table(result, directory, sweep=_is_sweep(hydra))
    except Exception as error:
        if _full_error():
            raise
        reason = _sentence(error)
        _complain(_job_name(hydra) + reason)
        return Outcome(directory, REFUSED if isinstance(error, _REFUSALS) else FAILED, reason)
    reason = _what_went_wrong(result)
    if reason:
        _complain(f"{_job_name(hydra)}{reason}; see {directory}")
    return Outcome(directory, FAILED if reason else 0, reason)


def _job_name(hydra: Any) -> str:
    return f"job {hydra.job.num} ({hydra.job.override_dirname}): " if _is_sweep(hydra) else ""


def _print_table(result: Mapping[str, Any], directory: str, *, sweep: bool) -> None:
    """The table of one run; a sweep's jobs are told in its report instead."""
    if sweep:
        return
    from framework.report.console import print_result

    print_result({**result, "run_directory": directory})


def _is_sweep(hydra: Any) -> bool:
    return str(hydra.mode).endswith("MULTIRUN")


def _what_went_wrong(result: Mapping[str, Any]) -> str:
    """A run that ended is still a failure when a request failed or the tokens differ from the dense model's."""
    reasons = []
    if result.get("status", "ok") != "ok":
        reasons.append(f"the run's status is {result['status']!r}")
    if result.get("num_failed", 0):
        reasons.append(f"{result['num_failed']} requests failed")
    if result.get("dense_mismatches", 0):
        reasons.append(f"{result['dense_mismatches']} requests differ from the dense model")
    return " and ".join(reasons)


def _dispatch(arguments: list[str], outcomes: list[Outcome]) -> None:
    from hydra._internal.utils import get_args_parser

    from framework.config import compose, folder, overrides

    parser = get_args_parser()
    parser.error = _refuse_option(parser)  # type: ignore[method-assign]
    args = parser.parse_args(arguments)
    conf = folder.conf_folder()
    groups = folder.groups_of(conf)
    args.overrides = overrides.normalise(args.overrides, groups, lambda word: Path(word).exists())
    name = args.config_name or compose.CONFIG_NAME
    if args.shell_completion:
        from framework.config.completion import complete

        path = compose.search_path(conf, args.config_dir)
        print(complete("".join(arguments[-1:]), groups, path))  # noqa: T201
    elif args.cfg or args.info or args.hydra_help:
        _inspect(args, parser, conf, name)
    else:
        if args.experimental_rerun:
            raise ConfigError("--experimental-rerun is not supported; repeat the overrides of the run's config.yaml")
        path = compose.search_path(conf, args.config_dir, importable_only=True)
        outcomes.extend(_run(args, compose.create_hydra(path), name, path))
        if not outcomes:
            raise ConfigError("the sweep has no job: a glob matches nothing; --help lists what is installed")


def _inspect(args: argparse.Namespace, parser: argparse.ArgumentParser, conf: Path, name: str) -> None:
    """`--cfg`, `--info` and `--hydra-help` are Hydra's own, over our search path; the config is checked first."""
    from hydra.core.global_hydra import GlobalHydra

    from framework.config import compose

    path = compose.search_path(conf, args.config_dir)
    if args.cfg:
        compose.checked(compose.compose_normal(args.overrides, path, name), missing_allowed=True)
    hydra = compose.create_hydra(path)
    try:
        if args.cfg:
            hydra.show_cfg(name, args.overrides, args.cfg, args.package, args.resolve)
        elif args.info:
            hydra.show_info(args.info, name, args.overrides)
        else:
            hydra.hydra_help(name, parser, args)
    finally:
        GlobalHydra.instance().clear()


def _run(args: argparse.Namespace, hydra: Any, name: str, path: Any) -> Iterator[Outcome]:
    from hydra.core.global_hydra import GlobalHydra
    from hydra.types import RunMode

    from framework.config.sentences import HYDRA_ERRORS, as_config_error

    try:
        mode = RunMode.MULTIRUN if args.multirun else hydra.get_mode(name, args.overrides) or RunMode.RUN
        words = [*args.overrides, f"hydra.mode={mode.name}"]
        if mode == RunMode.RUN:
            yield hydra.run(config_name=name, task_function=job, overrides=words).return_value
        else:
            yield from _jobs(hydra.multirun(config_name=name, task_function=job, overrides=words))
    except HYDRA_ERRORS as error:
        raise as_config_error(error, args.overrides, path) from error
    finally:
        GlobalHydra.instance().clear()


def _jobs(returned: Any) -> Iterator[Outcome]:
    """Every outcome in what a sweeper returned: JobReturns, in lists of any depth, or nothing."""
    if isinstance(returned, (list, tuple)):
        for entry in returned:
            yield from _jobs(entry)
    elif returned is not None and isinstance(returned.return_value, Outcome):
        yield returned.return_value


def _finish(outcomes: Sequence[Outcome]) -> None:
    """The end of every command, failed or not: where a sweep's report belongs."""
    if len(outcomes) > 1 and any(outcome.status for outcome in outcomes):
        failed = sum(1 for outcome in outcomes if outcome.status)
        _complain(f"{failed} of {len(outcomes)} jobs failed")


def _status(outcomes: Sequence[Outcome]) -> int:
    statuses = {outcome.status for outcome in outcomes if outcome.status}
    if len(outcomes) == 1:
        return outcomes[0].status
    return FAILED if statuses else 0


def _asks(arguments: Sequence[str], *flags: str) -> bool:
    return any(flag in arguments for flag in flags)


def _refuse_option(parser: argparse.ArgumentParser) -> Any:
    def refuse(message: str) -> None:
        from framework.parameters import did_you_mean

        offered = [option for action in parser._actions for option in action.option_strings]
        words = [word for word in message.split() if word.startswith("-")]
        near = did_you_mean(words[0], offered) if words and "unrecognized" in message else ""
        raise ConfigError(f"command line: {message}{near}")

    return refuse


def _sentence(error: Exception) -> str:
    if isinstance(error, FrameworkError):
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    text = " ".join(str(error).split())
    return f"internal error: {type(error).__name__}: {text}; set HYDRA_FULL_ERROR=1 for the traceback"


def _complain(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)  # noqa: T201


def _full_error() -> bool:
    return os.environ.get("HYDRA_FULL_ERROR") == "1"


if __name__ == "__main__":
    from framework.run import main as importable_main

    importable_main()
