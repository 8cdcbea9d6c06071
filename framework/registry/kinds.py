"""The kinds of plugin, as data, and what components of all kinds share."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from framework.errors import ConfigError
from framework.registry.signatures import did_you_mean, listing


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of plugin. By its name: the entry-point group `framework.NAME`, the kit `framework.testing.NAME_checks`
    and the templates of `framework.new` in `new/templates/NAME/`.

    Attributes:
        base: `module:Class` of the abstract base class that its plugins implement.
        is_group: whether it is chosen in a configuration, as `NAME=...`, with its constructor's keywords as options.
        chosen: how one named `{name}` is chosen; of a group, by its name.
        command: one that uses it.
    """

    name: str
    base: str
    is_group: bool = True
    chosen: str = "+{kind}={name}"
    command: str = "python -m framework.run +{kind}={name}"


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            Kind("allocator", "framework.interfaces.allocator:Allocator"),
            Kind("eviction", "framework.interfaces.eviction:EvictionPolicy"),
            Kind("hash", "framework.interfaces.hash:HashScheme"),
            Kind("backend", "framework.interfaces.backend:AttentionBackend"),
            Kind("workload", "framework.interfaces.workload:Workload"),
            Kind(
                "trace",
                "framework.interfaces.trace:TraceReader",
                is_group=False,
                chosen="workload.format={name}",
                command="python -m framework.trace describe FILE --format {name}",
            ),
            Kind(
                "replay_core",
                "framework.interfaces.replay_core:ReplayCore",
                is_group=False,
                chosen="replay.core={name}",
                command="python -m framework.run mode=replay executor=cache_only replay.core={name}",
            ),
            Kind("tracker", "framework.interfaces.tracker:Tracker"),
            Kind(
                "observer",
                "framework.interfaces.observer:Observer",
                is_group=False,
                chosen="observers=[{name}]",
                command="python -m framework.run 'observers=[{name}]'",
            ),
            Kind("tiering", "framework.interfaces.tiering:Tiering"),
            Kind(
                "store",
                "framework.interfaces.store:Store",
                is_group=False,
                chosen="tiers=[{{store: {name}, ...}}]",
                command="python -m framework.run +tiering=on_eviction 'tiers=[{{store: {name}, num_blocks: 64}}]'",
            ),
        )
    }
)
"""Every kind, in the order they are shown. A kind is added by one line here, its base class, kit and templates."""

SHARED: Mapping[str, str] = MappingProxyType(
    {
        "num_blocks": "cache.num_blocks",
        "block_size": "cache.block_size",
        "dtype": "cache.kv_dtype",
        "layout": "cache.layout",
        "seed": "seed",
        "device": "device",
        "max_model_len": "engine.max_model_len",
        "hash": "hash",
        "eviction": "eviction",
    }
)
"""What several components share, and the configuration key that sets it. A constructor that names one is given it;
it is never one of the component's own options."""


def kinds() -> tuple[str, ...]:
    """The names of all kinds, in the order they are shown."""
    return tuple(KINDS)


def groups() -> tuple[str, ...]:
    """The kinds that a configuration chooses from, in the order they are shown."""
    return tuple(kind.name for kind in KINDS.values() if kind.is_group)


def interface_of(kind: str) -> type:
    """The abstract base class of a kind.

    Raises:
        ConfigError: no such kind.
    """
    check_kind(kind)
    module, _, attribute = KINDS[kind].base.partition(":")
    interface: type = getattr(importlib.import_module(module), attribute)
    return interface


def check_kind(kind: str) -> None:
    """Raise ConfigError, with the nearest one, where there is no such kind."""
    if kind not in KINDS:
        raise ConfigError(f"no kind of plugin is named {kind!r}; kinds: {listing(KINDS)}{did_you_mean(kind, KINDS)}")
