"""A configuration, typed and checked, as a mode receives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from framework.config.sections import (
    CacheOptions,
    EngineOptions,
    FaultOptions,
    KernelOptions,
    KVEventsOptions,
    ReplayOptions,
    RunOptions,
)
from framework.config.setting import Section, plain, setting

Mode = Literal["serve", "replay", "kernel"]
Executor = Literal["model", "none", "roofline", "cache_only"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Section):
    """Everything that a run is asked. Made by `config.check.parse`; every value is present and within its bounds."""

    mode: Mode = setting("serve", "serve | replay | kernel")
    executor: Executor | None = setting(None, "null: what the mode needs; replay: none | roofline | cache_only")
    seed: int = setting(0, "of workload, random weights, sampling and policies", at_least=0)
    device: str | None = setting(None, "null: cuda where there is one, else cpu")
    tiers: tuple[Mapping[str, Any], ...] = setting(
        (), "below the pool, as [{store: host, num_blocks: 20000, eviction: lru}]; tiering=NAME moves blocks"
    )
    cache: CacheOptions = field(default_factory=CacheOptions)
    engine: EngineOptions = field(default_factory=EngineOptions)
    replay: ReplayOptions = field(default_factory=ReplayOptions)
    kv_events: KVEventsOptions = field(default_factory=KVEventsOptions)
    kernel: KernelOptions = field(default_factory=KernelOptions)
    run: RunOptions
    faults: FaultOptions = field(default_factory=FaultOptions)
    allocator: Choice
    eviction: Choice
    hash: Choice
    backend: Choice
    model: Choice
    workload: Choice
    tiering: Choice
    tracker: Choice

    def choices(self) -> dict[str, Choice]:
        """Group -> the component chosen for it."""
        return {name: value for name, value in self._items() if isinstance(value, Choice)}

    def plain(self) -> dict[str, Any]:
        """The configuration as YAML and JSON hold it; `parse` of it is this configuration again."""
        return {name: value.plain() if isinstance(value, (Section, Choice)) else value for name, value in self._items()}

    def _items(self) -> list[tuple[str, Any]]:
        return [(field_.name, getattr(self, field_.name)) for field_ in fields(self)]


GROUPS = tuple(field_.name for field_ in fields(Config) if field_.type == "Choice")
"""The groups of components, in the order they are shown."""
