"""Gemma's layer: attention and MLP end in a norm of their own, and the gate is a GELU."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from framework.model.config import ModelConfig
from framework.model.layers import DecoderLayer, GatedMlp, Mixer, Mlp, NewWeight, Rope, Targets


class GeluMlp(GatedMlp):
    def activate(self, gate: Tensor) -> Tensor:
        return F.gelu(gate, approximate="tanh")


class SandwichLayer(DecoderLayer):
    def __init__(self, config: ModelConfig, index: int, weight: NewWeight, attention: Mixer, mlp: Mlp):
        super().__init__(config, index, weight, attention, mlp)
        self.attention_end_norm, self.mlp_end_norm = weight(config.hidden_size), weight(config.hidden_size)

    def mix(self, x: Tensor, rope: Rope, attend: Callable[..., Tensor], rows: Tensor | None) -> Tensor:
        return self.norm(super().mix(x, rope, attend, rows), self.attention_end_norm)

    def think(self, x: Tensor) -> Tensor:
        return self.norm(super().think(x), self.mlp_end_norm)

    def targets(self) -> Targets:
        """With four norms "post attention" ends the attention, not begins the MLP."""
        assert self.post_norm is not None
        return {
            **super().targets(),
            "post_attention_layernorm.weight": self.attention_end_norm,
            "pre_feedforward_layernorm.weight": self.post_norm,
            "post_feedforward_layernorm.weight": self.mlp_end_norm,
        }
