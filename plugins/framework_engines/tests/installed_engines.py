"""Another engine's own cache code, from its installed files, without the hundred packages it would pull in.

`pip install --no-deps sglang` puts the files there; importing the package as such asks for a GPU build of torch,
servers and tokenizers. The modules named here are executed from those files; whatever else they import of their own
distribution, or of packages that are absent, is a blank whose classes do nothing. None of the blanks decides about the
cache: they are loggers, metrics, wire formats and kernels.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SGLANG = (
    "sglang.srt.mem_cache.base_prefix_cache",
    "sglang.srt.mem_cache.cache_init_params",
    "sglang.srt.mem_cache.evict_policy",
    "sglang.srt.mem_cache.events",
    "sglang.srt.mem_cache.radix_cache",
    "sglang.srt.mem_cache.utils",
)


def installed(distribution: str) -> Path:
    """Where a distribution's package lies; skips the test where it does not."""
    try:
        found = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{distribution} is not installed: pip install --no-deps {distribution}")
    return Path(str(found.locate_file(distribution)))


@contextmanager
def executed(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """These modules of one distribution, importable meanwhile and forgotten after; by their last name.

    Skips the test, with the reason, where the installed version has no such module or one that cannot be executed so.
    """
    distribution = names[0].split(".")[0]
    finder = _Files(installed(distribution), frozenset(names))
    version = importlib.metadata.version(distribution)
    importlib.import_module("torch")  # what is installed is imported before blanks stand in for what is not
    before = dict(sys.modules)
    for name in [name for name in sys.modules if name.split(".")[0] == distribution]:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    sys.meta_path.append(finder.absent)
    try:
        try:
            modules = {name.rpartition(".")[2]: importlib.import_module(name) for name in names}
        except Exception as error:  # another version's files may fail in any way
            pytest.skip(f"{distribution} {version} is installed, but its files do not load alone: {error!r}")
        finally:
            sys.meta_path.remove(finder.absent)
        yield modules
    finally:
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - set(before):
            if name.split(".")[0] in {distribution, *finder.absent.made}:
                del sys.modules[name]
        sys.modules.update({name: module for name, module in before.items() if name.split(".")[0] == distribution})


class _Blank(types.ModuleType):
    """Has every name: a class that takes anything and does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (_Nothing,), {})
        setattr(self, name, made)
        return made


class _Nothing:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __init_subclass__(cls, **kwargs: Any) -> None: ...

    def __class_getitem__(cls, item: Any) -> Any:
        return cls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


class _BlankLoader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Blank(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


class _Files(importlib.abc.MetaPathFinder):
    """Executes the chosen modules of one package from its folder; its other modules are blank."""

    def __init__(self, folder: Path, chosen: frozenset[str]) -> None:
        self.folder, self.chosen, self.absent = folder, chosen, _Absent()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        top, *rest = name.split(".")
        if top != self.folder.name:
            return None
        if name in self.chosen:
            file = self.folder.joinpath(*rest).with_suffix(".py")
            if not file.is_file():
                raise ImportError(f"it has no {'/'.join([top, *rest])}.py")
            return importlib.util.spec_from_file_location(name, file)
        return importlib.machinery.ModuleSpec(name, _BlankLoader(), is_package=True)


class _Absent(importlib.abc.MetaPathFinder):
    """Blanks for packages that no other finder has."""

    def __init__(self) -> None:
        self.made: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec:
        self.made.add(name.split(".")[0])
        return importlib.machinery.ModuleSpec(name, _BlankLoader(), is_package=True)
