"""What the framework and its plugins are made of: a SHA-256 over the code of each."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from framework import __version__
from framework.registry.kinds import kinds
from framework.registry.lookup import NOT_INSTALLED, Plugin, entries
from framework.registry.points import DISTRIBUTION

_CODE = frozenset({".py", ".so", ".pyd", ".dylib", ".dll", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp"})
"""Suffixes of what counts as code. Other files of a package may be what a run writes there."""
_SHARED_FOLDERS = frozenset({"site-packages", "dist-packages"})
"""Where modules of many distributions lie beside each other."""


def content_of(plugin: Plugin) -> str:
    """SHA-256 over the version and the code of a plugin's distribution, hexadecimal.

    Of a distribution, editable or not, all packages that its plugins lie in; of a class that is not installed, its file
    and the modules and packages beside it that it imports. Each is read once a process, which imports it once, too.
    """
    places = {plugin.value}
    if plugin.distribution != NOT_INSTALLED:
        installed = (other for kind in kinds() for other in entries(kind))
        places |= {other.value for other in installed if other.distribution == plugin.distribution}
    return _content(f"{plugin.distribution} {plugin.version}", tuple(sorted({*map(_top, places)})))


def framework_content() -> str:
    """`content_of` the framework's own distribution, the built-in plugins included."""
    return content_of(Plugin("", "", "framework:", DISTRIBUTION, __version__))


def _top(value: str) -> str:
    """The file, or the top-level module, of a plugin's `module:Class`."""
    module = value.rpartition(":")[0]
    return module if module.endswith(".py") else module.partition(".")[0]


@cache
def _content(version: str, tops: tuple[str, ...]) -> str:
    digest = hashlib.sha256(version.encode())
    for root, path in sorted({found for top in tops for found in _files(top)}):
        digest.update(f"\0{path.relative_to(root.parent)}\0".encode("utf-8", "surrogateescape"))
        with suppress(OSError):  # what cannot be read cannot be imported either
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _files(top: str) -> Iterator[tuple[Path, Path]]:
    """(folder that names are relative to, file of code) of a file or a top-level module."""
    if top.endswith(".py"):
        yield from _imported_beside(Path(top).resolve())
        return
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return
    for folder in (spec and spec.submodule_search_locations) or ():
        yield from _code_in(Path(folder))
    if spec is not None and not spec.submodule_search_locations and spec.origin and Path(spec.origin).is_file():
        yield from _imported_beside(Path(spec.origin))


def _imported_beside(first: Path) -> Iterator[tuple[Path, Path]]:
    """A file, and the modules and packages in its folder that it imports, directly or not."""
    folder, files = first.parent, dict.fromkeys([first])
    for path in (waiting := [first]):
        for name in set() if folder.name in _SHARED_FOLDERS else _imports(path):
            module = folder / f"{name}.py"
            modules = [module] if module.is_file() else [inner for _, inner in _code_in(folder / name)]
            waiting += [one for one in modules if one not in files]
            files.update(dict.fromkeys(modules))
    yield from ((folder, path) for path in files)


def _code_in(folder: Path) -> Iterator[tuple[Path, Path]]:
    for path in folder.rglob("*"):
        if path.suffix in _CODE and path.is_file():
            yield folder, path


def _imports(path: Path) -> set[str]:
    """Top-level names of the modules that a file of Python imports, wherever it does."""
    names: set[str] = set()
    with suppress(OSError, SyntaxError, ValueError, RecursionError):
        for node in ast.walk(ast.parse(path.read_bytes())) if path.suffix == ".py" else ():
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    return names
