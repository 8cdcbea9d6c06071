"""The model that a configuration asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from framework.errors import ConfigError
from framework.model.config import ModelConfig
from framework.model.loading import LoadedModel, Spread, load_model, random_model, read_model_config
from framework.model.shapes import SHAPES
from framework.registry.options import call_checked

MODELS = ("tiny", "checkpoint", "random")


def build_model(
    name: str,
    options: Mapping[str, Any],
    *,
    dtype: str | None = None,
    device: str = "cpu",
    seed: int = 0,
    spread: Spread | None = None,
) -> LoadedModel:
    """The model that `model=name` means: the embedded tiny one, a checkpoint by path or hub id, or random weights.

    Args:
        options: `tiny` has none but `seed`; `checkpoint` takes `path`; `random` takes `shape`; all take `dtype`.
        dtype, seed: what the run says where the options do not.
        spread: see `load_model`.

    Raises:
        ConfigError: no such choice, or an option it does not have.
        ModelError: the model cannot be loaded.
        InvalidArgument, RankError: see `load_model`.
    """

    def tiny(*, dtype: str | None = dtype, seed: int = 0) -> LoadedModel:
        return load_model("tiny", dtype=dtype, device=device, seed=seed, spread=spread)

    def checkpoint(*, path: str, dtype: str | None = dtype) -> LoadedModel:
        return load_model(path, dtype=dtype, device=device, spread=spread)

    def random(*, shape: str, dtype: str | None = dtype, seed: int = seed) -> LoadedModel:
        return random_model(shape, dtype=dtype, device=device, seed=seed, spread=spread)

    choices: dict[str, Callable[..., LoadedModel]] = {"tiny": tiny, "checkpoint": checkpoint, "random": random}
    if name not in choices:
        raise ConfigError(f"no model {name!r}; there are {', '.join(MODELS)}; a path or hub id is model=checkpoint")
    return call_checked(f"model.{name}", choices[name], options)


def model_config(name: str, options: Mapping[str, Any]) -> ModelConfig | None:
    """The shape of the model that `build_model` would build, without its weights.

    None: the options name no model; `build_model` says why.

    Raises:
        ModelError: the checkpoint cannot be found or its config not be read.
    """
    if name == "random":
        return SHAPES.get(str(options.get("shape")))
    if name == "checkpoint":
        return read_model_config(options["path"]) if isinstance(options.get("path"), str) else None
    return read_model_config("tiny") if name == "tiny" else None
