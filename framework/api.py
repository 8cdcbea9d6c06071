"""A plain dict becomes a run. Knows no Hydra: scripts, notebooks, tests and the command line all enter here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from framework.config.check import check_executor
from framework.errors import ConfigError
from framework.modes.watchdog import Watchdog
from framework.registry.options import section

MODES = ("serve", "replay", "kernel")


def run(config: Mapping[str, Any]) -> dict[str, Any]:
    """Run one configuration to its end and return its result, as `result.json` holds it.

    Args:
        config: resolved and plain. `mode` chooses serve (a model answers), replay (a trace, no model) or kernel
            (attention backends alone). `allocator`, `eviction`, `hash`, `backend`, `model`, `workload` and `tracker`
            are mappings with a `name` and options; `cache`, `engine`, `run` are sections; `seed` is the run's.

    Raises:
        FrameworkError: a configuration that cannot be run, with what to change.
        PluginError: a call into a plugin took longer than `run.stall_timeout_s`; TimedOut: all of it than
            `run.timeout_s`.
    """
    settings, mode = section(config, "run"), config.get("mode", "serve")
    # A backend's first call in mode=kernel compiles and tunes, which may take any time.
    stall_s = None if mode == "kernel" else settings.get("stall_timeout_s")
    with Watchdog(stall_s=stall_s, timeout_s=settings.get("timeout_s"), on_abandon=_leave_failure(settings)):
        return _run(mode, config)


def _run(mode: str, config: Mapping[str, Any]) -> dict[str, Any]:
    check_executor(mode, config.get("executor"))
    if mode == "serve":
        from framework.modes.serve import serve

        return serve(config)
    if mode == "replay":
        from framework.modes.replay import replay

        return replay(config)
    if mode == "kernel":
        from framework.modes.kernel import kernel

        return kernel(config)
    raise ConfigError(f"no mode {mode!r}; there are {', '.join(MODES)}")


def _leave_failure(settings: Mapping[str, Any]) -> Callable[[str], None]:
    """A process that has to exit in the middle of a sweep's job leaves the reason in the job's folder."""

    def leave(reason: str) -> None:
        from framework.results.layout import JOB
        from framework.results.reading import read_json
        from framework.sweep.job import fail

        directory = Path(str(settings.get("dir")))
        if (job := read_json(directory / JOB)) is not None:
            fail(directory, "failed", reason, job.get("overrides") or ())

    return leave
