"""Parsing of a plain dict into a checked `Config`. Knows no Hydra."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from framework import registry
from framework.config.config import GROUPS, Choice, Config, component, default_choices
from framework.config.sections import OF_A_MODEL
from framework.errors import ConfigError, listing, shown
from framework.interfaces.below import Below
from framework.interfaces.mode import Mode
from framework.registry.components import build_component

COMPOSITIONS = ("experiment", "sweep")
"""Groups of the command line that leave nothing of their own in a configuration."""


def parse(config: Mapping[str, Any]) -> Config:
    """The typed configuration, or the first reason why it cannot be run.

    Args:
        config: plain. A key that is absent has its default; a component is its name, or a mapping with a `name` and
            options. Nothing is built, but the classes of the chosen plugins are imported.

    Raises:
        ConfigError: an unknown key, a wrong type, a value out of bounds; names the key and the nearest valid one.
        UnknownPlugin, DuplicatePlugin, PluginImportError, PluginError: a chosen component.
    """
    if not isinstance(config, Mapping):
        raise ConfigError(f"a configuration is a mapping, found {shown(config)}")
    values = {str(key): value for key, value in config.items() if key not in COMPOSITIONS}
    for key in values:
        if key not in Config.model_fields and key in registry.kinds():
            chosen = registry.kind_of(key).chosen.format(kind=key, name="NAME")
            raise ConfigError(f"unknown key {key!r}; it is chosen by {chosen}")
    values["mode"] = component("mode", values.get("mode", default_choices()["mode"]))
    for group in GROUPS:
        if group not in values:
            of_mode = registry.load("mode", values["mode"].name).workload if group == "workload" else ""  # type: ignore[attr-defined]
            values[group] = Choice(of_mode or str(default_choices()[group]))  # perhaps never imported
    checked = Config(**{"run": {}, **values})
    _check_mode(checked)
    replays = "none" in registry.load("mode", checked.mode.name).executors  # type: ignore[attr-defined]
    if checked.replay.costs is not None and not (replays and checked.executor in (None, "none")):
        raise ConfigError(
            f"replay.costs times the steps of mode=replay executor=none, found mode={checked.mode.name} "
            f"executor={checked.executor}; leave it out"
        )
    below: Below = build_component("below", checked.below.plain(), {})
    below.check(checked)
    if checked.run.sweep:  # empty where nothing is swept
        check_below("run.sweep", checked.run.sweep, "hydra.sweep.dir=FOLDER")
    return checked


def check_below(key: str, name: str, elsewhere: str) -> None:
    """Refuse a name by which a folder would not lie below sweeps/; `elsewhere` says how to put it elsewhere.

    Raises:
        ConfigError: with what to set instead.
    """
    path = PurePath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ConfigError(
            f"{key} is a folder's name below sweeps/, found {shown(name)}; for a folder elsewhere set {elsewhere}"
        )


def _check_mode(config: Config) -> None:
    mode: Mode = build_component("mode", config.mode.plain(), {})
    if config.executor not in (None, *mode.executors):
        offered = listing(("null", *mode.executors))
        raise ConfigError(f"executor={config.executor} cannot be in mode={config.mode.name}, whose are {offered}")
    mode.check(config)


def without_effect(config: Config) -> list[str]:
    """One sentence on the settings of cache, engine, faults and run, other than their defaults, that nothing reads."""
    mode: type[Mode] = registry.load("mode", config.mode.name)
    unread = mode.unread(config.plain())
    found = [
        f"{section.section}.{name}={getattr(section, name)}"
        for section in (config.cache, config.engine, config.faults, config.run)
        for name, one in type(section).model_fields.items()
        if (
            {section.section, f"{section.section}.{name}"} & {*unread}
            or ("model" in unread and OF_A_MODEL in one.metadata)
        )
        and getattr(section, name) != one.default
    ]
    return [f"no effect in mode={config.mode.name}: {', '.join(found)}"] if found else []
