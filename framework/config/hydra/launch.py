"""Whether a command is one run or a sweep, and the run of one: Hydra's own, composed once instead of twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra.core.utils import configure_log, run_job
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig

from framework.config.hydra.sentences import HYDRA_ERRORS
from framework.files.atomic import no_empty_folders


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
