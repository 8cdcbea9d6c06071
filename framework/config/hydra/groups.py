"""Groups of the conf folder, as the normaliser of overrides needs them."""

from __future__ import annotations

from pathlib import Path

from framework import registry
from framework.config.defaults import default_choices, options_of
from framework.config.hydra.overrides import Groups

FILES = {"model": "checkpoint", "workload": "prompts"}
"""Group -> its option that takes a file or hub id as `path`."""


def groups_of(folder: Path) -> Groups:
    """The groups of the conf folder's defaults list."""
    names = frozenset(default_choices(folder))
    return Groups(
        names=names,
        open=names & frozenset(registry.groups()),
        files={group: option for group, option in FILES.items() if group in names},
        options={group: options_of(group, folder) for group in FILES},
    )
