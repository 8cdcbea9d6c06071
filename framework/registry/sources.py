"""What a plugin's source says of it, read without running it."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

from framework.registry.plugin import Plugin


def summary(plugin: Plugin) -> str:
    """The first docstring line of the plugin's class, read from source without running it; `-` where there is none."""
    module, _, attribute = plugin.value.partition(":")
    return _class_summary(module, attribute.split(".")[0], hops=4) or "-"


def _class_summary(module: str, name: str, hops: int) -> str:
    path = source_path(module)
    if path is None or path.suffix != ".py" or hops == 0:
        return ""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _first_line(ast.get_docstring(node) or ast.get_docstring(tree) or "")
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _class_summary(_absolute(module, path, node), alias.name, hops - 1)
    return ""


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


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
