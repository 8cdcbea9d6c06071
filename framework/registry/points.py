"""The entry points of installed distributions that are of our groups. Imports none."""

from __future__ import annotations

import functools
import importlib.metadata
import re
import sys
from collections.abc import Callable
from typing import Any

DISTRIBUTION = "kvcache-framework"


def canonical(distribution: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def points(group: str) -> list[tuple[importlib.metadata.EntryPoint, str, str]]:
    """(entry point, its distribution, that one's version) of one group of ours, `framework.NAME`, sorted by name."""
    return sorted((found for found in _points(tuple(sys.path)) if found[0].group == group), key=lambda one: one[0].name)


def loaded(group: str, check: Callable[[str, Any], str]) -> dict[str, Any]:
    """Name -> value of the entry points of a group that is no kind of plugin.

    Args:
        check: (name, value) -> what is wrong with it; empty: nothing. What is wrong or cannot be imported is named on
            standard error and left out; so is a name that is there already.
    """
    values: dict[str, Any] = {}
    for point, distribution, version in points(group):
        try:
            value = point.load()
            wrong = "there is one of this name" if point.name in values else check(point.name, value)
        except Exception as error:  # of somebody's package: no reason to stop
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            what = f"{group.removeprefix('framework.')} {point.name!r} of {distribution} {version}"
            print(f"skipped: {what}: {wrong}", file=sys.stderr)  # noqa: T201
        else:
            values[point.name] = value
    return values


@functools.lru_cache(maxsize=4)  # a scan of all metadata takes 25 ms
def _points(path: tuple[str, ...]) -> tuple[tuple[importlib.metadata.EntryPoint, str, str], ...]:
    """Every entry point of our groups on `sys.path`; of distributions of one name the first.

    A distribution whose metadata cannot be read is named on standard error and left out.
    """
    ours_by_name: list[tuple[importlib.metadata.EntryPoint, str, str]] = []
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
                ours_by_name += [
                    (point, metadata["Name"] or "unknown", metadata["Version"] or "unknown") for point in ours
                ]
        except Exception as error:  # of somebody's installation: no reason to stop
            what = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"skipped: the metadata in {place} cannot be read: {what}", file=sys.stderr)  # noqa: T201
    return tuple(ours_by_name)
