"""Installed plugins: finding them, describing their constructors, making one."""

from framework.registry.construction import build, check_options, checked_options, own_options, parameters
from framework.registry.content import content_of, framework_content
from framework.registry.entry_points import choice, clashes, entries, find, names, points
from framework.registry.kinds import KINDS, SHARED, Kind, check_kind, groups, interface_of, kinds
from framework.registry.lookup import load, title
from framework.registry.plugin import Plugin
from framework.registry.sources import Source, read_source, source_path, summary

__all__ = [
    "KINDS",
    "SHARED",
    "Kind",
    "Plugin",
    "Source",
    "build",
    "check_kind",
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
    "own_options",
    "parameters",
    "points",
    "read_source",
    "source_path",
    "summary",
    "title",
]
