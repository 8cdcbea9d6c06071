"""Gemma 2 and 3: norms before and after, caps, embeddings that are scaled, windows in most layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from framework.errors import ModelError, shown
from framework.model.config import ModelConfig, named_layers
from framework.model.hf_config import num_layers_of, value_of
from framework.model.shape import SLIDING

if TYPE_CHECKING:
    from framework.model.layers import DecoderLayer, Mlp, NewWeight


class Gemma2(ModelConfig):
    ACTIVATION: ClassVar[tuple[str, tuple[str, ...]]] = ("hidden_activation", ("gelu_pytorch_tanh",))
    NULL_IS_NONE: ClassVar[tuple[str, ...]] = ("sliding_window", "attn_logit_softcapping", "final_logit_softcapping")
    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "head_dim": 256, "tie_word_embeddings": True, "query_pre_attn_scalar": 256, "sliding_window": 4096,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    }  # fmt: skip

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        if config.get("use_bidirectional_attention"):
            raise ModelError("use_bidirectional_attention is not supported; supported: false")
        values = super().read(config)
        for field, key in (("soft_cap", "attn_logit_softcapping"), ("logit_cap", "final_logit_softcapping")):
            values[field] = None if config.get(key) is None else value_of(config, key, float)
        return values | {
            "attention_scale": value_of(config, "query_pre_attn_scalar", float) ** -0.5,
            "embedding_scale": values["hidden_size"] ** 0.5,
            "norms_plus_one": True,
        }

    @classmethod
    def layer_names(cls, config: Mapping[str, Any]) -> list[str]:
        return named_layers(config, SLIDING, [layer % 2 == 0 for layer in range(num_layers_of(config))])

    def mlp(self, layer: int, weight: NewWeight) -> Mlp:
        from framework_models.modules.gemma import GeluMlp

        return GeluMlp(self, weight)

    def layer(self, layer: int, weight: NewWeight) -> DecoderLayer:
        from framework_models.modules.gemma import SandwichLayer

        return SandwichLayer(self, layer, weight, self.attention(layer, weight), self.mlp(layer, weight))


class Gemma3(Gemma2):
    """No caps; queries and keys are normalised, and layers with a window have a rotary base of their own."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "head_dim": 256, "tie_word_embeddings": True, "query_pre_attn_scalar": 256, "sliding_window": 4096,
        "rope_theta": 1e6,
    }  # fmt: skip

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        parameters = value_of(value_of(config, "rope_parameters", dict, {}), "sliding_attention", dict, {})
        kind = parameters.get("rope_type") or "default"
        if kind != "default":
            raise ModelError(f"rope scaling {shown(kind)} of sliding layers is not supported; supported: default")
        theta = value_of(parameters, "rope_theta", float, value_of(config, "rope_local_base_freq", float, 10_000.0))
        return {**super().read(config), "qk_norm": True, "local_rope_theta": theta}

    @classmethod
    def layer_names(cls, config: Mapping[str, Any]) -> list[str]:
        every = value_of(config, "sliding_window_pattern", int, value_of(config, "_sliding_window_pattern", int, 6))
        return named_layers(config, SLIDING, [(layer + 1) % every != 0 for layer in range(num_layers_of(config))])
