"""Every key of `result.json`, declared once: unit, better direction, section, title and definition.

To add a result, add one line to `framework.results.metrics`, or to the `metrics` of a plugin's class where its kind has
such; the table a run ends with, reports, W&B and docs/results.md show it, and a test fails on a key that is not
declared. A plugin's own facts need no line: they carry its kind as a prefix, see `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from framework import registry
from framework.results.metric import Metric
from framework.results.metrics import DECLARED

_SECTIONS = (
    "run", "prefix cache", "tiers", "optimum", "requests", "speed", "latency", "memory", "scheduling", "execution",
)  # fmt: skip
_PLUGINS = "plugins"


def _reports(kind: str) -> str:
    return f"what the chosen {kind} reports of itself through `facts()`"


FAMILIES: Mapping[str, str] = {
    kind: _reports(kind) for kind in ("allocator", "eviction", "hash", "backend", "scheduling", "model", "workload")
}
"""Prefix (before an underscore) -> what keys so begun hold; they stand in the section "plugins"."""


@lru_cache
def catalogue() -> Mapping[str, Metric]:
    """Key -> its declaration: the framework's own, then those of the plugins that are installed."""
    own = {metric.key: metric for metric in DECLARED}
    return own | {metric.key: metric for metric in registry.declared("metrics") if metric.key not in own}


@lru_cache
def sections() -> tuple[str, ...]:
    """In the order of docs/results.md and of the table a run ends with."""
    return (*dict.fromkeys((*_SECTIONS, *(metric.section for metric in catalogue().values()))), _PLUGINS)


def find(key: str) -> Metric | None:
    """The declaration of a result key, or of a plugin's own fact; else None."""
    if (metric := catalogue().get(key)) is not None:
        return metric
    kind, _, rest = key.partition("_")
    if kind not in (*FAMILIES, *registry.kinds()) or not rest:  # those that packages open report too
        return None
    title = f"{kind} {rest.replace('_', ' ')}"
    return Metric(key=key, unit="plain", better="", section=_PLUGINS, title=title, definition=_reports(kind))


def title(key: str) -> str:
    """How tables and plots name a key; the key itself where nobody declared it."""
    metric = find(key)
    return key if metric is None else metric.title


def higher_is_better(key: str) -> bool | None:
    """The better direction; None where neither is, or nobody declared it."""
    metric = find(key)
    return None if metric is None or not metric.better else metric.better == "higher"


def is_wall_time(key: str) -> bool:
    """Whether two runs of one command differ in it because it measures wall time."""
    metric = find(key)
    return metric is not None and metric.wall
