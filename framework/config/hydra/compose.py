"""From overrides to one checked configuration, and what Hydra refuses as one sentence of ours."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal.hydra import Hydra
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError

from framework import registry
from framework.config.check import parse
from framework.config.config import GROUPS, Config, default_choices
from framework.config.hydra.overrides import normalise, quote
from framework.config.hydra.source import search_path
from framework.errors import ConfigError, FrameworkError, did_you_mean, listing

CONFIG_NAME = "config"
HYDRA_ERRORS = (
    HydraException, OmegaConfBaseException, YAMLError, ValueError, RecursionError, KeyError,
)  # fmt: skip
"""What Hydra raises for overrides and YAML files that it refuses."""


def compose(overrides: Sequence[str] = (), *, config_dir: str | Path | None = None) -> DictConfig:
    """The configuration of these overrides, in either spelling, checked. What notebooks and tests call.

    Args:
        config_dir: a further folder of YAML groups, searched after ours.

    Raises:
        ConfigError: an override or value that cannot be run.
        UnknownPlugin, DuplicatePlugin, PluginImportError, PluginError: a chosen component.
    """
    config = compose_normal(normalise(overrides), search_path(config_dir))
    checked(config)
    return config


def compose_normal(overrides: Sequence[str], path: ConfigSearchPath, config_name: str = CONFIG_NAME) -> DictConfig:
    """The composed configuration of normalised overrides, not checked and without Hydra's own node.

    Raises:
        FrameworkError: Hydra refuses an override.
    """
    try:
        return _composed(overrides, path, config_name)
    except HYDRA_ERRORS as error:
        raise refusal(error, overrides, path) from error


def _composed(overrides: Sequence[str], path: ConfigSearchPath, config_name: str = CONFIG_NAME) -> DictConfig:
    version.setbase("1.3")
    with global_hydra(path) as hydra:
        config = hydra.compose_config(
            config_name=config_name, overrides=list(overrides), run_mode=RunMode.RUN, with_log_configuration=False
        )
    return without_hydra(config)


@contextmanager
def global_hydra(path: ConfigSearchPath) -> Iterator[Hydra]:
    """A Hydra over this search path, which is the global one meanwhile."""
    previous = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        yield Hydra.create_main_hydra2(task_name="kvlab", config_search_path=path)
    finally:
        GlobalHydra.instance().hydra = previous


def without_hydra(config: DictConfig) -> DictConfig:
    """This configuration, from which Hydra's own node is dropped. Values in `${hydra:...}` are of that node."""
    if "hydra" in config:
        if OmegaConf.is_missing(config.hydra.runtime, "output_dir"):  # Hydra makes the folder when a job begins
            own = config.hydra.run if config.hydra.mode != RunMode.MULTIRUN else config.hydra.sweep
            with open_dict(config):
                config.hydra.runtime.output_dir = os.path.join(str(own.dir), own.get("subdir") or "")
        HydraConfig.instance().set_config(config)
    OmegaConf.set_struct(config, False)
    config.pop("hydra", None)
    OmegaConf.set_struct(config, True)
    return config


def checked(config: DictConfig, *, missing_allowed: bool = False) -> Config:
    """A composed configuration, resolved, typed and checked: what `framework.api.run` takes.

    Args:
        missing_allowed: leave out keys that have no value yet, to show a configuration that cannot be run.

    Raises:
        ConfigError and what `config.check.parse` raises.
    """
    try:
        plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=not missing_allowed)
    except MissingMandatoryValue as error:
        key = error.full_key or str(error)
        raise ConfigError(f"{key} has no value; set {key}=...") from error
    except OmegaConfBaseException as error:
        raise ConfigError(_in_one_line(error)) from error
    return _parsed(plain)


def _parsed(values: Any) -> Config:
    for group in GROUPS:
        if values.get(group) is None:
            raise ConfigError(f"{group} has no choice; set {group}=NAME")
    return parse({str(key): value for key, value in values.items()})


def refusal(error: Exception, overrides: Sequence[str], path: ConfigSearchPath) -> FrameworkError:
    """What is wrong with normalised overrides that Hydra refused: in our words where our checks find it, else in its.

    Args:
        error: what it raised, one of HYDRA_ERRORS.
    """
    cause: BaseException | None = error
    while cause is not None:  # of a plugin that it loaded
        if isinstance(cause, FrameworkError):
            return cause
        cause = cause.__cause__
    parser = OverridesParser.create()
    parsed: list[Override] = []
    for override in overrides:
        try:
            parsed.append(parser.parse_override(override))
        except (HydraException, ValueError) as unread:
            reason = _in_one_line(unread)
            return ConfigError(f"cannot read the override {override[:120]!r}: {reason}; {_how_to_quote(override)}")
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _no_option(str(error.missing_cfg_file), list(error.options or ()))
    try:
        _check_values(parsed, path)
    except FrameworkError as refused:
        return refused
    except HYDRA_ERRORS:
        pass
    return ConfigError(f"cannot compose the configuration: {_in_one_line(error)}")


def _how_to_quote(override: str) -> str:
    """How a value that Hydra's grammar does not read is typed. The shell takes the outer quotes away."""
    key, equals, value = override.partition("=")
    if not equals:
        return "write KEY=VALUE"
    text = value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
    return f"if its value is that text, type {shlex.quote(f'{key}={quote(text)}')}"


def _check_values(parsed: Sequence[Override], path: ConfigSearchPath) -> None:
    """Set each value in the configuration of the choices, whatever Hydra thinks of its key, and check the result."""
    groups = default_choices()
    is_choice = [one.key_or_group in groups or re.match(r"hydra\b", one.key_or_group) for one in parsed]
    choices = [one.input_line for one, choice in zip(parsed, is_choice, strict=True) if choice and one.input_line]
    values: Any = OmegaConf.to_container(_composed(choices, path))
    for one, choice in zip(parsed, is_choice, strict=True):
        if choice or one.is_delete() or one.is_sweep_override():
            continue
        node = values
        *parents, leaf = one.key_or_group.split(".")
        for parent in parents:
            inner = node.get(parent)
            node[parent] = inner if isinstance(inner, dict) else {}
            node = node[parent]
        node[leaf] = one.value()
    _parsed(values)


def _no_option(missing: str, options: Sequence[str]) -> FrameworkError:
    group, _, name = missing.removesuffix(".yaml").rpartition("/")
    if group in registry.groups():
        try:
            registry.find(group, name)
        except FrameworkError as error:
            return error
    near = did_you_mean(name, options)
    hint = "; a file or folder of that name is not there either" if group in ("model", "workload") and not near else ""
    return ConfigError(f"no {group or 'configuration'} named {name!r}; options: {listing(options)}{near}{hint}")


def _in_one_line(error: Exception) -> str:
    """An error of Hydra's or OmegaConf's with its cause, without pointers to manuals."""
    if isinstance(error, RecursionError):
        return "a YAML file or its defaults list names itself, or is nested too deeply"
    message = str(error) if error.__cause__ is None else f"{error}\n{error.__cause__}"
    wanted = [
        line.strip()
        for line in message.splitlines()
        if not re.match(r"\s*(See |Set the environment|object_type)", line)
    ]
    text = " ".join(filter(None, wanted))
    return (
        text
        if isinstance(error, (HydraException, OmegaConfBaseException, YAMLError))
        else f"{type(error).__name__}: {text}"
    )
