"""The Python API of a run: a plain dict becomes a run. Knows no Hydra."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from framework.config.check import parse
from framework.config.config import Config
from framework.errors import OutOfMemory
from framework.modes.watchdog import Watchdog


def run(config: Mapping[str, Any] | Config) -> dict[str, Any]:
    """Run one configuration to its end and return its result, as `result.json` holds it.

    Args:
        config: resolved and plain, or parsed already. `mode` chooses serve (a model answers), replay (a trace, no
            model) or kernel (attention backends alone). `allocator`, `eviction`, `hash`, `backend`, `model`,
            `workload` and `tracker` are names, or mappings with a `name` and options; `cache`, `engine`, `replay`,
            `kernel` and `run` are sections; `seed` is the run's. Absent keys have their defaults, but for `run.dir`.

    Raises:
        FrameworkError: a configuration that cannot be run, with what to change.
        PluginError: a call into a plugin took longer than `run.stall_timeout_s`.
        TimedOut: the run took longer than `run.timeout_s`.
        OutOfMemory: this machine's memory is too small for what was asked.
    """
    parsed = config if isinstance(config, Config) else parse(config)
    settings = parsed.run
    # A backend's first call in mode=kernel compiles and tunes, which may take any time.
    stall_s = None if parsed.mode == "kernel" else settings.stall_timeout_s
    try:
        with Watchdog(stall_s=stall_s, timeout_s=settings.timeout_s, on_abandon=_leave_failure(settings.dir)):
            return _run(parsed)
    except MemoryError as error:
        if isinstance(error, OutOfMemory):
            raise
        raise OutOfMemory(
            f"this machine's memory is too small for the run ({error or 'MemoryError'}); lower cache.num_blocks, "
            "engine.max_batch_requests, engine.max_model_len or the model's size"
        ) from error


def _run(config: Config) -> dict[str, Any]:
    if config.mode == "serve":
        from framework.modes.serve import serve

        return serve(config.plain())
    if config.mode == "replay":
        from framework.modes.replay import replay

        return replay(config.plain())
    from framework.modes.kernel import kernel

    return kernel(config.plain())


def _leave_failure(folder: str) -> Callable[[str], None]:
    """A process that has to exit in the middle of a sweep's job leaves the reason in the job's folder."""

    def leave(reason: str) -> None:
        from framework.results.layout import JOB
        from framework.results.reading import read_json
        from framework.sweep.job import fail

        directory = Path(folder)
        if (job := read_json(directory / JOB)) is not None:
            fail(directory, "failed", reason, job.get("overrides") or ())

    return leave
