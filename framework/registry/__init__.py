"""Installed plugins: finding them, describing their constructors, making one."""

from framework.registry.components import build, check_options, checked_options, options_known, own_options
from framework.registry.content import content_of, framework_content
from framework.registry.kinds import SHARED, Kind, check_kind, groups, interface_of, kind_of, kinds
from framework.registry.lookup import Plugin, choice, declared, entries, find, load, names, title
from framework.registry.points import points
from framework.registry.sources import read_source, source_path

__all__ = [
    "SHARED",
    "Kind",
    "Plugin",
    "build",
    "check_kind",
    "check_options",
    "checked_options",
    "choice",
    "content_of",
    "declared",
    "entries",
    "find",
    "framework_content",
    "groups",
    "interface_of",
    "kind_of",
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
