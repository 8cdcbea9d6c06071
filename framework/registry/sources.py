"""What a plugin's source says of it, read without running it: first sentence, options, place."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from framework.registry.kinds import SHARED
from framework.registry.lookup import Plugin

_HOPS = 6
"""Imports and base classes that are followed from a plugin's entry point, at most."""


@dataclass(frozen=True, slots=True)
class Source:
    """A class as its source shows it.

    Attributes:
        summary: first sentence of its docstring, or of its module's; "" where there is none.
        options: the constructor's own keywords as they are written, such as `k=2`; `k` alone has no default.
    """

    summary: str = ""
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Class:
    node: ast.ClassDef
    module: str
    path: Path
    tree: ast.Module


def read_source(plugin: Plugin) -> Source:
    """What the source of a plugin's class says; empty where there is no Python source to read."""
    module, _, attribute = plugin.value.rpartition(":")
    cls = _find(module, attribute.split(".")[0], _HOPS)
    if cls is None:
        return Source()
    text = ast.get_docstring(cls.node) or ast.get_docstring(cls.tree) or ""
    return Source(first_sentence(text), tuple(_options(cls)))


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, on one line, or its whole first paragraph where no sentence ends in it."""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    end = re.search(r"(?<![A-Z])(?<!e\.g)(?<!i\.e)(?<!et al)(?<!vs)[.!?](?=\s+[A-Z`(\d])", paragraph)
    return paragraph[: end.end()] if end else paragraph


def _options(found: _Class) -> Iterator[str]:
    for cls in _with_bases(found, _HOPS):
        if _has_fields(cls.node):
            yield from _fields(found)
            return
        for node in cls.node.body:
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                yield from _keywords(node.args)
                return


def _has_fields(node: ast.ClassDef) -> bool:
    """Whether it is a dataclass, or a model of pydantic's."""
    decorators = (one.func if isinstance(one, ast.Call) else one for one in node.decorator_list)
    names = {one.id for one in (*decorators, *node.bases) if isinstance(one, ast.Name)}
    return bool(names & {"dataclass", "BaseModel", "Options"})


def _fields(found: _Class) -> Iterator[str]:
    """A class's fields, its bases' first, as its constructor takes them."""
    fields: dict[str, ast.expr | None] = {}
    for cls in reversed([*_with_bases(found, _HOPS)]):
        for node in cls.node.body if _has_fields(cls.node) else ():
            if not isinstance(node, ast.AnnAssign) or "ClassVar" in ast.unparse(node.annotation):
                continue
            if isinstance(node.target, ast.Name) and node.target.id not in SHARED:
                fields[node.target.id] = _default(node.value)
    for name, default in fields.items():
        yield name if default is None else f"{name}={ast.unparse(default)}"


def _default(value: ast.expr | None) -> ast.expr | None:
    """A field's default; of pydantic's `Field`, its first argument."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "Field":
        return value.args[0] if value.args else None
    return value


def _with_bases(found: _Class, hops: int) -> Iterator[_Class]:
    """The class and its bases, nearest first, as far as their source can be found."""
    yield found
    for base in found.node.bases:
        if isinstance(base, ast.Name) and hops:
            parent = _find(found.module, base.id, hops - 1, found)
            if parent is not None:
                yield from _with_bases(parent, hops - 1)


def _keywords(arguments: ast.arguments) -> Iterator[str]:
    positional = arguments.args[1:]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults)) + [*arguments.defaults]
    pairs = [*zip(positional, defaults[-len(positional) :] if positional else [], strict=True)]
    for argument, default in [*pairs, *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]:
        if argument.arg not in SHARED:
            yield argument.arg if default is None else f"{argument.arg}={ast.unparse(default)}"


def _find(module: str, name: str, hops: int, within: _Class | None = None) -> _Class | None:
    """The class of this name in a module, or where the module imports it from."""
    if within is not None:
        path, tree = within.path, within.tree
    else:
        place = Path(module) if module.endswith(".py") else source_path(module)
        parsed = _parsed(place) if place is not None and place.suffix == ".py" else None
        if place is None or parsed is None:
            return None
        path, tree = place, parsed
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _Class(node, module, path, tree)
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _find(_absolute(module, path, node), alias.name, hops - 1) if hops else None
    for inner in ast.walk(tree) if within is None else ():  # a class within a function or a condition
        if isinstance(inner, ast.ClassDef) and inner.name == name:
            return _Class(inner, module, path, tree)
    return None


@lru_cache(maxsize=256)
def _parsed(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def _absolute(module: str, path: Path, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def source_path(module: str) -> Path | None:
    """Where a module's source (or a package's `__init__.py`, or a namespace folder) lies; imports nothing."""
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if not rest:
        if spec.origin:
            return Path(spec.origin)
        return Path(next(iter(spec.submodule_search_locations))) if spec.submodule_search_locations else None
    for folder in spec.submodule_search_locations or ():
        base = Path(folder).joinpath(*rest)
        for candidate in (base.with_name(base.name + ".py"), base / "__init__.py", base):
            if candidate.is_file() or (candidate == base and base.is_dir()):
                return candidate
    return None
