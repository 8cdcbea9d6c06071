"""The installed plugins, by kind and name. Lists entry points; imports no plugin.

A plugin is one entry point of the group `framework.<kind>`, built-in or third-party. Any can be chosen as
`DISTRIBUTION:NAME`. A name that several distributions offer means the built-in plugin, where there is one of that name.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from framework.errors import DuplicatePlugin, UnknownPlugin
from framework.registry.kinds import KINDS, check_kind
from framework.registry.places import located
from framework.registry.plugin import Plugin
from framework.registry.signatures import did_you_mean, listing


def entries(kind: str) -> list[Plugin]:
    """Every installed plugin of this kind, sorted by name then distribution. Imports none.

    Raises:
        ConfigError: no such kind.
    """
    check_kind(kind)
    return list(_installed(_fingerprint())[kind])


def _fingerprint() -> tuple[tuple[str, int], ...]:
    """Changes whenever something is installed, removed or put on `sys.path`: a scan of all metadata takes 25 ms."""
    stamps = []
    for folder in sys.path:
        try:
            stamps.append((folder, os.stat(folder or ".").st_mtime_ns))
        except OSError:
            stamps.append((folder, 0))
    return tuple(stamps)


@functools.lru_cache(maxsize=4)
def _installed(fingerprint: tuple[tuple[str, int], ...]) -> dict[str, list[Plugin]]:
    return {
        kind: sorted(
            {Plugin(kind, point.name, point.value, *origin) for point, origin in _points(fingerprint)
             if point.group == f"framework.{kind}"}
        )
        for kind in KINDS
    }  # fmt: skip


def points(group: str) -> list[tuple[importlib.metadata.EntryPoint, str]]:
    """(entry point, its distribution) of one group of ours, `framework.NAME`, sorted by name."""
    found = ((point, origin[0]) for point, origin in _points(_fingerprint()) if point.group == group)
    return sorted(found, key=lambda entry: entry[0].name)


@functools.lru_cache(maxsize=4)
def _points(
    fingerprint: tuple[tuple[str, int], ...],
) -> tuple[tuple[importlib.metadata.EntryPoint, tuple[str, str]], ...]:
    """Every entry point of our groups with its distribution's name and version; of namesakes the first on the path.

    A distribution whose metadata cannot be read is named on standard error and left out.
    """
    found: list[tuple[importlib.metadata.EntryPoint, tuple[str, str]]] = []
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
                origin = metadata["Name"] or "unknown", metadata["Version"] or "unknown"
                found += [(point, origin) for point in ours]
        except Exception as error:  # of somebody's installation: no reason to stop
            what = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"skipped: the metadata in {place} cannot be read: {what}", file=sys.stderr)  # noqa: T201
    return tuple(found)


def names(kind: str) -> list[str]:
    """What can be chosen, sorted, each plugin once: its name, or `DISTRIBUTION:NAME` where the name is another's."""
    installed = entries(kind)
    return sorted({_choice(plugin, installed) for plugin in installed})


def choice(plugin: Plugin) -> str:
    """The shortest word that means this plugin."""
    return _choice(plugin, entries(plugin.kind))


def _choice(plugin: Plugin, installed: Sequence[Plugin]) -> str:
    namesakes = [other for other in installed if other.name == plugin.name]
    return plugin.name if len(namesakes) == 1 or _ours(namesakes) == [plugin] else plugin.full_name


def find(kind: str, name: str) -> Plugin:
    """The one plugin of this kind and name, or `DISTRIBUTION:NAME`, `FILE.py:CLASS`, `MODULE:CLASS`. Imports nothing.

    Raises:
        UnknownPlugin: none; says what is installed and the nearest name.
        DuplicatePlugin: several distributions offer it, and none of them is the framework's own.
    """
    installed = entries(kind)
    owner, _, bare = name.rpartition(":")
    matches = [plugin for plugin in installed if plugin.name == bare and (not owner or _is_of(plugin, owner))]
    if not matches and (elsewhere := located(kind, name)) is not None:
        return elsewhere
    if not installed:
        raise UnknownPlugin(
            f"no {kind} named {name!r}: no {kind} is installed at all; in the checkout, run `pip install -e .`"
        )
    if not matches:
        choices = names(kind)
        raise UnknownPlugin(
            f"no {kind} named {name!r}; installed: {listing(choices)}{did_you_mean(name, choices)}"
            if did_you_mean(name, choices)
            else f"no {kind} named {name!r}; installed: {listing(choices)}; after editing a pyproject.toml, "
            f"`pip install -e .` again; a class that is not installed is {kind}=FILE.py:CLASS"
        )
    if len(matches) > 1 and len(_ours(matches)) != 1:
        owners = " and ".join(f"{plugin.distribution} {plugin.version}" for plugin in matches)
        words = " or ".join(dict.fromkeys(f"{kind}={plugin.full_name}" for plugin in matches))
        raise DuplicatePlugin(f"{kind} {name!r} is offered by {owners}; say which: {words}")
    return matches[0] if len(matches) == 1 else _ours(matches)[0]


def clashes(config: Mapping[str, Any]) -> list[str]:
    """Of a configuration's components: who else offers the chosen name, and how to choose theirs. Imports nothing."""
    chosen = [(kind, config.get(kind)) for kind in KINDS]
    words = [(kind, node.get("name") if isinstance(node, Mapping) else node) for kind, node in chosen]
    return [said for kind, name in words if isinstance(name, str) and (said := _clash(kind, name))]


def _clash(kind: str, name: str) -> str:
    others = [plugin for plugin in entries(kind) if plugin.name == name]
    if len(others) < 2 or len(_ours(others)) != 1:
        return ""
    chosen = _ours(others)[0]
    others.remove(chosen)
    owners = " and ".join(f"{plugin.distribution} {plugin.version}" for plugin in others)
    words = " or ".join(f"{kind}={plugin.full_name}" for plugin in others)
    return f"{kind} {name!r} is also offered by {owners}; this is {chosen.distribution}'s, theirs is {words}"


def _ours(plugins: Sequence[Plugin]) -> list[Plugin]:
    return [plugin for plugin in plugins if plugin.is_built_in]


def _is_of(plugin: Plugin, distribution: str) -> bool:
    from packaging.utils import canonicalize_name

    return canonicalize_name(plugin.distribution) == canonicalize_name(distribution)
