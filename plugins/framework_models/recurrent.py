"""Models with layers of linear attention; Qwen3-Next and Qwen3.5, of which every fourth layer attends to all tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from framework.errors import ModelError
from framework.model.config import named_layers
from framework.model.hf_config import num_layers_of, value_of
from framework.model.shape import STATE
from framework_models.experts import RoutedModel, experts_of

if TYPE_CHECKING:
    from framework.model.layers import Mixer, NewWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentConfig:
    """Layers with a recurrent state in place of attention: see `framework_models.modules.linear_attention`.

    Attributes:
        layers: which layers, one flag each.
        num_key_heads, num_value_heads: each key head serves equally many value heads.
        key_dim, value_dim: elements of a head.
        kernel: tokens that the convolution before it reads, the present one included.
        by_key_head: what goes in is projected key head by key head, all that belongs to one together (Qwen3-Next).
    """

    layers: tuple[bool, ...]
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    by_key_head: bool = False

    def __post_init__(self) -> None:
        sizes = (self.num_key_heads, self.num_value_heads, self.key_dim, self.value_dim)
        if not all(1 <= size <= 2**12 for size in sizes) or not 2 <= self.kernel <= 64:
            raise ModelError(f"a recurrent layer of heads and sizes {sizes} with a kernel of {self.kernel} tokens: "
                             "sizes are 1 to 4,096, a kernel 2 to 64")  # fmt: skip
        if self.num_value_heads % self.num_key_heads:
            raise ModelError(f"{self.num_value_heads} value heads are not a multiple of {self.num_key_heads} key heads")
        if not any(self.layers) or all(self.layers):
            raise ModelError("a model with recurrent layers has layers of full attention beside them")

    @property
    def num_channels(self) -> int:
        """Elements a token that the convolution reads: queries, keys, values."""
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim

    def state_bytes(self, itemsize: int) -> int:
        """Bytes of one layer's state: a float32 memory, and the convolution's last inputs of `itemsize` bytes each."""
        memory = self.num_value_heads * self.key_dim * self.value_dim
        return 4 * memory + itemsize * self.num_channels * (self.kernel - 1)


@dataclass(frozen=True, kw_only=True)
class RecurrentModel(RoutedModel):
    """A model with layers of linear attention beside full attention."""

    recurrent: RecurrentConfig

    def undivided(self, size: int) -> tuple[str, ...]:
        heads = self.recurrent.num_key_heads  # each with its value heads, and Mamba 2's norms with all of a group
        reason = f"{heads} key heads of recurrent layers are not a multiple of it"
        return (*super().undivided(size), *[reason] * (heads % size != 0))

    def divided(self, share: Callable[[int], int]) -> dict[str, Any]:
        keys, values = self.recurrent.num_key_heads, self.recurrent.num_value_heads
        part = replace(self.recurrent, num_key_heads=share(keys), num_value_heads=share(values))
        return {**super().divided(share), "recurrent": part}

    @property
    def attention_layers(self) -> tuple[int, ...]:
        return tuple(layer for layer, state in enumerate(self.recurrent.layers) if not state)

    @property
    def state_layers(self) -> tuple[int, ...]:
        return tuple(layer for layer, state in enumerate(self.recurrent.layers) if state)

    def state_bytes(self, itemsize: int) -> int:
        return self.recurrent.state_bytes(itemsize)


class Qwen35(RecurrentModel):
    """Qwen3.5, its text alone."""

    ROTATES_IN_PART: ClassVar[bool] = True
    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "head_dim": 256, "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        "partial_rotary_factor": 0.25,
    }  # fmt: skip

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        recurrent = RecurrentConfig(
            layers=tuple(name == STATE for name in cls.layer_names(config)),
            num_key_heads=value_of(config, "linear_num_key_heads", int),
            num_value_heads=value_of(config, "linear_num_value_heads", int),
            key_dim=value_of(config, "linear_key_head_dim", int),
            value_dim=value_of(config, "linear_value_head_dim", int),
            kernel=value_of(config, "linear_conv_kernel_dim", int),
        )
        return {**super().read(config), "recurrent": recurrent, "qk_norm": True, "norms_plus_one": True}

    @classmethod
    def layer_names(cls, config: Mapping[str, Any]) -> list[str]:
        every = value_of(config, "full_attention_interval", int)
        return named_layers(config, STATE, [(layer + 1) % every != 0 for layer in range(num_layers_of(config))])

    def attention(self, layer: int, weight: NewWeight) -> Mixer:
        from framework_models.modules.delta import GatedAttention, GatedDelta

        if self.recurrent.layers[layer]:
            return GatedDelta(self.recurrent, self.hidden_size, self.rms_norm_eps, weight)
        return GatedAttention(self, weight)

    def is_unused(self, weight: str) -> bool:
        """What reads images or drafts tokens, too."""
        return super().is_unused(weight) or weight.startswith(("model.visual.", "mtp."))


class Qwen35Moe(Qwen35):
    """With routed experts and one that is shared, behind a gate."""

    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        **Qwen35.DEFAULTS,
        "num_experts_per_tok": 8, "moe_intermediate_size": 512, "num_experts": 256,
        "shared_expert_intermediate_size": 512,
    }  # fmt: skip

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        shared = value_of(config, "shared_expert_intermediate_size", int)
        experts = experts_of(config, shared_size=shared, shared_gate=True)
        return {**super().read({**config, "intermediate_size": experts.intermediate_size}), "experts": experts}


class Qwen3Next(Qwen35Moe):
    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        **Qwen35Moe.DEFAULTS,
        "num_experts_per_tok": 10, "num_experts": 512, "norm_topk_prob": True,
    }  # fmt: skip

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        values = super().read(config)
        experts = replace(values["experts"], renormalise=value_of(config, "norm_topk_prob", bool))
        return {**values, "experts": experts, "recurrent": replace(values["recurrent"], by_key_head=True)}
