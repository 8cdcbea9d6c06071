"""Is this configuration one that can be run? Plain dicts in and out; knows no Hydra.

The keys and types of the sections are those of config/sections.py; their values live in conf/config.yaml.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from framework import registry
from framework.config.sections import SECTIONS, EngineOptions, Root
from framework.errors import ConfigError
from framework.registry.signatures import convert, did_you_mean, listing, signature

_EXECUTORS: Mapping[str, tuple[str, ...]] = {"serve": ("model",), "kernel": ()}
"""Replay names its own when it refuses one."""
_LOWEST = {
    "cache.num_blocks": 1,
    "cache.block_size": 1,
    "engine.max_batch_tokens": 1,
    "engine.max_batch_requests": 1,
    "engine.chunk_size": 1,
    "engine.max_model_len": 1,
    "engine.preempt_every": 0,
    "engine.tensor_parallel_size": 1,
    "engine.collective_timeout_s": 1,
    "run.log_every": 1,
    "run.stop_after_io_failures": 0,
    "run.check_requests": 0,
    "seed": 0,
}


def check(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with every value of its right type, or the first reason why it cannot be run.

    A component may be given as its name alone. Keys that are absent stay absent. Nothing is built, but the classes
    of the chosen components are imported.

    Raises:
        ConfigError: an unknown key, a wrong type, a value out of range; names the key and the nearest valid one.
        UnknownPlugin, DuplicatePlugin, PluginImportError, PluginError: a chosen component.
    """
    types = {parameter.name: parameter.annotation for parameter in signature(Root).parameters}
    checked: dict[str, Any] = {}
    for key, value in config.items():
        if key not in types:
            raise ConfigError(f"unknown key {key!r}; keys: {listing(types)}{did_you_mean(key, types)}")
        if key in SECTIONS:
            checked[key] = _section(key, value)
        elif key in registry.kinds():
            checked[key] = component(key, value)
        elif key in ("model", "workload", "tracker"):
            checked[key] = _named(key, value)
        else:
            checked[key] = _value(key, value, types[key])
    check_executor(checked.get("mode", "serve"), checked.get("executor"))
    return checked


def check_executor(mode: str, executor: str | None) -> None:
    """Refuse an executor that the mode would not use.

    Raises:
        ConfigError: with what the mode takes.
    """
    taken = _EXECUTORS.get(mode)
    if executor is None or taken is None or executor in taken:
        return
    what = "its executor is the model; a trace without one is mode=replay" if mode == "serve" else "leave it null"
    raise ConfigError(f"executor={executor} cannot be in mode={mode}: {what}")


def component(kind: str, node: Any) -> dict[str, Any]:
    """A component's node, `{"name": ..., **options}`, with its options checked against its constructor."""
    node = _named(kind, node)
    options = {key: value for key, value in node.items() if key != "name"}
    return {"name": node["name"], **registry.check_options(kind, node["name"], options)}


def _named(key: str, node: Any) -> dict[str, Any]:
    if isinstance(node, str):
        return {"name": node}
    if not isinstance(node, Mapping) or not isinstance(node.get("name"), str):
        raise ConfigError(f"{key} must be a name, or a mapping with a name, found {node!r}")
    return dict(node)


def _section(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key} must be a mapping, found {value!r}; set its keys, such as {key}.KEY=VALUE")
    types = {parameter.name: parameter.annotation for parameter in signature(SECTIONS[key]).parameters}
    for name in value:
        if name not in types:
            raise ConfigError(f"unknown key '{key}.{name}'; keys: {listing(types)}{did_you_mean(name, types)}")
    return {name: _value(f"{key}.{name}", entry, types[name]) for name, entry in value.items()}


def _value(key: str, value: Any, annotation: Any) -> Any:
    converted = convert(value, annotation, key)
    lowest = _LOWEST.get(key)
    if lowest is not None and converted is not None and converted < lowest:
        raise ConfigError(f"{key} must be at least {lowest}, found {converted}")
    if key in ("run.stall_timeout_s", "run.timeout_s") and converted is not None and not 0 < converted < math.inf:
        raise ConfigError(f"{key} must be above 0 seconds, or null for no limit, found {converted}")
    if key == "cache.memory_fraction" and converted is not None and not 0 < converted <= 1:
        raise ConfigError(f"{key} must be above 0 and at most 1, found {converted}")
    return converted


_OF_A_MODEL = (
    "compile", "cuda_graphs", "graph_batch_sizes", "prepack", "tensor_parallel_size", "collective_timeout_s",
)  # fmt: skip


def without_effect(config: Mapping[str, Any]) -> list[str]:
    """Of a configuration: one sentence on the engine settings, other than their defaults, that its mode never reads."""
    mode, executor = config.get("mode", "serve"), config.get("executor")
    if mode == "serve":
        return []
    place = f"mode={mode}" + (f" executor={executor}" if executor == "cache_only" else "")
    unread = _OF_A_MODEL if place == "mode=replay" else tuple(field.name for field in fields(EngineOptions))
    engine, defaults = config.get("engine") or {}, EngineOptions()
    found = [
        f"engine.{name}={engine[name]}" for name in unread if name in engine and engine[name] != getattr(defaults, name)
    ]
    return [f"no effect in {place}: {', '.join(found)}"] if found else []
