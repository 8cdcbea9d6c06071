"""Parsing of a plain dict into a checked `Config`. Knows no Hydra."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import PurePath
from typing import Any

from framework import registry
from framework.config.config import GROUPS, Choice, Config, default_choices
from framework.config.sections import SECTIONS
from framework.errors import ConfigError, shown
from framework.interfaces.below import Below
from framework.interfaces.mode import Mode
from framework.model.options import model_options
from framework.registry.components import build_component
from framework.registry.signatures import did_you_mean, listing

COMPOSITIONS = ("experiment", "sweep")
"""Groups of the command line that leave nothing of their own in a configuration."""


def parse(config: Mapping[str, Any]) -> Config:
    """The typed configuration, or the first reason why it cannot be run.

    Args:
        config: plain. A key that is absent has its default; a component is its name, or a mapping with a `name` and
            options. Nothing is built, but the classes of the chosen plugins are imported.

    Raises:
        ConfigError: an unknown key, a wrong type, a value out of bounds; names the key and the nearest valid one.
        UnknownPlugin, DuplicatePlugin, ContractMismatch, PluginImportError, PluginError: a chosen component.
    """
    if not isinstance(config, Mapping):
        raise ConfigError(f"a configuration is a mapping, found {shown(config)}")
    keys = [field.name for field in fields(Config)]
    values: dict[str, Any] = {}
    for key, value in config.items():
        if key in COMPOSITIONS:
            continue
        if key not in keys:
            near = did_you_mean(str(key), keys)
            if key in registry.kinds():
                near = f"; {key}s are chosen by {registry.kind_of(key).chosen.format(kind=key, name='NAME')}"
            raise ConfigError(f"unknown key {shown(key)}; keys: {listing(keys)}{near}")
        if key in SECTIONS:
            values[key] = SECTIONS[key].parse(value)
        elif key in GROUPS:
            values[key] = component(key, value)
        elif key == "observers":
            values[key] = parse_observers(value)
        else:
            values[key] = value
    for group in GROUPS:
        if group not in values:
            of_mode = registry.load("mode", values["mode"].name).workload if group == "workload" else ""  # type: ignore[attr-defined]
            values[group] = Choice(of_mode or str(default_choices()[group]))  # perhaps never imported
    if "run" not in values:
        raise ConfigError("run.dir has no value; set run.dir=...")
    checked = Config(**values)
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


def parse_observers(value: Any) -> tuple[dict[str, Any], ...]:
    """Each observer as `{"name": ..., **options}`, checked.

    Args:
        value: a list of names, or of mappings with a name and options.

    Raises:
        ConfigError: no list, one that is there twice, or an option that it does not have or allow.
        UnknownPlugin and the like: one that cannot be had.
    """
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"observers must be a list, found {shown(value)}; as in observers=[explain]")
    found = tuple(component("observer", entry).plain() for entry in value)
    names = [entry["name"] for entry in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"observers names {twice[0]} twice; one is enough")
    return found


def component(group: str, node: Any) -> Choice:
    """The component of a node, its options checked against its constructor where the group is a kind of plugin.

    Raises:
        ConfigError: no name, or an option it does not have or allow.
        UnknownPlugin, DuplicatePlugin, ContractMismatch, PluginImportError, PluginError: the plugin cannot be had.
    """
    if isinstance(node, str):
        node = {"name": node}
    if not isinstance(node, Mapping) or not isinstance(node.get("name"), str):
        raise ConfigError(f"{group} must be a name, or a mapping with a name, found {shown(node)}")
    options = {str(key): value for key, value in node.items() if key != "name"}
    if group in registry.kinds():
        options = registry.check_options(group, node["name"], options)
    elif group == "model":
        model_options(node["name"], options)
    return Choice(node["name"], options)


def without_effect(config: Config) -> list[str]:
    """One sentence on the settings of `engine` and `faults`, other than their defaults, that the mode never reads."""
    mode: type[Mode] = registry.load("mode", config.mode.name)
    unread = mode.unread(config.plain())
    found = [
        f"{section.section}.{one.name}={getattr(section, one.name)}"
        for section in (config.engine, config.faults)
        for one in fields(section)
        if (section.section in unread or ("model" in unread and one.metadata["of_a_model"]))
        and getattr(section, one.name) != one.default
    ]
    return [f"no effect in mode={config.mode.name}: {', '.join(found)}"] if found else []
