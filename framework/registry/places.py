"""Plugins that are not installed: a class named by its place, `FILE.py:CLASS` or `MODULE:CLASS`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from framework.registry.plugin import Plugin

NOT_INSTALLED = "not installed"
"""Stands for the distribution of such a plugin."""


def located(kind: str, name: str) -> Plugin | None:
    """The plugin of a name that is a place; None where it is none. Imports nothing.

    A file is a place whether it exists or not; a module only where one of its top-level name can be found.
    """
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute:
        return None
    if place.endswith(".py"):
        return Plugin(kind, name, f"{Path(place).absolute()}:{attribute}", NOT_INSTALLED, "")
    top = place.partition(".")[0]
    if not top.isidentifier() or not (top in sys.modules or _is_found(top)):
        return None
    return Plugin(kind, name, name, NOT_INSTALLED, "")


def _is_found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


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
