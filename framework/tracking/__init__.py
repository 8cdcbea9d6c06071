"""Where results go: run directory, JSON lines, Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from framework.errors import ConfigError
from framework.files.jsonl import read_jsonl
from framework.results.reading import read_result
from framework.tracking.provenance import collect as collect_provenance
from framework.tracking.run_directory import RunDirectory
from framework.tracking.tracker import RunLabel, Tracker, Trackers, TrackerWarning

if TYPE_CHECKING:
    from framework.tracking.wandb import WandbTracker as WandbTracker

__all__ = [
    "RunDirectory",
    "RunLabel",
    "Tracker",
    "TrackerWarning",
    "Trackers",
    "build",
    "collect_provenance",
    "read_jsonl",
    "read_result",
]


def build(name: str, options: Mapping[str, Any] | None = None) -> list[Tracker]:
    """The trackers of `+tracker=name`, besides the run directory's JSON lines, which are always written.

    Args:
        name: `none` or `wandb`.
        options: keyword arguments of the tracker's constructor.

    Raises:
        ConfigError: no such tracker, or an option it does not have or allow.
    """
    from framework.registry.options import call_checked

    if name == "none":
        if options:
            raise ConfigError(f"tracker 'none' has no option {next(iter(options))!r}")
        return []
    if name == "wandb":
        from framework.tracking.wandb import WandbTracker

        return [call_checked("tracker.wandb", WandbTracker, options or {})]
    raise ConfigError(f"no tracker named {name!r}; there are: none, wandb")
