"""A configuration, typed and checked, as a mode receives it, and its defaults. Knows no Hydra."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from framework import registry
from framework.config.sections import (
    SECTIONS,
    CacheOptions,
    EngineOptions,
    FaultOptions,
    ReplayOptions,
    RunOptions,
)
from framework.config.setting import Section, plain, setting, settings_of
from framework.errors import ConfigError
from framework.model.options import MODELS

Executor = Literal["model", "none", "roofline"]


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen component: its name and its own options, checked against its constructor.

    `name` is an installed one, `DISTRIBUTION:NAME`, `FILE.py:CLASS` or `MODULE:CLASS`.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """`{"name": ..., **options}`, as YAML holds it and `registry.components` takes it."""
        return {"name": self.name, **{key: plain(value) for key, value in self.options.items()}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Section):
    """Everything that a run is asked. Made by `config.check.parse`; every value is present and within its bounds."""

    executor: Executor | None = setting(None, "null: what the mode needs; replay: none | roofline")
    seed: int = setting(0, "of workload, random weights, sampling and policies", at_least=0)
    device: str | None = setting(None, "null: cuda where there is one, else cpu")
    observers: tuple[Mapping[str, Any], ...] = setting(
        (), "who listens, as [explain, {name: kv_events, report_hits: true}]: the installed observers"
    )
    cache: CacheOptions = field(default_factory=CacheOptions)
    engine: EngineOptions = field(default_factory=EngineOptions)
    replay: ReplayOptions = field(default_factory=ReplayOptions)
    run: RunOptions
    faults: FaultOptions = field(default_factory=FaultOptions)
    mode: Choice
    allocator: Choice
    eviction: Choice
    hash: Choice
    backend: Choice
    model: Choice
    workload: Choice
    below: Choice
    tracker: Choice

    def choices(self) -> dict[str, Choice]:
        """Group -> the component chosen for it."""
        return {name: value for name, value in self._items() if isinstance(value, Choice)}

    def plain(self) -> dict[str, Any]:
        """The configuration as YAML and JSON hold it; `parse` of it is this configuration again."""
        return {name: value.plain() if isinstance(value, (Section, Choice)) else value for name, value in self._items()}

    def _items(self) -> list[tuple[str, Any]]:
        return [(field_.name, getattr(self, field_.name)) for field_ in fields(self)]


GROUPS = tuple(field_.name for field_ in fields(Config) if field_.type == "Choice")
"""The groups of components, in the order they are shown."""


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


@lru_cache(maxsize=1)
def default_choices() -> dict[str, str | None]:
    """Group -> its default option, in the order of config.yaml's defaults list."""
    import yaml

    with (conf_folder() / "config.yaml").open(encoding="utf-8") as file:
        entries: list[Any] = yaml.safe_load(file)["defaults"]
    choices: dict[str, str | None] = {}
    for entry in entries:
        if isinstance(entry, dict):
            for group, option in entry.items():
                if not str(group).startswith("override "):
                    choices[str(group).split()[-1]] = option
    return choices


def options_of(group: str) -> list[str]:
    """Every option of a group: our YAML files, the models and, for a kind of plugin, the entry points."""
    names = {path.stem for path in (conf_folder() / group).glob("*.yaml")}
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
