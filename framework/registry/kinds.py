"""The kinds of plugin, as data: the framework's own and those that packages open; and what components share."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from framework.errors import ConfigError, did_you_mean, listing
from framework.registry.points import loaded


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of plugin. By its name: the entry-point group `framework.NAME`, the checks `NAME_checks` in the module
    `NAME` of its kit.

    A package opens a kind by an entry point in the group `framework.kind` whose value is a Kind of that name. Its
    plugins are chosen within the options of others: `is_group` is for kinds of the framework's own.

    Attributes:
        base: `module:Class` of the abstract base class that its plugins implement.
        is_group: whether it is chosen in a configuration, as `NAME=...`, with its constructor's keywords as options.
        chosen: how one named `{name}` is chosen; of a group, by its name.
        command: one that uses it.
        kit: package with its conformance kit; empty: it has none.
    """

    name: str
    base: str
    is_group: bool = True
    chosen: str = "+{kind}={name}"
    command: str = "python -m framework.run +{kind}={name}"
    kit: str = "framework_testing"


_OWN: Mapping[str, Kind] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            Kind("allocator", "framework.interfaces.allocator:Allocator"),
            Kind("eviction", "framework.interfaces.eviction:EvictionPolicy"),
            Kind("hash", "framework.interfaces.hash:HashScheme"),
            Kind("backend", "framework.interfaces.backend:AttentionBackend"),
            Kind("workload", "framework.interfaces.workload:Workload"),
            Kind("tracker", "framework.interfaces.tracker:Tracker"),
            Kind("scheduling", "framework.interfaces.scheduling:Scheduling"),
            Kind("compression", "framework.interfaces.compression:Compression"),
            Kind("below", "framework.interfaces.below:Below", kit=""),
            Kind(
                "memory",
                "framework.groups.memory:Memory",
                is_group=False,
                chosen="cache.memory={name}",
                command="python -m framework.run +mode=hybrid mode.model=gemma-3-27b cache.memory={name}",
                kit="",
            ),
            Kind("mode", "framework.interfaces.mode:Mode", kit=""),
            Kind(
                "observer",
                "framework.interfaces.observer:Observer",
                is_group=False,
                chosen="observers=[{name}]",
                command="python -m framework.run 'observers=[{name}]'",
            ),
            Kind(
                "command",
                "framework.interfaces.command:Command",
                is_group=False,
                chosen="python -m framework {name}",
                command="python -m framework {name} --help",
                kit="",
            ),
        )
    }
)
"""The framework's own kinds, in the order they are shown. One is added by a line here, its base class and its kit."""

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


def every_kind() -> Mapping[str, Kind]:
    """Name -> kind, in the order they are shown: the framework's own, then those that installed packages open.

    An entry point of `framework.kind` that names no new Kind of its name is named on standard error and left out.
    """
    return _every(tuple(sys.path))


@lru_cache(maxsize=4)
def _every(path: tuple[str, ...]) -> Mapping[str, Kind]:
    return MappingProxyType({**_OWN, **loaded("framework.kind", _wrong)})


def _wrong(name: str, kind: object) -> str:
    is_new = isinstance(kind, Kind) and kind.name == name and name not in _OWN and not kind.is_group
    return "" if is_new else f"must be a new Kind of this name that is no group, found {kind!r}"


def kind_of(name: str) -> Kind:
    """The kind of this name.

    Raises:
        ConfigError: no such kind; names the nearest.
    """
    check_kind(name)
    return every_kind()[name]


def kinds(*, with_kit: bool = False) -> tuple[str, ...]:
    """The names of all kinds, or of those with a conformance kit, in the order they are shown."""
    return tuple(kind.name for kind in every_kind().values() if kind.kit or not with_kit)


def groups() -> tuple[str, ...]:
    """The kinds that a configuration chooses from, in the order they are shown."""
    return tuple(kind.name for kind in _OWN.values() if kind.is_group)


def interface_of(kind: str) -> type:
    """The abstract base class of a kind.

    Raises:
        ConfigError: no such kind.
    """
    module, _, attribute = kind_of(kind).base.partition(":")
    interface: type = getattr(importlib.import_module(module), attribute)
    return interface


def check_kind(kind: str) -> None:
    """Raise ConfigError, with the nearest one, where there is no such kind."""
    kinds = every_kind()
    if kind not in kinds:
        raise ConfigError(f"no kind of plugin is named {kind!r}; kinds: {listing(kinds)}{did_you_mean(kind, kinds)}")
