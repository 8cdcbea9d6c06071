"""Hydra's errors as one sentence with the nearest valid choice."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from framework import registry
from framework.config.check import parse_tiers
from framework.config.config import GROUPS, Config
from framework.config.hydra.overrides import by_name
from framework.config.sections import SECTIONS
from framework.errors import ConfigError, FrameworkError
from framework.model.options import MODELS
from framework.registry.signatures import convert, did_you_mean, listing, signature

HYDRA_ERRORS = (HydraException, OmegaConfBaseException, YAMLError, ValueError, RecursionError, KeyError)
"""What Hydra raises for overrides it refuses; a choice that is no name is a plain ValueError, a damaged file of a
`--config-dir` a YAMLError, one that names itself or is nested without end a RecursionError."""


def as_config_error(error: Exception, overrides: Sequence[str], path: ConfigSearchPath) -> FrameworkError:
    """What went wrong in composing `overrides` over `path`, as an error of ours."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, FrameworkError):
            return cause
        cause = cause.__cause__
    if isinstance(error, RecursionError):
        return ConfigError(
            "a YAML file's defaults list names itself, or one is nested too deeply; look at what was added last"
        )
    if type(error) is KeyError:  # of os.environ: Hydra copies these variables as it composes
        return ConfigError(f"hydra.job.env_copy names {error}, which is not set in the environment")
    if (said := _too_long(overrides)) is not None:
        return said
    if (refused := wrong_value(overrides, lambda: _composed(overrides, path))) is not None:
        return refused
    if isinstance(error, OverrideParseException):
        reason = str(error.message).splitlines()[0]
        return ConfigError(
            f"cannot read the override {error.override!r}: {reason}; write KEY=VALUE, quoted for the shell"
        )
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _no_option(str(error.missing_cfg_file), list(error.options or ()))
    text = _text(error)
    if isinstance(error, YAMLError):
        return ConfigError(f"cannot read the configuration: {text}")
    if "Config group override must be" in text:
        return _not_a_name(overrides)
    if several := re.search(r"Ambiguous value for argument '(.*?)' 1\. ", text):
        return ConfigError(
            f"{several[1][:120]}: several values are a sweep, run it with -m (--multirun); a list is written [A,B], "
            "and one value with a comma in quotes within quotes"
        )
    if index := re.search(r"cannot set (.*): (list index out of range|Index '.*' .* is not an int)", text):
        return ConfigError(f"{index[1][:120]}: the list has no such entry; set it whole, as in KEY=[ENTRY, ENTRY]")
    unknown = re.search(r"Could not (?:override|append[^']*|delete[^']*) '([^']*)'", text)
    if unknown and "No match in the defaults list" in text:
        return _no_group(unknown[1])
    if unknown and ("not in" in text or "No match" in text):
        return _unknown_key(unknown[1], overrides, path)
    return ConfigError(with_key(text))


def with_key(text: str) -> str:
    """OmegaConf's words with the key they are about in front, instead of behind among its own facts."""
    where = re.search(r"full_key: (\S+)", text)
    reason = " ".join(re.split(r"\s+full_key:", text, maxsplit=1)[0].split())
    if found := re.match(r"While dereferencing interpolation '\$\{([\w.]+)\}': Incompatible value '(\w*)'", reason):
        return f"{found[1]} must be text, found {found[2].replace('None', 'null')}"
    return reason if where is None or where[1] in reason else f"{where[1]}: {reason}"


def _too_long(overrides: Sequence[str]) -> ConfigError | None:
    """A number of more digits than Python reads."""
    for override in overrides:
        key, _, value = override.partition("=")
        if digits := re.search(r"\d{4301,}", value):
            return ConfigError(f"{key.lstrip('+')}: a number of {len(digits[0])} digits cannot be read")
    return None


def _text(error: Exception) -> str:
    parts = [str(error)]
    if error.__cause__ is not None and str(error.__cause__) not in parts[0]:
        parts.append(str(error.__cause__))
    lines = [line.strip() for part in parts for line in part.splitlines()]
    wanted = [line for line in lines if line and not line.startswith(("See ", "Set the environment", "To append"))]
    return " ".join(re.sub(r"^Error merging override (.*)$", r"cannot set \1:", line) for line in wanted)


