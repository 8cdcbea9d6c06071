"""Values of overrides that do not fit their keys, in the words of the configuration instead of OmegaConf's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from framework import registry
from framework.config.check import component
from framework.config.config import GROUPS, Config
from framework.config.sections import SECTIONS
from framework.config.tiers import parse_tiers
from framework.errors import FrameworkError
from framework.model.options import MODELS
from framework.registry.signatures import convert, signature


def wrong_value(overrides: Sequence[str], composed: Callable[[], Mapping[str, Any]]) -> FrameworkError | None:
    """What the first override is refused for whose value is of another type than its key; None where each fits.

    Args:
        composed: the configuration of the choices among the overrides, asked for where a component's option is set.
    """
    parser = OverridesParser.create()
    for override in overrides:
        try:
            parsed = parser.parse_override(override)
            if parsed.is_delete() or parsed.is_sweep_override():
                continue
            key, value = parsed.key_or_group, parsed.value()
        except HydraException:
            continue  # what cannot be read is another sentence
        try:
            _check(key, value, composed)
        except FrameworkError as error:
            return error
    return None


def _check(key: str, value: Any, composed: Callable[[], Mapping[str, Any]]) -> None:
    first, _, name = key.partition(".")
    if key in SECTIONS:
        if isinstance(value, Mapping):
            for entry, own in value.items():
                SECTIONS[key].check(str(entry), own)
        else:
            SECTIONS[key].parse(value)
    elif "." in name or "${" in str(value) or value == "???":
        return  # below a setting, or known once all is composed
    elif first in SECTIONS:
        if name in {field.name for field in fields(SECTIONS[first])}:  # an unknown one is another sentence
            SECTIONS[first].check(name, value)
    elif key == "tiers":
        parse_tiers(value, component)
    elif first in GROUPS and name:
        _check_option(first, name, value, composed)
    elif key in ("mode", "executor", "seed", "device"):
        Config.check(key, value)


def _check_option(group: str, name: str, value: Any, composed: Callable[[], Mapping[str, Any]]) -> None:
    node = composed().get(group)
    chosen = node.get("name") if isinstance(node, Mapping) else None
    if not isinstance(chosen, str):
        return
    if group in registry.kinds():
        offered = registry.own_options(registry.load(group, chosen))
    elif chosen in MODELS:
        offered = signature(MODELS[chosen])
    else:
        return
    for parameter in offered.parameters:
        if parameter.name == name:
            convert(value, parameter.annotation, f"{group}.{name}")
