"""Nemotron-H: layers of Mamba 2, of attention without rotation, and of MLPs or experts, each alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from framework.errors import ModelError
from framework.model.hf_config import value_of, wrong_value
from framework.model.shape import FULL, STATE
from framework_models.experts import ExpertsConfig, RoutingConfig, require_known
from framework_models.recurrent import RecurrentConfig, RecurrentModel

if TYPE_CHECKING:
    from framework.model.layers import DecoderLayer, Mixer, Mlp, NewWeight

_PATTERN = {"M": STATE, "*": FULL, "-": "mlp", "E": "moe"}
_OLDER = {"mamba": STATE, "attention": FULL}
_TAKEN = {"use_bias": False, "attention_bias": False, "mlp_bias": False, "mamba_proj_bias": False,
          "use_conv_bias": True, "mamba_hidden_act": "silu", "moe_latent_size": None}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class NemotronH(RecurrentModel):
    """Each layer has one part; those of MLPs and experts keep nothing of a request.

    Attributes:
        kinds: of the layers, in the words of `layer_types`, "mlp" and "moe".
    """

    kinds: tuple[str, ...]

    ACTIVATION: ClassVar[tuple[str, tuple[str, ...]]] = ("mlp_hidden_act", ("relu2",))
    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "head_dim": 128, "num_key_value_heads": 8, "ssm_state_size": 128, "mamba_num_heads": 128,
        "mamba_head_dim": 64, "n_groups": 8, "conv_kernel": 4, "layer_norm_epsilon": 1e-5, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "moe_intermediate_size": 7688, "moe_shared_expert_intermediate_size": 7688,
        "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.0,
    }  # fmt: skip

    @classmethod
    def filled(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().filled(config), "num_hidden_layers": len(cls.layer_names(config))}

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        require_known(config, _TAKEN)
        kinds = tuple(cls.layer_names(config))
        recurrent = RecurrentConfig(
            layers=tuple(kind == STATE for kind in kinds),
            num_key_heads=value_of(config, "n_groups", int),
            num_value_heads=value_of(config, "mamba_num_heads", int),
            key_dim=value_of(config, "ssm_state_size", int),
            value_dim=value_of(config, "mamba_head_dim", int),
            kernel=value_of(config, "conv_kernel", int),
        )
        experts = None if "moe" not in kinds else ExpertsConfig(
            count=value_of(config, "n_routed_experts", int),
            per_token=value_of(config, "num_experts_per_tok", int),
            intermediate_size=value_of(config, "moe_intermediate_size", int),
            renormalise=value_of(config, "norm_topk_prob", bool),
            routing=RoutingConfig(
                num_groups=value_of(config, "n_group", int),
                groups_per_token=value_of(config, "topk_group", int),
                scaling=value_of(config, "routed_scaling_factor", float),
            ),
            shared_size=value_of(config, "moe_shared_expert_intermediate_size", int),
        )  # fmt: skip
        return {
            **super().read(config), "kinds": kinds, "recurrent": recurrent, "experts": experts,
            "rms_norm_eps": value_of(config, "layer_norm_epsilon", float),
        }  # fmt: skip

    @classmethod
    def layer_names(cls, config: Mapping[str, Any]) -> list[str]:
        given = config.get("layers_block_type") or config.get("layer_types") or config.get("hybrid_override_pattern")
        names = [(_PATTERN if isinstance(given, str) else _OLDER).get(name, name) for name in given or ()
                 if isinstance(name, str)]  # fmt: skip
        if not isinstance(given, (str, list)) or len(names) != len(given) or not {*names} <= {*_PATTERN.values()}:
            known = f"a list of {', '.join(_PATTERN.values())}, or in 'hybrid_override_pattern' {' '.join(_PATTERN)}"
            raise wrong_value("layers_block_type", known, given)
        if FULL not in names:
            raise ModelError("a Nemotron-H model has a layer of attention")
        return names

    @property
    def attention_layers(self) -> tuple[int, ...]:
        return tuple(layer for layer, kind in enumerate(self.kinds) if kind == FULL)

    @property
    def rotates_plainly(self) -> bool:
        return False

    def attention(self, layer: int, weight: NewWeight) -> Mixer:
        from framework_models.modules.nemotron import Mamba2, UnrotatedAttention

        if self.recurrent.layers[layer]:
            return Mamba2(self.recurrent, self.hidden_size, self.rms_norm_eps, weight)
        return UnrotatedAttention(self, weight)

    def mlp(self, layer: int, weight: NewWeight) -> Mlp:
        from framework_models.modules.experts import SharedExperts, SquaredExperts
        from framework_models.modules.nemotron import SquaredMlp

        if self.kinds[layer] == "mlp":
            return SquaredMlp(self.hidden_size, self.intermediate_size, weight)
        assert self.experts is not None
        shared = SquaredMlp(self.hidden_size, self.experts.shared_size, weight, "mlp.shared_experts")
        return SharedExperts(shared, SquaredExperts(self.experts, self.hidden_size, weight))

    def layer(self, layer: int, weight: NewWeight) -> DecoderLayer:
        from framework_models.modules.nemotron import SingleLayer

        mixes = self.kinds[layer] in (STATE, FULL)
        return SingleLayer(self, layer, weight, self.attention(layer, weight) if mixes else None,
                           None if mixes else self.mlp(layer, weight))  # fmt: skip

    def name_of(self, stored: str) -> str:
        name = stored.replace("backbone.", "model.", 1).replace("model.embeddings.", "model.embed_tokens.", 1)
        return super().name_of(name.replace("model.norm_f.", "model.norm.", 1))

    def is_unused(self, weight: str) -> bool:
        """What drafts tokens, too."""
        return super().is_unused(weight) or weight.startswith("mtp.")
