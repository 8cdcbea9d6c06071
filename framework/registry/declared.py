"""What installed plugins say of themselves on their classes, beside what a run chooses."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from framework.errors import FrameworkError
from framework.registry.lookup import choice, entries, load

KINDS = ("mode", "below", "observer")
"""The kinds whose classes declare metrics of a run, files that it writes, figures or tables of a report."""


@lru_cache
def declared(attribute: str) -> tuple[Any, ...]:
    """The entries of this tuple of every class of `KINDS` that is installed and loads, by kind and name."""
    found: list[Any] = []
    for plugin in (plugin for kind in KINDS for plugin in entries(kind)):
        try:
            found += getattr(load(plugin.kind, choice(plugin)), attribute, ())
        except FrameworkError:
            continue  # an error where it is chosen, and nobody's concern where it is not
    return tuple(dict.fromkeys(found))
