"""`python -m framework new NAME --kind KIND`: a package with one plugin, its tests and its entry point."""

from __future__ import annotations

import importlib.util
import keyword
import re
import shutil
import sys
from importlib.resources import files
from pathlib import Path
from string import Template

from framework import registry
from framework.errors import ConfigError
from framework.files.atomic import missing_folders, remove_empty
from framework.interfaces import CONTRACT
from framework.registry.contract import SINCE


def create(name: str, kind: str, folder: str | Path = ".") -> Path:
    """Write the package `name` with one plugin of `kind` below `folder`; returns its directory.

    `name` is the distribution's; the module and the plugin are called the same with underscores, the class in
    capitals. The plugin is complete and passes its kit: begin by changing its one method.

    Raises:
        ConfigError: no such kind, a name no module can have or that is taken, a directory that exists already.
    """
    registry.check_kind(kind)
    if not registry.kind_of(kind).kit:
        raise ConfigError(f"there is no template of a {kind}; kinds: {', '.join(registry.kinds(with_kit=True))}")
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


def usage(kind: str, plugin: str) -> str:
    """The command that uses a plugin of this kind."""
    return registry.kind_of(kind).command.format(kind=kind, name=plugin)


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
    """Every file of the new package: path -> content."""
    words = {
        "distribution": name,
        "package": package,
        "plugin": package,
        "kind": kind,
        "article": "An" if kind[0] in "aeiou" else "A",
        "cls": "".join(part[:1].upper() + part[1:] for part in package.split("_")),
        "since": ".".join(SINCE[CONTRACT].split(".")[:2]),
        "chosen": f"`{registry.kind_of(kind).chosen.format(kind=kind, name=package)}`",
        "command": usage(kind, package),
    }
    every, own = files("framework_testing") / "templates", files(registry.kind_of(kind).kit) / "templates" / kind
    sources = {
        "pyproject.toml": every / "pyproject.toml.tmpl",
        "README.md": every / "README.md.tmpl",
        f"{package}/__init__.py": every / "init.py.tmpl",
        f"{package}/{kind}.py": own / "plugin.py.tmpl",
        f"tests/test_{package}.py": own / "tests.py.tmpl",
    }
    texts = {path: Template(source.read_text()).substitute(words) for path, source in sources.items()}
    return texts | {f"{package}/py.typed": ""}
