"""What installed plugins add to every run: metrics, names of files, figures and tables, which their classes declare."""

from __future__ import annotations

from functools import cache
from typing import Any

from framework import registry
from framework.errors import FrameworkError

_KINDS = ("observer",)
"""Kinds of plugin whose classes declare such things."""


@cache
def contributed(what: str) -> tuple[Any, ...]:
    """Of all installed plugins the entries of their class's attribute `what`; those that do not load have none."""
    found: list[Any] = []
    for kind in _KINDS:
        for plugin in registry.entries(kind):
            try:
                found += getattr(registry.load(kind, plugin.full_name), what, ())
            except FrameworkError:
                continue  # whoever chooses it is told
    return tuple(found)
