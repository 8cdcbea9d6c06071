"""Which plugins are installed, what their constructors take, and how one is made."""

from framework.registry.construction import build, check_options, checked_options, own_options, parameters
from framework.registry.entry_points import Plugin, choice, clashes, entries, find, names
from framework.registry.kinds import INTERFACES, SHARED, check_kind, interface_of, kinds
from framework.registry.lookup import load
from framework.registry.sources import source_path, summary

__all__ = [
    "INTERFACES",
    "SHARED",
    "Plugin",
    "build",
    "check_kind",
    "check_options",
    "checked_options",
    "choice",
    "clashes",
    "entries",
    "find",
    "interface_of",
    "kinds",
    "load",
    "names",
    "own_options",
    "parameters",
    "source_path",
    "summary",
]
