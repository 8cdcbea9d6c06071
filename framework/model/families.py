"""Model families: those that are installed, and those of the plain decoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from framework.errors import ModelError, listing, shown
from framework.files.jsonl import read_object
from framework.model.config import ModelConfig, named_layers
from framework.model.hf_config import num_layers_of, token_ids, value_of, wrong_value
from framework.model.shape import FULL, SLIDING
from framework.registry.points import points
from framework.sampling import is_integer

_GROUP = "framework.family"


def read_config(folder: Path) -> ModelConfig:
    """The config of a checkpoint; generation_config.json, where there is one, says which tokens end a generation.

    Raises:
        ModelError: no config.json, or an unsupported family or feature.
    """
    if not (folder / "config.json").is_file():
        raise ModelError(f"'{folder}' has no config.json: not a Hugging Face checkpoint")
    config = read_hf_config(read_object(folder / "config.json", ModelError))
    if (folder / "generation_config.json").is_file():
        ends = token_ids(read_object(folder / "generation_config.json", ModelError), "eos_token_id")
        config = replace(config, eos_token_ids=ends or config.eos_token_ids)
    return config


def read_hf_config(config: Mapping[str, Any]) -> ModelConfig:
    """Read a config.json, of transformers 4 (`rope_scaling`) or 5 (`rope_parameters`).

    Raises:
        ModelError: a family that is not installed or a feature it does not support, a key that is missing, or a value
            of another type; each by name.
    """
    name = config.get("model_type")
    family = installed_family(name)
    if family is None:
        installed = listing(point.name for point, *_ in points(_GROUP))
        raise ModelError(f"model family {shown(name)} is not supported; installed: {installed}")
    if text := value_of(config, "text_config", dict, {}):  # of a model that also sees, whose text alone is read
        config = {"model_type": name, "tie_word_embeddings": config.get("tie_word_embeddings"), **text}
    return family(**family.read(family.filled(config)))


def installed_family(name: object) -> type[ModelConfig] | None:
    """The class that reads configs of this `model_type`: an entry point of the group `framework.family`.

    Raises:
        ModelError: it cannot be imported, or is no ModelConfig.
    """
    found = next((found for found in points(_GROUP) if found[0].name == name), None)
    if found is None:
        return None
    point, distribution, version = found
    family: Any = None
    try:
        family = point.load()
        wrong = "" if isinstance(family, type) and issubclass(family, ModelConfig) else "it is no ModelConfig"
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    if wrong:
        raise ModelError(f"model family {name!r} of {distribution} {version} cannot be used: {wrong}")
    return family  # type: ignore[no-any-return]


def with_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """The text model's part of a config.json, and what transformers assumes where its family leaves a key out.

    Raises:
        ModelError: `text_config` is no object.
    """
    config = value_of(config, "text_config", dict, {}) or config
    return (installed_family(config.get("model_type")) or ModelConfig).filled(config)


def layer_names_of(config: Mapping[str, Any]) -> list[str] | None:
    """What each layer is by a config `with_defaults`, in the words of `layer_types`; None: its family is not installed.

    Raises:
        ModelError: a value of another type.
    """
    family = installed_family(config.get("model_type"))
    return None if family is None else family.layer_names(config)


class Llama(ModelConfig):
    """Attention to all tokens; biases where config.json says so."""

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().read(config), "mlp_bias": value_of(config, "mlp_bias", bool, False)}


class Mistral(ModelConfig):
    """A sliding window in every layer, where there is one; no biases."""

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().read(config), "attention_bias": False, "output_bias": False}

    @classmethod
    def layer_names(cls, config: Mapping[str, Any]) -> list[str]:
        return [FULL if config.get("sliding_window") is None else SLIDING] * num_layers_of(config)


class Qwen3(ModelConfig):
    """Queries and keys are normalised; a sliding window in the last layers, where it is used."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {"head_dim": 128}

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().read(config), "qk_norm": True}

    @classmethod
    def layer_names(cls, config: Mapping[str, Any]) -> list[str]:
        layers = range(num_layers_of(config))
        if config.get("sliding_window") is None or not value_of(config, "use_sliding_window", bool, False):
            return [FULL for _ in layers]
        first = config.get("max_window_layers", 28)  # layers from there on have the window
        if not is_integer(first) or first < 0:
            raise wrong_value("max_window_layers", "an integer of at least 0", first)
        return named_layers(config, SLIDING, [layer >= first for layer in layers])


class Qwen2(Qwen3):
    """Biases of queries, keys and values instead."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().read(config), "attention_bias": True, "output_bias": False, "qk_norm": False}
