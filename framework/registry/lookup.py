"""The installed plugins, the one that a word means, and its class.

A plugin is one entry point of the group `framework.<kind>`, built-in or third-party. It can be chosen by its name, or
as `DISTRIBUTION:NAME`. A name that several distributions offer means the built-in plugin, where there is one of that
name. A class that is not installed is named by its place, as `FILE.py:CLASS` or `MODULE:CLASS`. Only `load` imports.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from framework.errors import (
    DuplicatePlugin,
    FrameworkError,
    InvalidPlugin,
    PluginImportError,
    UnknownPlugin,
    did_you_mean,
    listing,
)
from framework.guard.boundary import OUTSIDE, remember_origin, text_of
from framework.registry.kinds import check_kind, interface_of
from framework.registry.points import DISTRIBUTION, canonical, points

NOT_INSTALLED = "not installed"
"""Stands for the distribution of a class that is named by its place."""


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
    plugins = {Plugin(kind, point.name, point.value, distribution, version)
             for point, distribution, version in points(f"framework.{kind}")}  # fmt: skip
    return sorted(plugins)


def names(kind: str) -> list[str]:
    """What can be chosen, sorted, each plugin once: its name, or `DISTRIBUTION:NAME` where the name is another's."""
    return sorted({choice(plugin) for plugin in entries(kind)})


def choice(plugin: Plugin) -> str:
    """The shortest word that means this plugin."""
    namesakes = [other for other in entries(plugin.kind) if other.name == plugin.name]
    return plugin.name if len(namesakes) == 1 or _ours(namesakes) == [plugin] else plugin.full_name


def find(kind: str, name: str) -> Plugin:
    """The one plugin of this kind and name, or `DISTRIBUTION:NAME`, `FILE.py:CLASS`, `MODULE:CLASS`. Imports nothing.

    Raises:
        UnknownPlugin: none; says what is installed and the nearest name.
        DuplicatePlugin: several distributions offer it, and none of them is the framework's own.
    """
    owner, _, bare = name.rpartition(":")
    matches = [plugin for plugin in entries(kind) if plugin.name == bare and (not owner or plugin.is_of(owner))]
    if not matches:
        elsewhere = located(kind, name)
        if elsewhere is None:
            choices = names(kind)
            near = did_you_mean(name, choices)
            how = f"; `pip install -e .` makes a new entry point known, {kind}=FILE.py:CLASS needs none"
            raise UnknownPlugin(f"no {kind} named {name!r}; installed: {listing(choices)}{near or how}")
        return elsewhere
    chosen = matches if len(matches) == 1 else _ours(matches)
    if len(chosen) != 1:
        owners = " and ".join(f"{plugin.distribution} {plugin.version}" for plugin in matches)
        words = " or ".join(dict.fromkeys(f"{kind}={plugin.full_name}" for plugin in matches))
        raise DuplicatePlugin(f"{kind} {name!r} is offered by {owners}; say which: {words}")
    return chosen[0]


def located(kind: str, name: str) -> Plugin | None:
    """The plugin of a name that is a place; None where it is none. Imports nothing.

    A file is a place whether it exists or not; a module only where one of its top-level name can be found.
    """
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        return None
    if place.endswith(".py"):
        return Plugin(kind, name, f"{Path(place).absolute()}:{attribute}", NOT_INSTALLED, "")
    top = place.partition(".")[0]
    try:
        is_module = top.isidentifier() and (top in sys.modules or importlib.util.find_spec(top) is not None)
    except (ImportError, ValueError):
        return None
    return Plugin(kind, name, name, NOT_INSTALLED, "") if is_module else None


def _ours(plugins: Sequence[Plugin]) -> list[Plugin]:
    return [plugin for plugin in plugins if plugin.is_built_in]


def title(plugin: Plugin) -> str:
    """A plugin as messages name it: `eviction 'lru' (kvcache-framework 0.1.0)`."""
    return f"{plugin.kind} {plugin.name!r} ({' '.join(filter(None, (plugin.distribution, plugin.version)))})"


def load(kind: str, name: str) -> type:
    """The class behind a name; imports its module.

    Raises:
        UnknownPlugin, DuplicatePlugin: see `find`.
        PluginImportError: the module does not import, or has no such class.
        PluginError: what it names is no implementation of the kind's interface.
    """
    plugin = find(kind, name)
    is_installed = plugin.distribution != NOT_INSTALLED
    try:
        cls = import_class(plugin.value)
    except OUTSIDE:
        raise
    except BaseException as error:
        advice = f"; reinstall or uninstall {plugin.distribution}" if is_installed else ""
        raise PluginImportError(
            f"{title(plugin)} cannot be imported from {plugin.value}: {text_of(error)}{advice}"
        ) from error
    interface = interface_of(kind)
    if not (isinstance(cls, type) and issubclass(cls, interface)):
        raise InvalidPlugin(f"{title(plugin)}: {plugin.value} is not a subclass of {interface.__name__}")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        raise InvalidPlugin(f"{title(plugin)}: {plugin.value} does not implement {missing}")
    place = plugin.distribution if is_installed else plugin.name.rpartition(":")[0]
    remember_origin(cls, " ".join(filter(None, (place, plugin.version))))
    return cls


def import_class(value: str) -> Any:
    """What `module:Class` or `file.py:Class` names.

    Raises:
        ImportError, AttributeError: it is not there. Whatever the module itself raises.
    """
    place, _, attributes = value.rpartition(":")
    found: Any = import_place(place)
    for attribute in attributes.split("."):
        found = getattr(found, attribute)
    return found


def import_place(place: str) -> ModuleType:
    """The module of a dotted name or of a path that ends in `.py`.

    A file is imported under its own name, its folder at the end of the path, so that worker processes find it too.

    Raises:
        ImportError: no such file, or another module has the file's name. Whatever the module itself raises.
    """
    if not place.endswith(".py"):
        return importlib.import_module(place)
    path = Path(place).resolve()
    if not path.is_file():
        raise ImportError(f"no file {path}")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = importlib.import_module(path.stem)
    if Path(str(getattr(module, "__file__", None))).resolve() != path:
        raise ImportError(f"another module is named {path.stem!r}: rename {path.name}")
    return module


_DECLARING = ("mode", "below", "observer", "compression")
"""The kinds whose classes declare metrics of a run, files that it writes, figures or tables of a report."""


@lru_cache
def declared(attribute: str) -> tuple[Any, ...]:
    """The entries of this tuple of every class of these kinds that is installed and loads, by kind and name."""
    values: list[Any] = []
    for plugin in (plugin for kind in _DECLARING for plugin in entries(kind)):
        try:
            values += getattr(load(plugin.kind, choice(plugin)), attribute, ())
        except FrameworkError:
            continue  # an error where it is chosen, and nobody's concern where it is not
    return tuple(dict.fromkeys(values))
