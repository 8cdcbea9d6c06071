"""The defaults: of settings from their sections, of choices from the conf folder. Imports no Hydra."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from framework import registry
from framework.config.config import Config
from framework.config.sections import SECTIONS
from framework.config.setting import plain, settings_of
from framework.errors import ConfigError
from framework.model.options import MODELS


def conf_folder() -> Path:
    """The conf folder: inside the package (wheel), else next to it (checkout).

    Raises:
        ConfigError: neither is there.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise ConfigError(f"no conf/config.yaml in {package} nor next to it; reinstall with `pip install -e .`")


@lru_cache(maxsize=4)
def default_choices(folder: Path) -> dict[str, str | None]:
    """Group -> its default option, in the order of config.yaml's defaults list."""
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
    """Every option of a group: our YAML files, the models and, for a kind of plugin, the entry points."""
    names = {path.stem for path in (folder / group).glob("*.yaml")}
    if group == "model":
        names.update(MODELS)
    if group in registry.groups():
        names.update(registry.names(group))
    return sorted(names)


def default_settings() -> dict[str, Any]:
    """Every setting that has a default, as YAML holds it: the top level, then the sections."""
    found = {key: plain(default) for key, default, _ in settings_of(Config)}
    for name, section in SECTIONS.items():
        found[name] = {key.rpartition(".")[2]: plain(default) for key, default, _ in settings_of(section)}
    return found
