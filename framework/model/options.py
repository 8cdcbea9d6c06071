"""The options of each choice of model, with their defaults. Imports no torch: a configuration is made from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from framework.errors import ConfigError
from framework.registry import checked_options
from framework.registry.signatures import signature


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiny:
    """The embedded model: two layers, bytes as tokens, weights from the seed. No download."""

    dtype: str = "auto"
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A Hugging Face checkpoint: `path` is a local folder or a hub id, such as Qwen/Qwen3-0.6B."""

    path: str
    dtype: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Random:
    """A known shape with random weights, for speed: framework/model/shapes.py has the names. No download.

    Attributes:
        seed: of the weights; None is the run's.
    """

    shape: str = "qwen3-100m"
    dtype: str = "auto"
    seed: int | None = None


ModelOptions = Tiny | Checkpoint | Random

MODELS: Mapping[str, type[ModelOptions]] = {"tiny": Tiny, "checkpoint": Checkpoint, "random": Random}


def model_options(name: str, options: Mapping[str, Any]) -> ModelOptions:
    """The options of the model that `model=name` means.

    Raises:
        ConfigError: no such choice, an option it does not have, one without default that is missing.
    """
    if name not in MODELS:
        raise ConfigError(f"no model {name!r}; there are {', '.join(MODELS)}; a path or hub id is model=checkpoint")
    return MODELS[name](**checked_options("model", name, options, signature(MODELS[name])))
