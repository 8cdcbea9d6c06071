"""Construction of components from a name, a mapping or a class, whose options are checked first. Imports no torch."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any

from framework.errors import ConfigError, FrameworkError, InvalidPlugin, did_you_mean, listing, shown
from framework.guard.boundary import check_flags, construct
from framework.registry.kinds import SHARED
from framework.registry.lookup import load
from framework.registry.signatures import Signature, signature
from framework.validation import check

if TYPE_CHECKING:
    from framework.interfaces.allocator import Allocator

Component = str | Mapping[str, Any] | type | object


def own_options(cls: type) -> Signature:
    """What a user may set of this class: its keywords without the shared ones."""
    whole = signature(cls)
    parameters = tuple(parameter for parameter in whole.parameters if parameter.name not in SHARED)
    return Signature(parameters, whole.open)


def check_options(kind: str, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as the constructor wants them, with nothing built.

    Raises:
        ConfigError: an unknown key, a missing value, a wrong type, a choice outside a Literal, a shared name.
        UnknownPlugin, DuplicatePlugin, PluginImportError, PluginError: see `load`.
    """
    return checked_options(kind, name, options, own_options(load(kind, name)))


def options_known(kind: str, name: str) -> Container[str] | None:
    """The options of a plugin, by name; None where it takes any, or cannot be loaded."""
    try:
        offered = own_options(load(kind, name))
    except FrameworkError:
        return None
    return None if offered.open else {parameter.name for parameter in offered.parameters}


def checked_options(kind: str, name: str, options: Mapping[str, Any], offered: Signature) -> dict[str, Any]:
    """`check_options` for a constructor that takes what is `offered`; `name` is for the message."""
    known = {parameter.name: parameter for parameter in offered.parameters}
    checked: dict[str, Any] = {}
    for key, value in options.items():
        if key in known:
            checked[key] = check(value, known[key].annotation, f"{kind}.{key}")
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
        PluginError: the constructor names a shared value that is not given here.
    """
    shared = shared or {}
    cls = load(kind, name)
    whole = signature(cls)
    parameters = tuple(parameter for parameter in whole.parameters if parameter.name not in shared)
    required_shared = [parameter.name for parameter in parameters if parameter.required and parameter.name in SHARED]
    lacking = [key for key in required_shared if key not in (options or {})]
    if lacking:
        raise InvalidPlugin(f"{kind} {name!r} asks for {listing(lacking)}, which a {kind} is not given here")
    arguments = checked_options(kind, name, options or {}, Signature(parameters, whole.open))
    given = set(whole.names())
    arguments.update((key, value) for key, value in shared.items() if key in given)
    return construct(kind, name, cls, arguments)


def build_component(kind: str, component: Component, shared: Mapping[str, Any]) -> Any:
    """A name, a mapping with a name, or a class becomes an object; an object stays itself.

    Raises:
        ConfigError: nothing of these. And what `build` raises.
    """
    if isinstance(component, str):
        component = {"name": component}
    if isinstance(component, Mapping) and isinstance(component.get("name"), str):
        options = {key: value for key, value in component.items() if key != "name"}
        return build(kind, component["name"], options, shared)
    of = component if isinstance(component, type) else type(component)
    if of.__module__ == "builtins":
        raise ConfigError(
            f"{kind} must be a name, a mapping with a name, a class or an object, found {shown(component)}"
        )
    if isinstance(component, type):
        named = signature(component).names()
        return construct(kind, component.__name__, component, {key: shared[key] for key in shared if key in named})
    check_flags(kind, component)
    return component


def build_allocator(
    allocator: Component,
    eviction: Component,
    hash: Component,
    *,
    num_blocks: int,
    block_size: int,
    max_model_len: int,
    seed: int = 0,
) -> Allocator:
    """The allocator with its policy and hash scheme."""
    if block_size < 1:
        raise ConfigError(f"cache.block_size must be at least 1, found {block_size}")
    shared: dict[str, Any] = {
        "num_blocks": num_blocks,
        "block_size": block_size,
        "max_model_len": max_model_len,
        "seed": seed,
    }
    shared["eviction"] = build_component("eviction", eviction, shared)
    shared["hash"] = build_component("hash", hash, shared)
    built: Allocator = build_component("allocator", allocator, shared)
    return built
