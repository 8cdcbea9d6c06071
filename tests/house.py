"""Figures of the code's size and shape, to compare before and after a change; none of them is a limit.

    python tests/house.py [--long]

`--long` names every module, class and function that is counted. Run it from the project's root.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

SOURCE = (".py", ".cpp", ".hpp", ".cu")
NOT_OURS = frozenset({".venv", "build", "__pycache__", "third_party"})
MOST_METHODS, MOST_PARAMETERS, MOST_LINES = 18, 11, 80

Found = list[tuple[int, str]]


def files(folder: str, suffixes: tuple[str, ...] = SOURCE) -> list[Path]:
    """What we wrote below a folder."""
    return [p for p in sorted(Path(folder).rglob("*")) if p.suffix in suffixes and not NOT_OURS & set(p.parts)]


def num_lines(paths: list[Path]) -> int:
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def module_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def imports_of(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Module -> the modules of `trees` that it imports, those for type checking included."""
    found: dict[str, set[str]] = defaultdict(set)
    for module, tree in trees.items():
        for node in ast.walk(tree):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            found[module] |= {name for name in names if name in trees and name != module}
    return found


def circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules that reach each other by imports."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        left = [start]
        while left:
            for module in imports.get(left.pop(), ()):
                if module not in seen:
                    seen.add(module)
                    left.append(module)
        return seen

    reach = {module: reached(module) for module in list(imports)}
    groups = {
        frozenset(other for other in reach[module] if module in reach.get(other, ()))
        for module in reach if module in reach[module]
    }  # fmt: skip
    return sorted(map(sorted, groups), key=len, reverse=True)


def alone(imports: Mapping[str, set[str]], packages: set[str]) -> list[str]:
    """Modules that one other of their own package imports, and nobody else."""
    importers = defaultdict(set)
    for module, names in imports.items():
        for name in names - packages:
            importers[name].add(module)
    one = {name: next(iter(by)) for name, by in importers.items() if len(by) == 1}
    return sorted(name for name, by in one.items() if by.rpartition(".")[0] == name.rpartition(".")[0])


def large(trees: Mapping[str, ast.Module]) -> Iterator[tuple[str, Found]]:
    """What is larger than most: classes by methods, functions by parameters and by lines."""
    classes: Found = []
    wide: Found = []
    long: Found = []
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                methods = sum(isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)) for one in node.body)
                classes.append((methods, f"{module}.{node.name}"))
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                taken = node.args
                wide.append((len(taken.args + taken.kwonlyargs + taken.posonlyargs), f"{module}:{node.name}"))
                long.append(((node.end_lineno or node.lineno) - node.lineno + 1, f"{module}:{node.name}"))
    for title, found, most in (
        (f"classes over {MOST_METHODS} methods", classes, MOST_METHODS),
        (f"functions of more than {MOST_PARAMETERS} parameters", wide, MOST_PARAMETERS),
        (f"functions over {MOST_LINES} lines", long, MOST_LINES),
    ):
        yield title, sorted((one for one in found if one[0] > most), reverse=True)


def options() -> tuple[int, int]:
    """Settings of a run, and options of the installed components but workloads, whose options are their content."""
    from framework import registry
    from framework.config.config import SECTIONS

    settings = sum(len(section.model_fields) for section in SECTIONS.values())
    own = [registry.own_options(registry.load(kind, plugin.name)) for kind in registry.kinds() if kind != "workload"
           for plugin in registry.entries(kind) if plugin.distribution == "kvcache-framework"]  # fmt: skip
    return settings, sum(len(one.parameters) for one in own)


def main(long: bool) -> None:
    tests = files("tests") + [path for path in files("plugins") if "tests" in path.parts]
    groups = {
        "framework": files("framework"),
        "plugins": [path for path in files("plugins") if "tests" not in path.parts],
        "experiments": files("experiments"), "tests": tests, "docs": files("docs", (".md",)),
    }  # fmt: skip
    for name, paths in groups.items():
        print(f"{name:12} {len(paths):4} files {num_lines(paths):7,} lines")
    pages = [Path(name) for name in ("README.md", "DECISIONS.md", "CHANGELOG.md")]
    print("pages       ", ", ".join(f"{page} {num_lines([page])}" for page in pages))
    variables = Counter(name for path in [*groups["experiments"], *groups["framework"], *tests]
                        for name in re.findall(r"\bKVLAB_[A-Z_]+", path.read_text(encoding="utf-8")))  # fmt: skip
    settings, own = options()
    print(f"settings {settings}, options of components {own}, environment variables {len(variables)}")

    sources = {module_of(path): path for path in groups["framework"]}
    trees = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in sources.items()}
    imports = imports_of(trees)
    around = circles(imports)
    print(f"circles of imports {len(around)}, of files: {', '.join(str(len(one)) for one in around) or 'none'}")
    lists = [("modules with one importer, in their own package",
              [(1, name) for name in alone(imports, {m for m, p in sources.items() if p.name == "__init__.py"})]),
             *large(trees)]  # fmt: skip
    for title, found in lists:
        print(f"{title}: {len(found)}")
        for size, name in found if long else found[:3]:
            print(f"    {size:4} {name}")
    for one in around if long else ():
        print("circle:", *one)


if __name__ == "__main__":
    main("--long" in sys.argv[1:])
