"""The class that a word on the command line means, and how it is made."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from framework import registry
from framework.errors import ConfigError, InvalidPlugin, PluginImportError, UnknownPlugin, did_you_mean, listing
from framework.guard.boundary import construct
from framework.registry.lookup import import_class
from framework.registry.signatures import signature

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
        UnknownPlugin, DuplicatePlugin, PluginImportError, PluginError: it cannot be had.
    """
    kinds = [kind] if kind is not None else _kinds_of(what)
    if len(kinds) > 1:
        raise ConfigError(f"{what!r} is of several kinds: {listing(kinds)}; say which with --kind")
    (kind,) = kinds
    title, cls = registry.title(registry.find(kind, what)), registry.load(kind, what)
    whole = signature(cls)
    bound = registry.checked_options(kind, what, options or {}, registry.own_options(cls))
    bound |= {name: value for name, value in _FIXED.items() if name in whole.names()}
    given = (*bound, *(_GIVEN_BY_KIT if kind == "allocator" else ()))
    lacking = [parameter.name for parameter in whole.parameters if parameter.required and parameter.name not in given]
    if lacking:
        raise InvalidPlugin(f"{title} asks for {listing(lacking)}, which no {kind} is given")
    if kind != "allocator":
        construct(kind, what, cls, bound)  # or nothing can be checked
    return Subject(kind, what, title, cls, functools.partial(cls, **bound) if bound else cls)


def _kinds_of(what: str) -> Sequence[str]:
    """The kinds in which something installed has this name; of a class that is not installed, those it implements."""
    installed = [
        kind
        for kind in registry.kinds(with_kit=True)
        if any(what in (p.name, p.full_name) for p in registry.entries(kind))
    ]
    if installed:
        return installed
    if ":" not in what:
        everything = sorted({name for kind in registry.kinds(with_kit=True) for name in registry.names(kind)})
        raise UnknownPlugin(
            f"no plugin named {what!r} is installed (`python -m framework plugins` lists them; a class that is not "
            f"installed is named MODULE:CLASS or FILE.py:CLASS){did_you_mean(what, everything)}"
        )
    try:
        cls = import_class(what)
    except (Exception, SystemExit) as error:  # a plugin's module may raise anything at import
        raise PluginImportError(f"{what} cannot be imported: {type(error).__name__}: {error}") from error
    interfaces = {kind: registry.interface_of(kind) for kind in registry.kinds(with_kit=True)}
    kinds = [kind for kind in interfaces if isinstance(cls, type) and issubclass(cls, interfaces[kind])]
    if not kinds:
        bases = listing(interface.__name__ for interface in interfaces.values())
        raise InvalidPlugin(f"{what} is no class that implements one of {bases}")
    return kinds
