"""Families of routed experts: Mixtral, Qwen3-MoE, gpt-oss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from framework.errors import ModelError, shown
from framework.model.config import ModelConfig, named_layers
from framework.model.families import Mistral
from framework.model.hf_config import num_layers_of, value_of
from framework.model.shape import SLIDING

if TYPE_CHECKING:
    from framework.model.layers import Mlp, NewWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingConfig:
    """How DeepSeek V3 chooses experts: sigmoid scores, a bias for the choice alone, and the best groups first.

    Attributes:
        num_groups, groups_per_token: experts in groups of equal size, and from how many of them a token may choose.
        scaling: of the chosen weights.
    """

    num_groups: int
    groups_per_token: int
    scaling: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """Routed experts in place of a layer's MLP.

    Attributes:
        count, per_token: experts, and how many of them a token goes through.
        intermediate_size: of one expert.
        renormalise: the weights of the chosen experts sum to 1; else they are what a softmax over all gives them.
        routing: None: by a softmax.
        shared_size: intermediate size of the MLP that every token goes through beside its experts; 0: there is none.
        shared_gate: what that MLP gives is multiplied by the sigmoid of a gate, one for each token.
        first_layer: the layers before it have an MLP alone.
    """

    count: int
    per_token: int
    intermediate_size: int
    renormalise: bool = True
    routing: RoutingConfig | None = None
    shared_size: int = 0
    shared_gate: bool = False
    first_layer: int = 0

    @property
    def widths(self) -> dict[str, int]:
        """The intermediate sizes that there are."""
        names = ("intermediate_size", *["shared_size"] * (self.shared_size > 0))
        return {name: getattr(self, name) for name in names}

    def __post_init__(self) -> None:
        if self.routing is not None:
            groups = self.routing.num_groups
            if self.count % groups or not 1 <= self.routing.groups_per_token <= groups or self.count < 2 * groups:
                raise ModelError(
                    f"{self.routing.groups_per_token} of {groups} groups of {self.count} experts: groups are of equal "
                    "size, at least 2, and no more are chosen than there are"
                )
        if not 1 <= self.per_token <= self.count <= 2**14 or not 1 <= self.intermediate_size <= 2**24:
            raise ModelError(
                f"a token goes through {self.per_token} of {self.count} experts of {self.intermediate_size} elements: "
                "each must be at least 1, and no more chosen than there are"
            )


@dataclass(frozen=True, kw_only=True)
class RoutedModel(ModelConfig):
    """A model that may have routed experts.

    Attributes:
        experts: None: each layer has an MLP.
    """

    experts: ExpertsConfig | None = None

    def mlp(self, layer: int, weight: NewWeight) -> Mlp:
        if self.experts is None or layer < self.experts.first_layer:
            return super().mlp(layer, weight)
        from framework.model.layers import GatedMlp
        from framework_models.modules.experts import RoutedExperts, SharedExperts

        routed = RoutedExperts(self.experts, self.hidden_size, weight)
        if not self.experts.shared_size:
            return routed
        room = "mlp.shared_expert" if self.experts.shared_gate else "mlp.shared_experts"
        gate = weight(1, self.hidden_size) if self.experts.shared_gate else None
        return SharedExperts(GatedMlp(self, weight, self.experts.shared_size, room), routed, gate)

    def undivided(self, size: int) -> tuple[str, ...]:
        smallest = size if self.experts is None else min(self.experts.widths.values())
        return (*super().undivided(size), *[f"{smallest} columns of an expert are fewer"] * (smallest < size))

    def divided(self, share: Callable[[int], int]) -> dict[str, Any]:
        if self.experts is None:
            return super().divided(share)
        part: dict[str, Any] = {name: share(width) for name, width in self.experts.widths.items()}
        return {**super().divided(share), "experts": replace(self.experts, **part)}


def experts_of(config: Mapping[str, Any], width: str = "moe_intermediate_size", **more: Any) -> ExpertsConfig:
    """The experts of a config.json whose layers all have them.

    Args:
        width: key of the experts' intermediate size. more: of ExpertsConfig.
    """
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise ModelError("layers with and without routed experts in one model are not supported")
    return ExpertsConfig(
        count=value_of(config, "num_experts" if "num_experts" in config else "num_local_experts", int),
        per_token=value_of(config, "num_experts_per_tok", int),
        intermediate_size=value_of(config, width, int),
        **more,
    )


def require_known(config: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Raise for the first of these keys whose value is another one."""
    for key, value in known.items():
        if config.get(key, value) != value:
            raise ModelError(f"{key} {shown(config[key])} is not supported; supported: {shown(value)}")


class Mixtral(RoutedModel, Mistral):
    DEFAULTS: ClassVar[Mapping[str, Any]] = {"rope_theta": 1e6}

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().read(config), "experts": experts_of(config, "intermediate_size")}

    def mlp(self, layer: int, weight: NewWeight) -> Mlp:
        from framework_models.modules.experts import MixtralExperts

        assert self.experts is not None
        return MixtralExperts(self.experts, self.hidden_size, weight)


class Qwen3Moe(RoutedModel):
    @classmethod
    def read(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        experts = experts_of(config, renormalise=value_of(config, "norm_topk_prob", bool, False))
        values = super().read({**config, "intermediate_size": experts.intermediate_size})
        return {**values, "experts": experts, "qk_norm": True}

    @classmethod
    def layer_names(cls, config: Mapping[str, Any]) -> list[str]:
        slides = config.get("sliding_window") is not None and value_of(config, "use_sliding_window", bool, False)
        return [SLIDING] * num_layers_of(config) if slides else super().layer_names(config)


class GptOss(RoutedModel):
    """Sinks, a window in every second layer, and experts with biases and an activation of their own."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "head_dim": 64,
        "attention_bias": True,
        "rope_theta": 150_000.0,
        "sliding_window": 128,
    }

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        limit, alpha = config.get("swiglu_limit", 7.0), config.get("swiglu_alpha", 1.702)
        if (limit, alpha) != (7.0, 1.702):
            raise ModelError(f"swiglu_limit {shown(limit)} and swiglu_alpha {shown(alpha)} are not supported; 7, 1.702")
        return {**super().read(config), "experts": experts_of(config, "intermediate_size"), "sinks": True}

    @classmethod
    def layer_names(cls, config: Mapping[str, Any]) -> list[str]:
        return named_layers(config, SLIDING, [layer % 2 == 0 for layer in range(num_layers_of(config))])

    def mlp(self, layer: int, weight: NewWeight) -> Mlp:
        from framework_models.modules.experts import ClampedExperts

        assert self.experts is not None
        return ClampedExperts(self.experts, self.hidden_size, weight)
