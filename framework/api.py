"""The Python API of a run: a plain dict becomes a run. Knows no Hydra."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from framework.config.check import parse
from framework.config.config import Config
from framework.errors import OutOfMemory
from framework.interfaces.mode import Mode, OnBegin
from framework.registry.components import build_component
from framework.registry.culprit import raise_named

_TORCHS = re.compile("can't allocate memory|out of memory")
"""What torch says as a RuntimeError where memory is short, on a CPU and on CUDA."""


def run(config: Mapping[str, Any] | Config, *, on_begin: OnBegin = lambda path: None) -> dict[str, Any]:
    """Run one configuration to its end and return its result, as `result.json` holds it.

    Args:
        config: resolved and plain, or parsed already. `mode` chooses serve (a model answers), replay (a trace, no
            model) or another that is installed. It, `allocator`, `eviction`, `hash`, `backend`, `model`, `workload`
            and `tracker` are names, or mappings with a `name` and options; `cache`, `engine`, `replay` and `run` are
            sections; `seed` is the run's. Absent keys have their defaults, but for `run.dir`.
        on_begin: called with the run directory when workload, model and plugins have been read and it is taken over.

    Raises:
        FrameworkError: a configuration that cannot be run, with what to change.
        PluginError: a plugin answered what it may not, or a call into one took longer than `run.stall_timeout_s`.
        Exception: what else a plugin raised, with a note that names distribution, class and method.
        TimedOut: the run took longer than `run.timeout_s`.
        OutOfMemory: this machine's memory is too small for what was asked.
    """
    try:
        parsed = config if isinstance(config, Config) else parse(config)
        mode: Mode = build_component("mode", parsed.mode.plain(), {})
        return mode.run(parsed, on_begin)
    except BaseException as error:
        of_memory = isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _TORCHS.search(str(error)))
        if isinstance(error, OutOfMemory) or not of_memory:
            raise_named(error)
        raise OutOfMemory(
            f"this machine's memory is too small for the run ({str(error) or 'MemoryError'}); lower cache.num_blocks, "
            "engine.max_batch_requests, engine.max_model_len or the model's size"
        ) from error
