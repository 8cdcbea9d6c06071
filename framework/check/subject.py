"""The class that a word on the command line means, and how it is made."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from framework import registry
from framework.errors import ConfigError, FrameworkError, InvalidPlugin, PluginError, PluginImportError, UnknownPlugin
from framework.guard.boundary import OUTSIDE, shown
from framework.registry.places import import_place
from framework.registry.signatures import did_you_mean, listing, signature

_GIVEN_BY_KIT = ("num_blocks", "block_size", "max_model_len", "hash", "eviction")
_FIXED: Mapping[str, Any] = {"seed": 0, "device": "cpu"}


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked.

    Attributes:
        name: as it was asked for.
        title: how messages name it, such as "eviction 'lru' (kvcache-framework 0.1.0)".
        make: gives a fresh instance; an allocator's takes the shared values that its kit hands it.
    """

    kind: str
    name: str
    title: str
    cls: type
    make: Callable[..., Any]


def resolve(what: str, kind: str | None = None, options: Mapping[str, Any] | None = None) -> Subject:
    """The plugin meant by an installed name, a `module:Class`, or a `path/to/file.py:Class`.

    Args:
        kind: decides when the name is taken in several kinds, or the class belongs to several.
        options: the constructor's own keywords, checked against its annotations.

    Raises:
        ConfigError: it is ambiguous, an option is wrong, or there is no such kind.
        UnknownPlugin, DuplicatePlugin, ContractMismatch, PluginImportError, PluginError: it cannot be had.
    """
    if kind is not None:
        registry.interface_of(kind)
    kind, title, cls = _imported(what, kind) if ":" in what and not _offering(what, kind) else _installed(what, kind)
    bound = _bound(kind, what, title, cls, options or {})
    make = functools.partial(cls, **bound) if bound else cls
    if kind != "allocator":
        _try(title, make)
    return Subject(kind, what, title, cls, make)


def _installed(name: str, kind: str | None) -> tuple[str, str, type]:
    kinds = [kind] if kind else _offering(name, None)
    if not kinds:
        everything = sorted({entry for one in registry.kinds() for entry in registry.names(one)})
        raise UnknownPlugin(
            f"no plugin named {name!r} is installed (`python -m framework.plugins` lists them; a class that is not "
            f"installed is named MODULE:CLASS or FILE.py:CLASS){did_you_mean(name, everything)}"
        )
    if len(kinds) > 1:
        raise ConfigError(f"{name!r} is the name of several plugins: {listing(kinds)}; say which with --kind")
    plugin = registry.find(kinds[0], name)
    return kinds[0], registry.title(plugin), registry.load(kinds[0], name)


def _offering(name: str, kind: str | None) -> list[str]:
    """The kinds in which something installed has this name, or is `DISTRIBUTION:NAME`."""
    kinds = registry.kinds() if kind is None else (kind,)
    return [one for one in kinds if any(name in (p.name, p.full_name) for p in registry.entries(one))]


def _imported(what: str, kind: str | None) -> tuple[str, str, type]:
    place, _, attribute = what.rpartition(":")
    try:
        found: Any = import_place(place)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # a plugin's module may raise anything at import
        raise PluginImportError(f"{what} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(found, type):
        raise InvalidPlugin(f"{what} is not a class: {found!r}")
    kinds = [one for one in registry.kinds() if issubclass(found, registry.interface_of(one))]
    if kind is None and len(kinds) != 1:
        bases = listing(registry.interface_of(one).__name__ for one in kinds or registry.kinds())
        raise ConfigError(
            f"{what} is a subclass of {bases}; say with --kind which to check it as" if kinds
            else f"{what} is a subclass of none of {bases}"
        )  # fmt: skip
    kind = kind or kinds[0]
    if kind not in kinds:
        raise InvalidPlugin(f"{what} is not a subclass of {registry.interface_of(kind).__name__}")
    if inspect.isabstract(found):
        raise InvalidPlugin(f"{what} does not implement {listing(sorted(getattr(found, '__abstractmethods__', ())))}")
    return kind, f"{kind} {what}", found


def _bound(kind: str, name: str, title: str, cls: type, options: Mapping[str, Any]) -> dict[str, Any]:
    whole = signature(cls)
    bound = registry.checked_options(kind, name, options, registry.own_options(cls))
    bound |= {name: value for name, value in _FIXED.items() if name in whole.names()}
    given = (*bound, *(_GIVEN_BY_KIT if kind == "allocator" else ()))
    lacking = [parameter.name for parameter in whole.parameters if parameter.required and parameter.name not in given]
    if lacking:
        raise InvalidPlugin(f"{title} asks for {listing(lacking)}, which no {kind} is given")
    return bound


def _try(title: str, make: Callable[..., Any]) -> None:
    try:
        make()
    except FrameworkError as error:
        raise type(error)(f"{title}: {error}") from error
    except OUTSIDE:
        raise
    except BaseException as error:
        raise PluginError(f"{title}: its constructor raised {shown(error)}") from error
