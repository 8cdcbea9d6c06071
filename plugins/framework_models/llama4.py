"""Llama 4, its text alone: three layers that attend within chunks, then one to all tokens, without rotation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from framework.model.hf_config import num_layers_of, value_of, wrong_value
from framework.model.shape import CHUNKED, FULL
from framework.sampling import is_integer
from framework_models.experts import ExpertsConfig, RoutedModel

if TYPE_CHECKING:
    from framework.model.layers import Mixer, Mlp, NewWeight


@dataclass(frozen=True, kw_only=True)
class Llama4(RoutedModel):
    """Attributes:
    rotated: whether queries and keys are rotated, of each layer.
    normalised: those that are rotated are then of length sqrt(head_dim).
    floor_scale, attention_temper: of layers that do not rotate, at position p queries are multiplied by
        1 + attention_temper * log(1 + floor((p + 1) / floor_scale)).
    routed: the layers with experts.
    """

    rotated: tuple[bool, ...]
    normalised: bool
    floor_scale: int
    attention_temper: float
    routed: tuple[int, ...]

    NULL_IS_NONE: ClassVar[tuple[str, ...]] = ("attention_chunk_size",)
    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "head_dim": 128, "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_experts_per_tok": 1,
        "num_local_experts": 16, "interleave_moe_layer_step": 1, "use_qk_norm": True, "rope_theta": 500_000.0,
        "no_rope_layer_interval": 4, "attention_chunk_size": 8192, "attn_temperature_tuning": True,
        "floor_scale": 8192, "attn_scale": 0.1, "rms_norm_eps": 1e-5, "max_position_embeddings": 131_072,
    }  # fmt: skip

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        width, layers = value_of(config, "intermediate_size", int), range(num_layers_of(config))
        every, names = value_of(config, "interleave_moe_layer_step", int), cls.layer_names(config)
        routed = [*layers[every - 1 :: every]] if config.get("moe_layers") is None else config["moe_layers"]
        if not isinstance(routed, list) or not all(is_integer(layer) and layer in layers for layer in routed):
            raise wrong_value("moe_layers", f"a list of layers, 0 to {len(layers) - 1}", routed)
        experts = ExpertsConfig(
            count=value_of(config, "num_local_experts", int),
            per_token=value_of(config, "num_experts_per_tok", int),
            intermediate_size=width,
            shared_size=width,
        )
        chunk = value_of(config, "attention_chunk_size", int) if CHUNKED in names else None
        found = super().read({**config, "intermediate_size": value_of(config, "intermediate_size_mlp", int)})
        return found | {
            "experts": experts,
            "routed": tuple(routed),
            "rotated": tuple(_rotated(config)),
            "normalised": value_of(config, "use_qk_norm", bool),
            "floor_scale": value_of(config, "floor_scale", int),
            "attention_temper": value_of(config, "attn_scale", float)
            * value_of(config, "attn_temperature_tuning", bool),
            "attention_chunk": chunk,
            "chunked_layers": tuple(layer for layer in layers if names[layer] == CHUNKED),
        }

    @classmethod
    def layer_names(cls, config: Mapping[str, Any]) -> list[str]:
        names = config.get("layer_types")
        if names is None:
            chunked = config.get("attention_chunk_size") is not None
            return [CHUNKED if rotated and chunked else FULL for rotated in _rotated(config)]
        count = num_layers_of(config)
        if not isinstance(names, list) or len(names) != count or not all(name in (CHUNKED, FULL) for name in names):
            raise wrong_value("layer_types", f"a list of {count}, one a layer, of {CHUNKED} and {FULL}", names)
        return names

    @property
    def rotates_plainly(self) -> bool:
        return False

    def attention(self, layer: int, weight: NewWeight) -> Mixer:
        from framework_models.modules.llama4 import Llama4Attention

        return Llama4Attention(self, layer, weight)

    def mlp(self, layer: int, weight: NewWeight) -> Mlp:
        from framework.model.layers import GatedMlp
        from framework_models.modules.experts import SharedExperts
        from framework_models.modules.llama4 import Llama4Experts

        if layer not in self.routed or self.experts is None:
            return GatedMlp(self, weight)
        shared = GatedMlp(self, weight, self.experts.shared_size, "mlp.shared_expert")
        return SharedExperts(shared, Llama4Experts(self.experts, self.hidden_size, weight))

    def name_of(self, stored: str) -> str:
        name = stored.removeprefix("language_model.")  # of a model that also sees
        return super().name_of(name).replace(".feed_forward.", ".mlp.", 1)

    def is_unused(self, weight: str) -> bool:
        """What reads images, too."""
        return super().is_unused(weight) or weight.startswith(("model.vision_model.", "model.multi_modal_projector."))


def _rotated(config: Mapping[str, Any]) -> list[bool]:
    """Of each layer whether it rotates."""
    given, count = config.get("no_rope_layers"), num_layers_of(config)
    if not given and given in (None, []):
        every = value_of(config, "no_rope_layer_interval", int)
        return [layer % every != 0 for layer in range(1, count + 1)]
    if not isinstance(given, list) or len(given) != count or not all(flag in (0, 1) for flag in given):
        raise wrong_value("no_rope_layers", f"a list of {count}, one a layer, of 1 (it rotates) and 0", given)
    return [flag == 1 for flag in given]
