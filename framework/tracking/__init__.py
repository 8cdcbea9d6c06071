"""Where results go: run directory, JSON lines, Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from framework import registry
from framework.interfaces.tracker import RunLabel, Tracker
from framework.tracking.provenance import checkout_state, handed_on
from framework.tracking.provenance import collect as collect_provenance
from framework.tracking.run_directory import RunDirectory
from framework.tracking.tracker import TrackedRun, TrackerWarning

__all__ = [
    "RunDirectory",
    "RunLabel",
    "TrackedRun",
    "Tracker",
    "TrackerWarning",
    "build",
    "checkout_state",
    "collect_provenance",
    "handed_on",
]


def build(name: str, options: Mapping[str, Any] | None = None) -> Tracker:
    """The tracker that `tracker=name` means, besides the run directory's JSON lines, which are always written.

    Raises:
        ConfigError: an option it does not have or allow.
        UnknownPlugin: no such tracker.
    """
    made: Tracker = registry.build("tracker", name, options)
    return made
