"""Which plugins are installed, and which class is behind a name? Lazy: listing imports no plugin.

A plugin is one entry point of the group `framework.<kind>`; ours and a stranger's look the same. Any can be chosen as
`DISTRIBUTION:NAME`. A name that several distributions offer is ours, if we offer it: a stranger takes nothing away.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from framework import contract
from framework.errors import (
    ConfigError,
    ContractMismatch,
    DuplicatePlugin,
    FrameworkError,
    PluginError,
    PluginImportError,
    UnknownPlugin,
)
from framework.parameters import Parameter, Signature, convert, did_you_mean, listing, signature

INTERFACES: Mapping[str, str] = MappingProxyType(
    {
        "allocator": "framework.interfaces.allocator:Allocator",
        "eviction": "framework.interfaces.eviction:EvictionPolicy",
        "hash": "framework.interfaces.hash:HashScheme",
        "backend": "framework.interfaces.backend:AttentionBackend",
    }
)

SHARED: Mapping[str, str] = MappingProxyType(
    {
        "num_blocks": "cache.num_blocks",
        "block_size": "cache.block_size",
        "dtype": "cache.dtype",
        "layout": "cache.layout",
        "seed": "seed",
        "device": "device",
        "max_model_len": "engine.max_model_len",
        "hash": "hash",
        "eviction": "eviction",
    }
)
"""What several components share, and the configuration key that sets it. A constructor that names one is given it;
it is never one of the component's own options."""


@dataclass(frozen=True, slots=True, order=True)
class Plugin:
    """One entry point as installed. `value` is `module:Class`; nothing is imported."""

    kind: str
    name: str
    value: str
    distribution: str
    version: str

    @property
    def full_name(self) -> str:
        """`DISTRIBUTION:NAME`: means this plugin, whoever else offers its name."""
        return f"{self.distribution}:{self.name}"


def kinds() -> tuple[str, ...]:
    """The kinds of plugin, in the order they are shown."""
    return tuple(INTERFACES)


def entries(kind: str) -> list[Plugin]:
    """Every installed plugin of this kind, sorted by name then distribution. Imports none.

    Raises:
        ConfigError: no such kind.
    """
    _check_kind(kind)
    return list(_installed(_fingerprint())[kind])


def _fingerprint() -> tuple[tuple[str, int], ...]:
    """Changes whenever something is installed, removed or put on `sys.path`: a scan of all metadata takes 25 ms."""
    stamps = []
    for folder in sys.path:
        try:
            stamps.append((folder, os.stat(folder or ".").st_mtime_ns))
        except OSError:
            stamps.append((folder, 0))
    return tuple(stamps)


@functools.lru_cache(maxsize=4)
def _installed(fingerprint: tuple[tuple[str, int], ...]) -> dict[str, list[Plugin]]:
    points = importlib.metadata.entry_points()
    return {
        kind: sorted({Plugin(kind, p.name, p.value, *_origin(p)) for p in points.select(group=f"framework.{kind}")})
        for kind in INTERFACES
    }


def _origin(point: importlib.metadata.EntryPoint) -> tuple[str, str]:
    if point.dist is None:
        return "unknown", "unknown"
    return point.dist.metadata["Name"] or "unknown", point.dist.version or "unknown"


def names(kind: str) -> list[str]:
    """What can be chosen, sorted, each plugin once: its name, or `DISTRIBUTION:NAME` where the name is another's."""
    installed = entries(kind)
    return sorted({_choice(plugin, installed) for plugin in installed})


def choice(plugin: Plugin) -> str:
    """The shortest word that means this plugin."""
    return _choice(plugin, entries(plugin.kind))


def _choice(plugin: Plugin, installed: Sequence[Plugin]) -> str:
    namesakes = [other for other in installed if other.name == plugin.name]
    return plugin.name if len(namesakes) == 1 or _ours(namesakes) == [plugin] else plugin.full_name