def _not_a_name(overrides: Sequence[str]) -> ConfigError:
    for override in overrides:
        key, _, value = override.partition("=")
        if not key:
            return ConfigError(f"cannot read the override {override!r}: nothing before the '='; write KEY=VALUE")
        if key in _group_names() and (value in ("", "null") or not re.match(r"[A-Za-z_'\"]", value)):
            return by_name(key, override)
    return ConfigError("a choice must be a name; --help lists them")


def _no_option(missing: str, options: list[str]) -> FrameworkError:
    group, _, name = missing.removesuffix(".yaml").rpartition("/")
    if group in registry.groups():
        try:
            registry.find(group, name)
        except FrameworkError as error:
            return error
    near = did_you_mean(name, options)
    if group == "hydra/sweeper":
        return ConfigError(
            f"no {group} named {name!r}; options: {listing(options)}; optuna chooses the trials of "
            "`python -m framework.search NAME OVERRIDE...`"
        )
    hint = "; a file or folder of that name is not there either" if group in ("model", "workload") and not near else ""
    return ConfigError(f"no {group or 'configuration'} named {name!r}; options: {listing(options)}{near}{hint}")


def _no_group(key: str) -> ConfigError:
    """An `override /KEY: ...` of a defaults list whose key is no group."""
    name = key.strip("/").split("@")[0]
    if name in _settings():
        return ConfigError(
            f"a defaults list overrides `{name}`, which is a setting and no group; write `{name}: VALUE` below the list"
        )
    near = did_you_mean(name, _group_names())
    return ConfigError(
        f"a defaults list overrides {name!r}, which is no group; groups: {listing(_group_names())}{near}"
    )


def _unknown_key(key: str, overrides: Sequence[str], path: ConfigSearchPath) -> ConfigError:
    key = key.split("@")[0]
    if any(override.partition("=")[0] in _group_names() and override[-2:] in ("[]", "{}") for override in overrides):
        return _not_a_name(overrides)
    if key in _group_names():
        given = next((override for override in overrides if override.lstrip("+").partition("=")[0] == key), key)
        return by_name(key, given)
    config = _composed(overrides, path)
    group, _, option = key.partition(".")
    if group in registry.groups() and option and isinstance(config.get(group), dict):
        if option in registry.SHARED:
            return ConfigError(f"{key} is shared by all components; set {registry.SHARED[option]} instead")
        options = [name for name in config[group] if name != "name"]
        return ConfigError(
            f"{group} {config[group].get('name')!r} has no option {option!r}; its options: {listing(options)}"
            f"{did_you_mean(option, options)}"
        )
    known = _flat(config)
    parent = key.rpartition(".")[0]
    siblings = [name for name in known if name.rpartition(".")[0] == parent]
    near = did_you_mean(key, known)
    return ConfigError(
        f"unknown key {key!r}{near}" if near else f"unknown key {key!r}; keys: {listing(siblings or known[:30])}"
    )


def _composed(overrides: Sequence[str], path: ConfigSearchPath) -> dict[str, Any]:
    """The configuration under the choices among `overrides`, or under the defaults; empty where neither composes."""
    from framework.config.hydra.compose import compose_normal

    choices = [override for override in overrides if re.match(r"^\w+=[\w.:/-]+$", override)]
    groups = [override for override in choices if override.split("=")[0] in _group_names()]
    for attempt in (groups, []):
        try:
            plain = OmegaConf.to_container(compose_normal(attempt, path), resolve=False)
        except (FrameworkError, RecursionError):
            continue
        assert isinstance(plain, dict)
        return {str(key): value for key, value in plain.items()}
    return {}


def _settings() -> dict[str, Any]:
    from framework.config.defaults import default_settings

    return default_settings()


def _group_names() -> frozenset[str]:
    from framework.config.defaults import conf_folder, default_choices

    return frozenset(default_choices(conf_folder()))


def _flat(node: Mapping[str, Any], prefix: str = "") -> list[str]:
    keys = []
    for key, value in node.items():
        keys.append(f"{prefix}{key}")
        if isinstance(value, dict):
            keys.extend(_flat(value, f"{prefix}{key}."))
    return keys


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
        parse_tiers(value)
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
