"""A plain dict becomes a run. Knows no Hydra: scripts, notebooks, tests and the command line all enter here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from framework.errors import ConfigError

MODES = ("serve", "replay", "kernel")


def run(config: Mapping[str, Any]) -> dict[str, Any]:
    """Run one configuration to its end and return its result, as `result.json` holds it.

    Args:
        config: resolved and plain. `mode` chooses serve (a model answers), replay (a trace, no model) or kernel
            (attention backends alone). `allocator`, `eviction`, `hash`, `backend`, `model`, `workload` and `tracker`
            are mappings with a `name` and options; `cache`, `engine`, `run` are sections; `seed` is the run's.

    Raises:
        FrameworkError: a configuration that cannot be run, with what to change.
    """
    mode = config.get("mode", "serve")
    if mode == "serve":
        from framework.serve import serve

        return serve(config)
    if mode == "replay":
        from framework.replay.mode import replay

        return replay(config)
    if mode == "kernel":
        from framework.kernel import kernel

        return kernel(config)
    raise ConfigError(f"no mode {mode!r}; there are {', '.join(MODES)}")


def section(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """One section of a configuration, as a dict of its own; empty when absent."""
    value = config.get(name) or {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be a section of settings, found {value!r}")
    return dict(value)
