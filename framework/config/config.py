"""A configuration, typed and checked, as a mode receives it, and its defaults. Knows no Hydra."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from framework import registry
from framework.config.sections import CacheOptions, EngineOptions, FaultOptions, ReplayOptions, RunOptions
from framework.errors import ConfigError, shown
from framework.model.options import model_of, models
from framework.validation import Natural, Options, plain

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


def component(group: str, node: Any) -> Choice:
    """The component of a node, its options checked against its constructor where the group is a kind of plugin.

    Raises:
        ConfigError: no name, or an option it does not have or allow.
        UnknownPlugin, DuplicatePlugin, PluginImportError, PluginError: the plugin cannot be had.
    """
    if isinstance(node, Choice):
        return node
    if isinstance(node, str):
        node = {"name": node}
    if not isinstance(node, Mapping) or not isinstance(node.get("name"), str):
        raise ConfigError(f"{group} must be a name, or a mapping with a name, found {shown(node)}")
    options = {str(key): value for key, value in node.items() if key != "name"}
    if group in registry.kinds():
        options = registry.check_options(group, node["name"], options)
    elif group == "model":
        model_of(node["name"], options)
    return Choice(node["name"], options)


class Config(Options):
    """Everything that a run is asked. Made by `config.check.parse`; every value is present and within its bounds."""

    executor: Executor | None = Field(default=None, description="null: what the mode needs; replay: none | roofline")
    seed: Natural = Field(default=0, description="of workload, random weights, sampling and policies")
    device: str | None = Field(default=None, description="null: cuda where there is one, else cpu")
    observers: tuple[Mapping[str, Any], ...] = Field(
        default=(),
        description="who listens, as [explain, {name: kv_events, report_hits: true}]: the installed observers",
    )
    cache: CacheOptions = CacheOptions()
    engine: EngineOptions = EngineOptions()
    replay: ReplayOptions = ReplayOptions()
    run: RunOptions
    faults: FaultOptions = FaultOptions()
    mode: Choice
    allocator: Choice
    eviction: Choice
    hash: Choice
    backend: Choice
    model: Choice
    workload: Choice
    scheduling: Choice
    compression: Choice
    below: Choice
    tracker: Choice

    @field_validator("*", mode="before")
    @classmethod
    def _chosen(cls, value: Any, info: ValidationInfo) -> Any:
        if info.field_name in SECTIONS and isinstance(value, Mapping):
            return {str(key): entry for key, entry in value.items()}
        return component(str(info.field_name), value) if info.field_name in GROUPS else value

    @field_validator("cache", mode="after")
    @classmethod
    def _memory(cls, value: CacheOptions) -> CacheOptions:
        """With the memory that is chosen as `{"name": ..., **options}`."""
        if value.memory is None:
            return value
        return value.model_copy(update={"memory": component("memory", value.memory).plain()})

    @field_validator("observers", mode="before")
    @classmethod
    def _observers(cls, value: Any) -> tuple[dict[str, Any], ...]:
        """Each as `{"name": ..., **options}`; none twice."""
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"observers must be a list, found {shown(value)}; as in observers=[explain]")
        observers = tuple(component("observer", entry).plain() for entry in value)
        names = [entry["name"] for entry in observers]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ConfigError(f"observers names {twice[0]} twice; one is enough")
        return observers

    def choices(self) -> dict[str, Choice]:
        """Group -> the component chosen for it."""
        return {group: getattr(self, group) for group in GROUPS}

    def plain(self) -> dict[str, Any]:
        """The configuration as YAML and JSON hold it; `parse` of it is this configuration again."""
        return {**super().plain(), **{group: choice.plain() for group, choice in self.choices().items()}}


GROUPS = tuple(name for name, one in Config.model_fields.items() if one.annotation is Choice)
"""The groups of components, in the order they are shown."""
SECTIONS: Mapping[str, type[Options]] = MappingProxyType(
    {
        name: one.annotation
        for name, one in Config.model_fields.items()
        if isinstance(one.annotation, type) and issubclass(one.annotation, Options)
    }
)
"""Name -> its class, in the order that `--help` and config.yaml show them."""


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
        names.update(models())
    if group in registry.groups():
        names.update(registry.names(group))
    return sorted(names)


def default_settings() -> dict[str, Any]:
    """Every setting that has a default, as YAML holds it: the top level, then the sections."""
    defaults = {name: default for name, default in defaults_of(Config).items() if name not in SECTIONS}
    return defaults | {name: defaults_of(section) for name, section in SECTIONS.items()}


def defaults_of(options: type[Options]) -> dict[str, Any]:
    """The settings of a section that have a default, as YAML holds them."""
    return {name: plain(one.default) for name, one in options.model_fields.items() if not one.is_required()}
