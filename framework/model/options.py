"""The choices of model, `model=NAME`: entry points of the group `framework.model`. Imports no torch."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from framework.errors import ConfigError, listing
from framework.registry import checked_options
from framework.registry.points import loaded
from framework.registry.signatures import signature

if TYPE_CHECKING:
    from framework.model.config import ModelConfig
    from framework.model.loading import LoadedModel


class Model(ABC):
    """Where the shape and the weights of a model come from. Constructor keywords are the options, with their defaults.

    The module of one is imported whenever a configuration is read: it imports what it needs as late as it can.

    Attributes:
        dtype: of the weights in memory, by torch's name; "auto": the checkpoint's own.
    """

    dtype: str

    @abstractmethod
    def config(self) -> ModelConfig | None:
        """The shape of the model that `load` would load, without its weights. None: not known; `load` says so.

        Raises:
            ModelError: it cannot be found, or its config not be read.
        """

    @abstractmethod
    def load(self, *, device: str, seed: int, tensor_parallel_size: int) -> LoadedModel:
        """The model.

        Args:
            seed: the run's, for weights that are drawn.
            tensor_parallel_size: see `framework.model.loading.load_model`.

        Raises:
            ModelError, InvalidArgument, RankError: see `framework.model.loading.load_model`.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiny(Model):
    """The embedded model: two layers, bytes as tokens, weights from the seed. No download."""

    dtype: str = "auto"
    seed: int = 0

    def config(self) -> ModelConfig:
        from framework.model.loading import TINY_CONFIG

        return TINY_CONFIG

    def load(self, *, device: str, seed: int, tensor_parallel_size: int) -> LoadedModel:
        from framework.model.loading import load_model

        return load_model(
            "tiny", dtype=self.dtype, device=device, seed=self.seed, tensor_parallel_size=tensor_parallel_size
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(Model):
    """A Hugging Face checkpoint: `path` is a local folder or a hub id, such as Qwen/Qwen3-0.6B."""

    path: str
    dtype: str = "auto"

    def config(self) -> ModelConfig:
        from framework.model.loading import read_model_config

        return self.changed(read_model_config(self.path))

    def changed(self, config: ModelConfig) -> ModelConfig:
        """The config that is served, by the checkpoint's own: the same, unless a subclass says otherwise."""
        return config

    def load(self, *, device: str, seed: int, tensor_parallel_size: int) -> LoadedModel:
        from framework.model.loading import load_model

        return load_model(
            self.path, dtype=self.dtype, device=device, tensor_parallel_size=tensor_parallel_size, change=self.changed
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Random(Model):
    """A known shape with random weights, for speed: framework/model/shapes.py has the names. No download.

    Attributes:
        seed: of the weights; None is the run's.
    """

    shape: str = "qwen3-100m"
    dtype: str = "auto"
    seed: int | None = None

    def config(self) -> ModelConfig | None:
        from framework.model.shapes import SHAPES

        return SHAPES.get(self.shape)

    def load(self, *, device: str, seed: int, tensor_parallel_size: int) -> LoadedModel:
        from framework.model.loading import random_model

        own = seed if self.seed is None else self.seed
        return random_model(
            self.shape, dtype=self.dtype, device=device, seed=own, tensor_parallel_size=tensor_parallel_size
        )


def models() -> Mapping[str, type[Model]]:
    """Name -> its class: what is installed in the group `framework.model`."""
    return _models(tuple(sys.path))


@lru_cache(maxsize=4)
def _models(path: tuple[str, ...]) -> Mapping[str, type[Model]]:
    return MappingProxyType(loaded("framework.model", _wrong))


def _wrong(name: str, value: object) -> str:
    return "" if isinstance(value, type) and issubclass(value, Model) else f"must be a Model, found {value!r}"


def model_of(name: str, options: Mapping[str, Any]) -> Model:
    """The model that `model=name` means.

    Raises:
        ConfigError: no such choice, an option it does not have, one without default that is missing.
    """
    if name not in models():
        raise ConfigError(f"no model {name!r}; there are {listing(models())}; a path or hub id is model=checkpoint")
    chosen = models()[name]
    return chosen(**checked_options("model", name, options, signature(chosen)))
