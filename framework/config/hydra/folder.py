"""Where do our YAML files lie, and which groups do they make?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from framework import registry
from framework.config.hydra.overrides import Groups
from framework.errors import ConfigError

FILES = {"model": "checkpoint", "workload": "prompts"}
"""Group -> its option that takes a file or hub id as `path`."""


def conf_folder() -> Path:
    """The conf folder: inside the package (wheel), else next to it (checkout).

    Raises:
        ConfigError: neither is there.
    """
    package = Path(__file__).resolve().parents[2]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise ConfigError(f"no conf/config.yaml in {package} nor next to it; reinstall with `pip install -e .`")


def default_choices(folder: Path) -> dict[str, str | None]:
    """Group -> its default option, in the order of config.yaml's defaults list. Reads YAML; imports no Hydra."""
    import yaml

    with (folder / "config.yaml").open(encoding="utf-8") as file:
        entries: list[Any] = yaml.safe_load(file)["defaults"]
    choices: dict[str, str | None] = {}
    for entry in entries:
        if isinstance(entry, dict):
            for group, option in entry.items():
                if not str(group).startswith("override "):
                    choices[str(group).split()[-1]] = option
    return choices


def options_of(group: str, folder: Path) -> list[str]:
    """Every option of a group: our YAML files and, for a kind of plugin, the entry points."""
    names = {path.stem for path in (folder / group).glob("*.yaml")}
    if group in registry.kinds():
        names.update(registry.names(group))
    return sorted(names)


def groups_of(folder: Path) -> Groups:
    """What the override normaliser needs to know of our groups."""
    names = frozenset(default_choices(folder))
    return Groups(
        names=names,
        open=names & frozenset(registry.kinds()),
        files={group: option for group, option in FILES.items() if group in names},
        options={group: options_of(group, folder) for group in FILES},
    )
