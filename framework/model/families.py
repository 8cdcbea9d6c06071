"""The families of the plain decoder: what their config.json says beside what all say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from framework.model.config import FULL, SLIDING, ModelConfig, named_layers
from framework.model.hf_config import num_layers_of, value_of, wrong_value
from framework.sampling import is_integer


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