def find(kind: str, name: str) -> Plugin:
    """The one plugin of this kind and name, or `DISTRIBUTION:NAME`. Imports nothing.

    Raises:
        UnknownPlugin: none; says what is installed and the nearest name.
        DuplicatePlugin: several distributions offer it, and none of them is ours.
    """
    installed = entries(kind)
    owner, _, bare = name.rpartition(":")
    matches = [plugin for plugin in installed if plugin.name == bare and (not owner or _is_of(plugin, owner))]
    if not installed:
        raise UnknownPlugin(
            f"no {kind} named {name!r}: no {kind} is installed at all; in the checkout, run `pip install -e .`"
        )
    if not matches:
        choices = names(kind)
        raise UnknownPlugin(
            f"no {kind} named {name!r}; installed: {listing(choices)}{did_you_mean(name, choices)}"
            if did_you_mean(name, choices)
            else f"no {kind} named {name!r}; installed: {listing(choices)}; "
            "after editing a pyproject.toml, `pip install -e .` again"
        )
    if len(matches) > 1 and len(_ours(matches)) != 1:
        owners = " and ".join(f"{plugin.distribution} {plugin.version}" for plugin in matches)
        words = " or ".join(dict.fromkeys(f"{kind}={plugin.full_name}" for plugin in matches))
        raise DuplicatePlugin(f"{kind} {name!r} is offered by {owners}; say which: {words}")
    return matches[0] if len(matches) == 1 else _ours(matches)[0]


def clashes(config: Mapping[str, Any]) -> list[str]:
    """Of a configuration's components: who else offers the chosen name, and how to choose theirs. Imports nothing."""
    chosen = [(kind, config.get(kind)) for kind in INTERFACES]
    words = [(kind, node.get("name") if isinstance(node, Mapping) else node) for kind, node in chosen]
    return [said for kind, name in words if isinstance(name, str) and (said := _clash(kind, name))]


def _clash(kind: str, name: str) -> str:
    others = [plugin for plugin in entries(kind) if plugin.name == name]
    if len(others) < 2 or len(_ours(others)) != 1:
        return ""
    chosen = _ours(others)[0]
    others.remove(chosen)
    owners = " and ".join(f"{plugin.distribution} {plugin.version}" for plugin in others)
    words = " or ".join(f"{kind}={plugin.full_name}" for plugin in others)
    return f"{kind} {name!r} is also offered by {owners}; this is {chosen.distribution}'s, theirs is {words}"


def _ours(plugins: Sequence[Plugin]) -> list[Plugin]:
    return [plugin for plugin in plugins if _is_of(plugin, contract.DISTRIBUTION)]


def _is_of(plugin: Plugin, distribution: str) -> bool:
    from packaging.utils import canonicalize_name

    return canonicalize_name(plugin.distribution) == canonicalize_name(distribution)


def load(kind: str, name: str) -> type:
    """The class behind a name; imports its module.

    Raises:
        UnknownPlugin, DuplicatePlugin: see `find`.
        ContractMismatch: it was made for another version of the plugin contract; its module is not imported.
        PluginImportError: the module does not import, or has no such class.
        PluginError: what it names is no implementation of the kind's interface.
    """
    plugin = find(kind, name)
    reason = contract.reason_against(plugin.distribution)
    if reason:
        raise ContractMismatch(
            f"{_title(plugin)} cannot be used: {reason}; install a version of {plugin.distribution} made for this one"
        )
    module, _, attribute = plugin.value.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # a stranger's module may raise anything at import
        raise PluginImportError(
            f"{_title(plugin)} cannot be imported from {plugin.value}: "
            f"{type(error).__name__}: {_first_line(str(error))}; reinstall or uninstall {plugin.distribution}"
        ) from error
    return _checked(plugin, found)


def _checked(plugin: Plugin, found: Any) -> type:
    interface = interface_of(plugin.kind)
    if not (isinstance(found, type) and issubclass(found, interface)):
        raise PluginError(f"{_title(plugin)}: {plugin.value} is not a subclass of {interface.__name__}")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        raise PluginError(f"{_title(plugin)}: {plugin.value} does not implement {missing}")
    return found


