"""Parsing of a plain dict into a checked `Config`. Knows no Hydra."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import PurePath
from typing import Any

from framework import registry
from framework.config.config import GROUPS, REPLAYED, Choice, Config, default_choices
from framework.config.sections import SECTIONS, GroupOptions, TierOptions
from framework.errors import ConfigError, shown
from framework.model.options import model_options
from framework.registry.signatures import did_you_mean, listing
from framework.results.metrics import MOST_TIERS

COMPOSITIONS = ("experiment", "sweep")
"""Groups of the command line that leave nothing of their own in a configuration."""
NO_TIERING = "never"
"""The rule that moves nothing, which needs no tiers."""
_EXECUTORS: Mapping[str, tuple[str, ...]] = {
    "serve": ("model",),
    "replay": ("none", "roofline", "cache_only"),
    "kernel": (),
}


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
            raise ConfigError(f"unknown key {shown(key)}; keys: {listing(keys)}{did_you_mean(str(key), keys)}")
        if key in SECTIONS:
            values[key] = SECTIONS[key].parse(value)
        elif key in GROUPS:
            values[key] = component(key, value)
        elif key == "tiers":
            values[key] = parse_tiers(value)
        else:
            values[key] = value
    for group in GROUPS:
        if group not in values:
            replayed = group == "workload" and config.get("mode") == "replay"
            values[group] = Choice(REPLAYED if replayed else str(default_choices()[group]))  # perhaps never imported
    if "run" not in values:
        raise ConfigError("run.dir has no value; set run.dir=...")
    checked = Config(**values)
    _check_executor(checked.mode, checked.executor)
    _check_tiering(checked)
    _check_kv_events(checked)
    _check_groups(checked)
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


def _check_executor(mode: str, executor: str | None) -> None:
    if executor is not None and executor not in _EXECUTORS[mode]:
        raise ConfigError(
            f"executor={executor} cannot be in mode={mode}; executors are model in mode=serve, none, roofline and "
            "cache_only in mode=replay, null in mode=kernel"
        )


def _check_tiering(config: Config) -> None:
    rule = config.tiering.name
    if rule != NO_TIERING and not config.tiers:
        raise ConfigError(
            f"tiering={rule} has no tier to move blocks to; set tiers=[{{store: host, num_blocks: 20000}}]"
        )
    if config.tiers and config.mode == "kernel":
        raise ConfigError("tiers cannot be in mode=kernel, which has no cache; leave tiers out")
    if config.tiers and config.engine.scheduling == "running_first" and config.executor != "cache_only":
        raise ConfigError(
            "engine.scheduling=running_first does not wait for loads from tiers; leave tiers out, or set "
            "engine.scheduling=admit_first"
        )


_TIER_EXAMPLE = "{store: host, num_blocks: 20000, eviction: lru}"


def parse_tiers(value: Any) -> tuple[dict[str, Any], ...]:
    """Each tier as `{"store": {"name": ..., ...}, "eviction": {"name": ..., ...}, "num_blocks": ...}`, checked.

    Args:
        value: a list of mappings. `store` and `eviction` are names, or mappings with a name and options.

    Raises:
        ConfigError: no list, too many, an unknown or missing key, a wrong value; names the tier.
        UnknownPlugin and the like: a store or a policy that cannot be had.
    """
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"tiers must be a list of mappings, found {shown(value)}; as in tiers=[{_TIER_EXAMPLE}]")
    if len(value) > MOST_TIERS:
        raise ConfigError(f"tiers has {len(value)} entries; at most {MOST_TIERS} are taken")
    return tuple(_tier(f"tiers[{number}]", entry) for number, entry in enumerate(value))


def _tier(key: str, entry: Any) -> dict[str, Any]:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{key} must be a mapping, found {shown(entry)}; as in {_TIER_EXAMPLE}")
    for needed in ("store", "num_blocks"):
        if needed not in entry:
            raise ConfigError(f"{key} has no {needed}; as in {_TIER_EXAMPLE}")
    store = "null" if entry["store"] is None else entry["store"]  # YAML's null is a name here
    eviction = entry.get("eviction") or "lru"
    parts = {"store": component("store", store).plain(), "eviction": component("eviction", eviction).plain()}
    try:
        options = TierOptions.parse({name: one for name, one in entry.items() if name not in parts})
    except ConfigError as error:
        raise ConfigError(f"{key}: {str(error).removeprefix('tiers.')}") from error
    return {**parts, **options.plain()}


def _check_kv_events(config: Config) -> None:
    asked = config.kv_events
    if not asked.file and not asked.publish:
        return
    if config.mode == "kernel" or config.executor == "cache_only":
        where = f"mode={config.mode}" + (f" executor={config.executor}" if config.executor else "")
        raise ConfigError(
            f"kv_events are of mode=serve and of mode=replay with executor=none or roofline, not of {where}, "
            "which keeps no blocks"
        )


def _check_groups(config: Config) -> None:
    if config.replay.groups is None:
        return
    GroupOptions.parse(config.replay.groups)
    if config.mode != "replay":
        raise ConfigError(f"replay.groups is of mode=replay, found mode={config.mode}; a served model has the groups "
                          "of its own layers")  # fmt: skip
    allocator = config.allocator.name
    of_one_group = {
        "tiers": list(config.tiers), "replay.leaf_first": config.replay.leaf_first, "run.explain": config.run.explain,
        "allocator": allocator if allocator != default_choices()["allocator"] else None,
        "replay.core": config.replay.core if config.replay.core != "python" else None,
        "cache.kv_dtype": config.cache.kv_dtype, "kv_events": config.kv_events.file or config.kv_events.publish,
        "replay.optimum": config.executor != "cache_only" and config.replay.optimum is True,
    }  # fmt: skip
    for key, value in of_one_group.items():
        if value:
            raise ConfigError(f"{key}={value} is of caches with one group of KV; leave it out, or replay.groups")


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
    if config.mode == "serve":
        return []
    place = f"mode={config.mode}" + (" executor=cache_only" if config.executor == "cache_only" else "")
    found = [
        f"{section.section}.{one.name}={getattr(section, one.name)}"
        for section in (config.engine, config.faults)
        for one in fields(section)
        if (place != "mode=replay" or one.metadata["of_a_model"]) and getattr(section, one.name) != one.default
    ]
    return [f"no effect in {place}: {', '.join(found)}"] if found else []
