"""`python -m framework new NAME --kind KIND`: a copy of one plugin of the example package, under another name."""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import re
import shutil
import sys
from importlib.resources import files
from pathlib import Path

from framework import registry
from framework.errors import ConfigError
from framework.files.atomic import missing_folders, remove_empty
from framework.interfaces.command import Command

EXAMPLE = files("framework_testing") / "example"
"""`plugins/framework-example`; within a wheel, its files are this package's data."""

_ENTRY = re.compile(r'^(\w+) = "framework_example\.(\w+):(\w+)"$', re.MULTILINE)


class New(Command):
    """Write a package with one plugin, its tests and its entry point."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", help="of the distribution, the module and the plugin, such as my-policy")
        parser.add_argument("--kind", required=True, help="one of: " + ", ".join(kinds()))
        parser.add_argument("--dir", default=".", help="where its directory is made; default: here")

    def run(self, options: argparse.Namespace) -> int:
        place = create(options.name, options.kind, options.dir)
        plugin = options.name.replace("-", "_")
        use = registry.kind_of(options.kind).command.format(kind=options.kind, name=plugin)
        print(  # noqa: T201
            f"wrote {place}; next:\n"
            f"  pip install -e {place}\n"
            f"  python -m framework check {plugin} --kind {options.kind}\n"
            f"  {use}\n"
            f"The idea is in {place / plugin / options.kind}.py."
        )
        return 0


def kinds() -> tuple[str, ...]:
    """The kinds of which the example has a plugin to copy, in its order."""
    return tuple(module for _, module, _ in _entries() if module in registry.kinds(with_kit=True))


def create(name: str, kind: str, folder: str | Path = ".") -> Path:
    """Write the package `name` with one plugin of `kind` below `folder`; returns its directory.

    `name` is the distribution's; the module and the plugin are called the same with underscores, the class in
    capitals. The plugin is complete and passes its kit: begin by changing its one method.

    Raises:
        ConfigError: no such kind, a name no module can have or that is taken, a directory that exists already.
    """
    registry.check_kind(kind)
    if kind not in kinds():
        raise ConfigError(f"there is no example of a {kind} to copy; kinds: {', '.join(kinds())}")
    package = _package(name, kind)
    place = Path(folder) / name
    if place.exists() or place.is_symlink():
        raise ConfigError(f"{place} exists already; nothing was written: choose another name or --dir")
    texts = _texts(name, package, kind)
    made = missing_folders(Path(folder))
    try:
        for path, text in texts.items():
            target = place / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
    except BaseException as error:
        shutil.rmtree(place, ignore_errors=True)  # no half package
        remove_empty(made)
        if not isinstance(error, OSError):
            raise
        raise ConfigError(f"cannot write {place}: {error.strerror}; choose another --dir") from error
    return place


def _entries() -> list[tuple[str, str, str]]:
    """(plugin, module, class) of each entry point of the example."""
    return _ENTRY.findall((EXAMPLE / "pyproject.toml").read_text())


def _package(name: str, kind: str) -> str:
    """The module's name, if the plugin may be called so."""
    package = name.replace("-", "_")
    if not re.fullmatch(r"[a-z](?:[a-z0-9_-]*[a-z0-9])?", name) or keyword.iskeyword(package):
        raise ConfigError(
            f"a plugin's name is lower-case letters, digits, - and _, begins with a letter and is no Python keyword; "
            f"found {name!r}"
        )
    for plugin in registry.entries(kind):
        if plugin.name == package:
            raise ConfigError(f"{kind} {package!r} is taken by {plugin.distribution} {plugin.version}; choose another")
    if package in sys.stdlib_module_names or importlib.util.find_spec(package) is not None:
        raise ConfigError(f"a module {package!r} is installed already and would be hidden; choose another name")
    return package


def _texts(name: str, package: str, kind: str) -> dict[str, str]:
    """Every file of the new package: path -> content.

    Of pyproject.toml and README.md, lines that name another plugin of the example, or another kind's entry points, are
    left out.
    """
    ((plugin, cls),) = ((plugin, cls) for plugin, module, cls in _entries() if module == kind)
    others = [re.escape(f'"framework.{other}"') for other in kinds() if other != kind]
    others += [rf"\b{other}\b" for other, module, _ in _entries() if module != kind]
    other_lines = re.compile(rf"^.*(?:{'|'.join(others)}).*\n", re.MULTILINE)
    words = {
        "framework-example": name,
        "framework_example": package,
        plugin: package,
        cls: "".join(part[:1].upper() + part[1:] for part in package.split("_")),
    }
    ours = re.compile(rf"\b({'|'.join(words)})(?![a-z])")

    def copied(path: str) -> str:
        text = (EXAMPLE / path).read_text()
        if "/" not in path:
            text = re.sub(r"\n{3,}", "\n\n", other_lines.sub("", text)).rstrip() + "\n"
        return ours.sub(lambda match: words[match[0]], text)

    return {
        "pyproject.toml": copied("pyproject.toml"),
        "README.md": copied("README.md"),
        f"{package}/__init__.py": copied("framework_example/__init__.py"),
        f"{package}/py.typed": "",
        f"{package}/{kind}.py": copied(f"framework_example/{kind}.py"),
        f"tests/test_{package}.py": copied(f"tests/test_{kind}.py"),
    }
