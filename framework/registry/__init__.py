"""Installed plugins: finding them, describing their constructors, making one."""

from framework.registry.components import build, check_options, checked_options, options_known, own_options
from framework.registry.content import content_of, framework_content
from framework.registry.kinds import KINDS, SHARED, groups, interface_of, kinds
from framework.registry.lookup import Plugin, choice, clashes, entries, find, load, names, points, title
from framework.registry.sources import read_source, source_path

__all__ = [
    "KINDS",
    "SHARED",
    "Plugin",
    "build",
    "check_options",
    "checked_options",
    "choice",
    "clashes",
    "content_of",
    "entries",
    "find",
    "framework_content",
    "groups",
    "interface_of",
    "kinds",
    "load",
    "names",
    "options_known",
    "own_options",
    "points",
    "read_source",
    "source_path",
    "title",
]
