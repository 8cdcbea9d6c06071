"""Kimi Linear: three layers of Kimi Delta Attention, then one of latent attention, without rotation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from framework.model.hf_config import num_layers_of, value_of, wrong_value
from framework.model.shape import FULL, STATE
from framework_models.experts import require_known
from framework_models.latent import LatentModel, experts_by_group
from framework_models.recurrent import RecurrentConfig, RecurrentModel

if TYPE_CHECKING:
    from framework.model.layers import Mixer, NewWeight

_OWN_WORDS = {
    "num_experts": "n_routed_experts", "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts", "num_expert_group": "n_group", "moe_renormalize": "norm_topk_prob",
    "model_max_length": "max_position_embeddings", "moe_router_activation_func": "scoring_func",
}  # fmt: skip
"""Its config.json's words for what DeepSeek V3 has."""
_EXPERTS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


@dataclass(frozen=True, kw_only=True)
class KimiLinear(LatentModel, RecurrentModel):
    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "n_group": 1, "topk_group": 1, "n_routed_experts": 256, "num_experts_per_tok": 8,
        "moe_intermediate_size": 1024, "n_shared_experts": 1, "routed_scaling_factor": 2.446, "norm_topk_prob": True,
        "first_k_dense_replace": 1, "rms_norm_eps": 1e-5, "max_position_embeddings": 1_048_576,
        "linear_head_dim": 128, "linear_num_heads": 32, "linear_conv_kernel_dim": 4,
    }  # fmt: skip

    @classmethod
    def filled(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        linear = value_of(config, "linear_attn_config", dict, {})
        own = {"head_dim": "linear_head_dim", "num_heads": "linear_num_heads",
               "short_conv_kernel_size": "linear_conv_kernel_dim"}  # fmt: skip
        parts = ((config, _OWN_WORDS), (linear, own))
        read = {name: part[key] for part, words in parts for key, name in words.items() if part.get(key) is not None}
        return super().filled({**config, **read})

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        require_known(config, {"mla_use_nope": True})
        heads, dim = value_of(config, "linear_num_heads", int), value_of(config, "linear_head_dim", int)
        recurrent = RecurrentConfig(
            layers=tuple(name == STATE for name in cls.layer_names(config)), num_key_heads=heads, num_value_heads=heads,
            key_dim=dim, value_dim=dim, kernel=value_of(config, "linear_conv_kernel_dim", int),
        )  # fmt: skip
        return {**super().read(config), "experts": experts_by_group(config), "recurrent": recurrent}

    @classmethod
    def layer_names(cls, config: Mapping[str, Any]) -> list[str]:
        count, given = num_layers_of(config), config.get("layer_types")
        full = value_of(config, "linear_attn_config", dict, {}).get("full_attn_layers")  # numbered from 1
        if given is None and isinstance(full, list):
            given = [FULL if number in full else STATE for number in range(1, count + 1)]
        elif given is None:
            given = [FULL if layer and not layer % 4 else STATE for layer in range(count)]
        if not isinstance(given, list) or len(given) != count or not all(name in (FULL, STATE) for name in given):
            raise wrong_value("layer_types", f"a list of {count}, one a layer, of {STATE} and {FULL}", given)
        return given

    def attention(self, layer: int, weight: NewWeight) -> Mixer:
        from framework_models.modules.kimi import KimiDelta, UnrotatedLatent

        if self.recurrent.layers[layer]:
            return KimiDelta(self.recurrent, self.hidden_size, self.rms_norm_eps, weight)
        return UnrotatedLatent(self, weight)

    def name_of(self, stored: str) -> str:
        *front, room, part = super().name_of(stored).replace(".block_sparse_moe.", ".mlp.").rsplit(".", 2)
        return ".".join((*front, _EXPERTS.get(room, room), part))
