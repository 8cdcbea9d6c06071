"""Is this configuration one that can be run? Plain dicts in and out; knows no Hydra.

The keys and types of the shared sections are the dataclasses below; their values live in conf/config.yaml.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from framework import registry
from framework.components import EngineOptions
from framework.errors import ConfigError
from framework.kernel.options import KernelOptions
from framework.parameters import convert, did_you_mean, listing, signature
from framework.replay.options import ReplayOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """The pool that all components share: sizes in blocks and tokens, dtypes by torch's names."""

    num_blocks: int | None
    block_size: int
    memory_fraction: float | None
    dtype: str | None
    layout: Literal["NHD", "HND"]
    poison: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Where a run writes, and what."""

    name: str | None
    group: str | None
    dir: str
    sweep: str
    overwrite: bool
    progress: bool
    events: bool
    record: bool
    report: bool
    stop_after_io_failures: int
    log_every: int
    stall_timeout_s: float | None
    timeout_s: float | None
    check_requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """Every top-level key. Components are nodes of a `name` and options; the last five are checked by their owners."""

    mode: Literal["serve", "replay", "kernel"]
    executor: Literal["model", "none", "roofline", "cache_only"] | None
    seed: int
    device: str | None
    cache: Cache
    engine: EngineOptions
    replay: ReplayOptions
    kernel: KernelOptions
    run: Run
    allocator: Mapping[str, Any]
    eviction: Mapping[str, Any]
    hash: Mapping[str, Any]
    backend: Mapping[str, Any]
    model: Mapping[str, Any]
    workload: Mapping[str, Any]
    tracker: Mapping[str, Any]
    experiment: Any
    sweep: Any


SECTIONS: Mapping[str, type] = {
    "cache": Cache,
    "engine": EngineOptions,
    "replay": ReplayOptions,
    "kernel": KernelOptions,
    "run": Run,
}
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
