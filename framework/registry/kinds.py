"""The kinds of plugin: each one's base class, and what components of all kinds share."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType

from framework.errors import ConfigError
from framework.registry.signatures import did_you_mean, listing

INTERFACES: Mapping[str, str] = MappingProxyType(
    {
        "allocator": "framework.interfaces.allocator:Allocator",
        "eviction": "framework.interfaces.eviction:EvictionPolicy",
        "hash": "framework.interfaces.hash:HashScheme",
        "backend": "framework.interfaces.backend:AttentionBackend",
    }
)

SHARED: Mapping[str, str] = MappingProxyType(
    {
        "num_blocks": "cache.num_blocks",
        "block_size": "cache.block_size",
        "dtype": "cache.dtype",
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
    """The kinds of plugin, in the order they are shown."""
    return tuple(INTERFACES)


def interface_of(kind: str) -> type:
    """The abstract base class of a kind."""
    check_kind(kind)
    module, _, attribute = INTERFACES[kind].partition(":")
    interface: type = getattr(importlib.import_module(module), attribute)
    return interface


def check_kind(kind: str) -> None:
    """Raise ConfigError, with the nearest one, where there is no such kind."""
    if kind not in INTERFACES:
        raise ConfigError(
            f"no kind of plugin is named {kind!r}; kinds: {listing(INTERFACES)}{did_you_mean(kind, INTERFACES)}"
        )
