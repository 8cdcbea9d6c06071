"""The model that a configuration asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from framework.model.config import ModelConfig
from framework.model.loading import LoadedModel, Spread, load_model, random_model, read_model_config
from framework.model.options import Checkpoint, Random, model_options
from framework.model.shapes import SHAPES


def build_model(
    name: str, options: Mapping[str, Any], *, device: str = "cpu", seed: int = 0, spread: Spread | None = None
) -> LoadedModel:
    """The model that `model=name` means: the embedded tiny one, a checkpoint by path or hub id, or random weights.

    Args:
        options: see framework.model.options.
        seed: of random weights where the options do not say.
        spread: see `load_model`.

    Raises:
        ConfigError: no such choice, or an option it does not have.
        ModelError: the model cannot be loaded.
        InvalidArgument, RankError: see `load_model`.
    """
    chosen = model_options(name, options)
    if isinstance(chosen, Random):
        seed = seed if chosen.seed is None else chosen.seed
        return random_model(chosen.shape, dtype=chosen.dtype, device=device, seed=seed, spread=spread)
    if isinstance(chosen, Checkpoint):
        return load_model(chosen.path, dtype=chosen.dtype, device=device, spread=spread)
    return load_model("tiny", dtype=chosen.dtype, device=device, seed=chosen.seed, spread=spread)


def model_config(name: str, options: Mapping[str, Any]) -> ModelConfig | None:
    """The shape of the model that `build_model` would build, without its weights.

    None: a shape that is not known; `build_model` says so.

    Raises:
        ConfigError: as `build_model`.
        ModelError: the checkpoint cannot be found or its config not be read.
    """
    chosen = model_options(name, options)
    if isinstance(chosen, Random):
        return SHAPES.get(chosen.shape)
    return read_model_config(chosen.path if isinstance(chosen, Checkpoint) else "tiny")
