"""Families of latent attention: DeepSeek V3 and V3.2, GLM-4.7-Flash, MiniCPM3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from framework.errors import ModelError
from framework.model.config import growth, rope_of, rope_parameters
from framework.model.hf_config import num_layers_of, value_of, wrong_value
from framework_models.experts import ExpertsConfig, RoutedModel, RoutingConfig, require_known

if TYPE_CHECKING:
    from framework.model.layers import DecoderLayer, Mixer, NewWeight


@dataclass(frozen=True, kw_only=True)
class LatentModel(RoutedModel):
    """Multi-head latent attention: a token keeps one latent and one rotated key for all heads.

    Attributes:
        query_rank: of the queries' own latent; None: queries are projected at once.
        nope_dim: elements of a head's queries and keys that are not rotated.
        value_dim: elements of a head's values.
        interleaved: what is rotated are the pairs (2i, 2i + 1).
        index_heads: of an indexer, where attention is to the tokens that it selects alone.
    """

    query_rank: int | None
    nope_dim: int
    value_dim: int
    interleaved: bool = True
    index_heads: int = 0

    NULL_IS_NONE: ClassVar[tuple[str, ...]] = ("q_lora_rank", "scale_depth", "dim_model_base")

    def __post_init__(self) -> None:
        sizes = (self.query_rank or 1, self.latent_dim, self.nope_dim, self.rotary_dim, self.value_dim)
        if not all(size is not None and 1 <= size <= 2**16 for size in sizes) or (self.rotary_dim or 0) % 2:
            raise ModelError(f"latent attention of sizes {sizes}: each must be 1 to 65,536, and what is rotated even")
        if self.index_dim is not None and self.query_rank is None:
            raise ModelError("an indexer reads the queries' own latent, and there is none: q_lora_rank is missing")
        super().__post_init__()

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        values = super().read(config)
        latent, nope, rotated = (
            value_of(config, key, int) for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim")
        )
        return values | {
            "query_rank": None if config.get("q_lora_rank") is None else value_of(config, "q_lora_rank", int),
            "nope_dim": nope,
            "value_dim": value_of(config, "v_head_dim", int, max(1, values["hidden_size"] // values["num_heads"])),
            "interleaved": value_of(config, "rope_interleave", bool, True),
            "latent_dim": latent,
            "num_kv_heads": 1,
            "head_dim": latent + rotated,
            "rotary_dim": rotated,
            "attention_scale": _yarn_scale(config) * (nope + rotated) ** -0.5,
        }

    def attention(self, layer: int, weight: NewWeight) -> Mixer:
        from framework_models.modules.latent import LatentAttention

        return LatentAttention(self, weight)

    def is_unused(self, weight: str) -> bool:
        """The layer that drafts, behind the last one, too."""
        return super().is_unused(weight) or weight.startswith(f"model.layers.{self.num_layers}.")


class DeepSeekV3(LatentModel):
    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "n_group": 8, "topk_group": 4, "n_routed_experts": 256, "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048, "n_shared_experts": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
        "first_k_dense_replace": 3, "rope_interleave": True,
    }  # fmt: skip

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().read(config), "experts": experts_by_group(config)}


class DeepSeekV32(DeepSeekV3):
    """With an indexer, which selects the tokens that attention reads."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        **DeepSeekV3.DEFAULTS, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64,
    }  # fmt: skip

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        names = {"index_heads": "index_n_heads", "index_dim": "index_head_dim", "index_count": "index_topk"}
        return {**super().read(config), **{name: value_of(config, key, int) for name, key in names.items()}}


class Glm4MoeLite(DeepSeekV3):
    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        **DeepSeekV3.DEFAULTS, "q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256, "n_group": 1,
        "topk_group": 1, "n_routed_experts": 64, "num_experts_per_tok": 4, "moe_intermediate_size": 1536,
        "routed_scaling_factor": 1.8, "first_k_dense_replace": 1, "rms_norm_eps": 1e-5,
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MiniCPM3(LatentModel):
    """Without experts.

    Attributes:
        residual_scale: of what a layer's attention and MLP add.
    """

    residual_scale: float = 1.0

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "kv_lora_rank": 256, "q_lora_rank": 768, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "scale_emb": 12,
        "scale_depth": 1.4, "dim_model_base": 256, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
    }  # fmt: skip

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        depth = None if config.get("scale_depth") is None else value_of(config, "scale_depth", float)
        base = None if config.get("dim_model_base") is None else value_of(config, "dim_model_base", int)
        values = super().read(config)
        return values | {
            "interleaved": False,
            "mlp_bias": value_of(config, "mlp_bias", bool, False),
            "embedding_scale": value_of(config, "scale_emb", float),
            "residual_scale": 1.0 if depth is None else depth / values["num_layers"] ** 0.5,
            "logit_scale": 1.0 if base is None else base / values["hidden_size"],
        }

    def layer(self, layer: int, weight: NewWeight) -> DecoderLayer:
        from framework_models.modules.latent import ScaledLayer

        return ScaledLayer(self, layer, weight, self.attention(layer, weight), self.mlp(layer, weight))


def _yarn_scale(config: Mapping[str, Any]) -> float:
    """What scores are multiplied by where `mscale_all_dim` says so. Source: transformers' DeepseekV3."""
    parameters, (_, scaling) = rope_parameters(config), rope_of(config)
    if scaling is None or not parameters.get("mscale_all_dim"):
        return 1.0
    return growth(scaling.factor, value_of(parameters, "mscale_all_dim", float)) ** 2


def experts_by_group(config: Mapping[str, Any]) -> ExpertsConfig:
    """The configuration of DeepSeek V3."""
    first, shared = (0 if config[key] == 0 else value_of(config, key, int)
                     for key in ("first_k_dense_replace", "n_shared_experts"))  # fmt: skip
    kinds = config.get("mlp_layer_types")
    if kinds is not None:
        layers = num_layers_of(config)
        first = kinds.count("dense") if isinstance(kinds, list) else 0
        if kinds != ["dense"] * first + ["sparse"] * (layers - first):
            raise wrong_value("mlp_layer_types", f"a list of {layers}, dense ones first and then sparse ones", kinds)
    require_known(config, {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1})
    width = value_of(config, "moe_intermediate_size", int)
    return ExpertsConfig(
        count=value_of(config, "n_routed_experts", int),
        per_token=value_of(config, "num_experts_per_tok", int),
        intermediate_size=width,
        renormalise=value_of(config, "norm_topk_prob", bool),
        routing=RoutingConfig(
            num_groups=value_of(config, "n_group", int),
            groups_per_token=value_of(config, "topk_group", int),
            scaling=value_of(config, "routed_scaling_factor", float),
        ),
        shared_size=shared * width,
        first_layer=first,
    )