def interface_of(kind: str) -> type:
    """The abstract base class of a kind."""
    _check_kind(kind)
    module, _, attribute = INTERFACES[kind].partition(":")
    interface: type = getattr(importlib.import_module(module), attribute)
    return interface


def parameters(cls: type) -> tuple[Parameter, ...]:
    """The constructor's keywords with resolved types and defaults, shared ones included."""
    return signature(cls).parameters


def own_options(cls: type) -> Signature:
    """What a user may set of this class: its keywords without the shared ones."""
    whole = signature(cls)
    own = tuple(parameter for parameter in whole.parameters if parameter.name not in SHARED)
    return Signature(own, whole.open)


def check_options(kind: str, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as the constructor wants them, with nothing built.

    Raises:
        ConfigError: an unknown key, a missing value, a wrong type, a choice outside a Literal, a shared name.
        UnknownPlugin, DuplicatePlugin, PluginImportError, PluginError: see `load`.
    """
    return checked_options(kind, name, options, own_options(load(kind, name)))


def checked_options(kind: str, name: str, options: Mapping[str, Any], offered: Signature) -> dict[str, Any]:
    """`check_options` for a constructor that takes what is `offered`; `name` is for the message."""
    known = {parameter.name: parameter for parameter in offered.parameters}
    checked: dict[str, Any] = {}
    for key, value in options.items():
        if key in known:
            checked[key] = convert(value, known[key].annotation, f"{kind}.{key}")
        elif key in SHARED:
            raise ConfigError(f"{kind}.{key} is shared by all components; set {SHARED[key]} instead")
        elif offered.open:
            checked[key] = value
        else:
            raise ConfigError(
                f"{kind} {name!r} has no option {key!r}; its options: {listing(known)}{did_you_mean(key, known)}"
            )
    for parameter in offered.parameters:
        if parameter.required and parameter.name not in checked:
            raise ConfigError(f"{kind} {name!r} needs a value for {parameter.name!r}; set {kind}.{parameter.name}=...")
    return checked


def build(
    kind: str, name: str, options: Mapping[str, Any] | None = None, shared: Mapping[str, Any] | None = None
) -> Any:
    """One component: the class behind `name`, made from its checked options and the shared values it names.

    Args:
        options: the component's own keywords; a key of `shared` is refused here.
        shared: values for all components; those that the constructor names by keyword are passed, the rest ignored.

    Raises:
        ConfigError: see `check_options`.
        UnknownPlugin, DuplicatePlugin, PluginImportError: see `load`.
        PluginError: the constructor raised, or names a shared value that is not given here.
    """
    shared = shared or {}
    cls = load(kind, name)
    whole = signature(cls)
    own = tuple(parameter for parameter in whole.parameters if parameter.name not in shared)
    required_shared = [parameter.name for parameter in own if parameter.required and parameter.name in SHARED]
    lacking = [key for key in required_shared if key not in (options or {})]
    if lacking:
        raise PluginError(f"{kind} {name!r} asks for {listing(lacking)}, which a {kind} is not given here")
    arguments = checked_options(kind, name, options or {}, Signature(own, whole.open))
    given = set(whole.names())
    arguments.update((key, value) for key, value in shared.items() if key in given)
    try:
        return cls(**arguments)
    except FrameworkError as error:
        if error.args and isinstance(error.args[0], str):
            error.args = (f"{kind} {name!r}: {error.args[0]}", *error.args[1:])
        raise
    except Exception as error:
        raise PluginError(
            f"{kind} {name!r}: its constructor raised {type(error).__name__}: {_first_line(str(error))}"
        ) from error


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


def _check_kind(kind: str) -> None:
    if kind not in INTERFACES:
        raise ConfigError(
            f"no kind of plugin is named {kind!r}; kinds: {listing(INTERFACES)}{did_you_mean(kind, INTERFACES)}"
        )


def _title(plugin: Plugin) -> str:
    return f"{plugin.kind} {plugin.name!r} ({plugin.distribution} {plugin.version})"


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
