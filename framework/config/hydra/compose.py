"""From overrides to one checked configuration, and what Hydra refuses as one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError

from framework import registry
from framework.config.check import parse
from framework.config.config import GROUPS, Config, conf_folder, default_choices
from framework.config.hydra.overrides import normalise
from framework.config.hydra.source import register
from framework.errors import ConfigError, FrameworkError, did_you_mean, listing

CONFIG_NAME, VERSION_BASE = "config", "1.3"
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
    words = normalise(overrides)
    if config_dir is not None:
        words.append(f"hydra.searchpath=['file://{Path(config_dir).absolute()}']")
    try:
        config = _composed(words)
    except HYDRA_ERRORS as error:
        raise refusal(error, words) from error
    checked(config)
    return config


def _composed(words: Sequence[str]) -> DictConfig:
    with global_loader():
        return without_hydra(hydra.compose(CONFIG_NAME, list(words), return_hydra_config=True))


@contextmanager
def global_loader(*, importable_only: bool = False) -> Iterator[ConfigLoader]:
    """The loader of a Hydra over our configurations, which is the global one meanwhile."""
    register(importable_only=importable_only)
    previous = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        hydra.initialize_config_dir(str(conf_folder()), job_name="kvlab", version_base=VERSION_BASE)
        yield GlobalHydra.instance().config_loader()
    finally:
        GlobalHydra.instance().hydra = previous


def without_hydra(config: DictConfig) -> DictConfig:
    """This configuration, from which Hydra's own node is dropped. Values in `${hydra:...}` are of that node."""
    HydraConfig.instance().set_config(config)
    OmegaConf.set_struct(config, False)
    config.pop("hydra", None)
    OmegaConf.set_struct(config, True)
    return config


def checked(config: DictConfig) -> Config:
    """A composed configuration, resolved, typed and checked: what `framework.api.run` takes.

    Raises:
        ConfigError and what `config.check.parse` raises.
    """
    try:
        values: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        key = error.full_key or str(error)
        raise ConfigError(f"{key} has no value; set {key}=...") from error
    except OmegaConfBaseException as error:
        raise ConfigError(_in_one_line(error)) from error
    for group in GROUPS:
        if values.get(group) is None:
            raise ConfigError(f"{group} has no choice; set {group}=NAME")
    return parse({str(key): value for key, value in values.items()})


def refusal(error: Exception, words: Sequence[str]) -> FrameworkError:
    """What is wrong with normalised overrides that Hydra refused: in our words where our checks find it, else in its.

    Args:
        error: what it raised, one of HYDRA_ERRORS.
    """
    cause: BaseException | None = error
    while cause is not None:  # of a plugin that it loaded
        if isinstance(cause, FrameworkError):
            return cause
        cause = cause.__cause__
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _no_option(str(error.missing_cfg_file), list(error.options or ()))
    if isinstance(error, OverrideParseException):
        return ConfigError(f"cannot read the override {error.override[:120]!r}: {_in_one_line(error)}")
    try:
        checked(_composed([_forced(word) for word in words]))  # an unknown key, or a value where a mapping stands
    except FrameworkError as refused:
        return refused
    except HYDRA_ERRORS:
        pass
    return ConfigError(f"cannot compose the configuration: {_in_one_line(error)}")


def _forced(word: str) -> str:
    """An override that Hydra takes whatever the key, but for one that chooses or that is Hydra's own."""
    key = word.lstrip("+").partition("=")[0]
    is_value = "=" in word and key not in default_choices() and not re.match(r"[~@/]|hydra\b", key)
    return f"++{word.lstrip('+')}" if is_value else word


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
    kept = [line for line in message.splitlines() if not re.match(r"\s*(See |Set the environment|object_type)", line)]
    text = " ".join(" ".join(kept).split())
    ours = isinstance(error, (HydraException, OmegaConfBaseException, YAMLError))
    return text if ours else f"{type(error).__name__}: {text}"
