"""The installed plugins, by kind. Lists entry points; imports no plugin.

A plugin is one entry point of the group `framework.<kind>`, built-in or third-party.
"""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from dataclasses import dataclass

from framework.registry.contract import DISTRIBUTION, canonical
from framework.registry.kinds import check_kind


@dataclass(frozen=True, slots=True, order=True)
class Plugin:
    """One entry point as installed, or a class named by its place. `value` is `module:Class` or `file.py:Class`."""

    kind: str
    name: str
    value: str
    distribution: str
    version: str

    @property
    def full_name(self) -> str:
        """`DISTRIBUTION:NAME`: means this plugin, whoever else offers its name."""
        return f"{self.distribution}:{self.name}"

    @property
    def is_built_in(self) -> bool:
        """Whether the framework's own distribution offers it."""
        return self.is_of(DISTRIBUTION)

    def is_of(self, distribution: str) -> bool:
        """Whether a distribution of this name, however it is spelt, offers it."""
        return canonical(self.distribution) == canonical(distribution)


def entries(kind: str) -> list[Plugin]:
    """Every installed plugin of this kind, sorted by name then distribution. Imports none.

    Raises:
        ConfigError: no such kind.
    """
    check_kind(kind)
    found = {Plugin(kind, point.name, point.value, distribution, version)
             for point, distribution, version in points(f"framework.{kind}")}  # fmt: skip
    return sorted(found)


def points(group: str) -> list[tuple[importlib.metadata.EntryPoint, str, str]]:
    """(entry point, its distribution, that one's version) of one group of ours, `framework.NAME`, sorted by name."""
    return sorted((found for found in _points(tuple(sys.path)) if found[0].group == group), key=lambda one: one[0].name)


@functools.lru_cache(maxsize=4)  # a scan of all metadata takes 25 ms
def _points(path: tuple[str, ...]) -> tuple[tuple[importlib.metadata.EntryPoint, str, str], ...]:
    """Every entry point of our groups on `sys.path`; of distributions of one name the first.

    A distribution whose metadata cannot be read is named on standard error and left out.
    """
    found: list[tuple[importlib.metadata.EntryPoint, str, str]] = []
    seen = set()
    for distribution in importlib.metadata.distributions():
        place = getattr(distribution, "_path", distribution)
        name = getattr(distribution, "_normalized_name", None) or str(place)
        if name in seen:
            continue
        seen.add(name)
        try:
            ours = [point for point in distribution.entry_points if point.group.startswith("framework.")]
            if ours:
                metadata = distribution.metadata  # parsed by each look: most distributions have nothing of ours
                found += [(point, metadata["Name"] or "unknown", metadata["Version"] or "unknown") for point in ours]
        except Exception as error:  # of somebody's installation: no reason to stop
            what = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"skipped: the metadata in {place} cannot be read: {what}", file=sys.stderr)  # noqa: T201
    return tuple(found)
