"""Construction of components from a name, a mapping or a class, alike for serve, replay and tests. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from framework.errors import ConfigError
from framework.guard.boundary import construct as guarded_construct
from framework.interfaces.allocator import Allocator
from framework.interfaces.eviction import EvictionPolicy
from framework.registry.construction import build
from framework.registry.signatures import shown, signature

Component = str | Mapping[str, Any] | type | object


def build_component(kind: str, component: Component, shared: Mapping[str, Any]) -> Any:
    """A name, a mapping with a name, or a class becomes an object; an object stays itself.

    Raises:
        ConfigError: nothing of these. And what `build` raises.
    """
    if isinstance(component, Mapping) and not isinstance(component.get("name"), str):
        raise ConfigError(f"{kind} must be a name, or a mapping with a name, found {shown(component)}")
    of = component if isinstance(component, type) else type(component)
    if not isinstance(component, (str, Mapping)) and of.__module__ == "builtins":
        raise ConfigError(
            f"{kind} must be a name, a mapping with a name, a class or an object, found {shown(component)}"
        )
    if isinstance(component, str):
        return build(kind, component, {}, shared)
    if isinstance(component, Mapping):
        options = {key: value for key, value in component.items() if key != "name"}
        return build(kind, str(component["name"]), options, shared)
    if isinstance(component, type):
        return construct(kind, component, shared)
    return component


def construct(kind: str, cls: type, shared: Mapping[str, Any]) -> Any:
    """A class of your own, made with the shared values that its constructor names."""
    named = signature(cls).names()
    return guarded_construct(kind, cls.__name__, cls, {key: value for key, value in shared.items() if key in named})


def build_allocator(
    allocator: Component,
    eviction: Component,
    hash: Component,
    *,
    num_blocks: int,
    block_size: int,
    max_model_len: int,
    seed: int = 0,
) -> Allocator:
    """The allocator with its policy and hash scheme."""
    return build_with_policy(
        allocator,
        eviction,
        hash,
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=max_model_len,
        seed=seed,
    )[0]


def build_with_policy(
    allocator: Component,
    eviction: Component,
    hash: Component,
    *,
    num_blocks: int,
    block_size: int,
    max_model_len: int,
    seed: int = 0,
) -> tuple[Allocator, EvictionPolicy]:
    """The allocator with its policy and hash scheme, and that policy; what serve and replay share."""
    if block_size < 1:
        raise ConfigError(f"cache.block_size must be at least 1, found {block_size}")
    shared: dict[str, Any] = {
        "num_blocks": num_blocks,
        "block_size": block_size,
        "max_model_len": max_model_len,
        "seed": seed,
    }
    policy: EvictionPolicy = build_component("eviction", eviction, shared)
    shared["eviction"] = policy
    shared["hash"] = build_component("hash", hash, shared)
    built: Allocator = build_component("allocator", allocator, shared)
    return built, policy
