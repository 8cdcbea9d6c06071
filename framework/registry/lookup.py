"""Import of a plugin's class by its name. The only place that imports plugins."""

from __future__ import annotations

import inspect
from typing import Any

from framework.errors import ContractMismatch, InvalidPlugin, PluginImportError
from framework.guard.boundary import OUTSIDE, remember_origin, shown
from framework.registry.contract import reason_against
from framework.registry.entry_points import find
from framework.registry.kinds import interface_of
from framework.registry.places import NOT_INSTALLED, import_place
from framework.registry.plugin import Plugin


def load(kind: str, name: str) -> type:
    """The class behind a name; imports its module.

    Raises:
        UnknownPlugin, DuplicatePlugin: see `find`.
        ContractMismatch: it was made for another version of the plugin contract; its module is not imported.
        PluginImportError: the module does not import, or has no such class.
        PluginError: what it names is no implementation of the kind's interface.
    """
    plugin = find(kind, name)
    reason = reason_against(plugin.distribution)
    if reason:
        raise ContractMismatch(
            f"{title(plugin)} cannot be used: {reason}; install a version of {plugin.distribution} made for this one"
        )
    module, _, attribute = plugin.value.rpartition(":")
    try:
        found: Any = import_place(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except OUTSIDE:
        raise
    except BaseException as error:
        advice = "" if plugin.distribution == NOT_INSTALLED else f"; reinstall or uninstall {plugin.distribution}"
        raise PluginImportError(
            f"{title(plugin)} cannot be imported from {plugin.value}: {shown(error)}{advice}"
        ) from error
    cls = _checked(plugin, found)
    place = plugin.name.rpartition(":")[0] if plugin.distribution == NOT_INSTALLED else plugin.distribution
    remember_origin(cls, " ".join(filter(None, (place, plugin.version))))
    return cls


def _checked(plugin: Plugin, found: Any) -> type:
    interface = interface_of(plugin.kind)
    if not (isinstance(found, type) and issubclass(found, interface)):
        raise InvalidPlugin(f"{title(plugin)}: {plugin.value} is not a subclass of {interface.__name__}")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        raise InvalidPlugin(f"{title(plugin)}: {plugin.value} does not implement {missing}")
    return found


def title(plugin: Plugin) -> str:
    """A plugin as messages name it: `eviction 'lru' (kvcache-framework 0.1.0)`."""
    return f"{plugin.kind} {plugin.name!r} ({' '.join(filter(None, (plugin.distribution, plugin.version)))})"
