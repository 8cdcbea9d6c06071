"""Figures, one a file, each with a function `draw(...)` that returns a matplotlib Figure or None.

A figure of a run declares what it draws from, `SOURCE`, the name of a file in the run directory, with `TITLE`, `NOTE`
and `ORDER`; its `draw` takes that file's records. It needs no other line to stand in every report: files are listed.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

_NO_FIGURE = frozenset({"style"})


def names() -> list[str]:
    """All figures, by the names of their files."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in _NO_FIGURE)


def load(name: str) -> ModuleType:
    """The module of a figure."""
    return importlib.import_module(f"{__name__}.{name}")


def of_runs() -> Iterator[tuple[str, ModuleType]]:
    """(name, module) of the figures drawn from one file of a run directory, in their `ORDER`."""
    found = [(name, load(name)) for name in names()]
    yield from sorted((pair for pair in found if hasattr(pair[1], "SOURCE")), key=lambda pair: pair[1].ORDER)
