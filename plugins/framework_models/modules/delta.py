"""The layers of Qwen3-Next and 3.5: the gated delta rule, in plain torch, and attention behind a gate."""

# Shapes: T packed tokens  E hidden

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from framework.model.config import ModelConfig
from framework.model.layers import NewWeight, Rope, SelfAttention, Targets
from framework.model.shape import Division
from framework_models.modules.linear_attention import DeltaRule
from framework_models.recurrent import RecurrentConfig


class GatedDelta(DeltaRule):
    """One layer: projections, a short convolution over time, the gated delta rule, a gated norm, a projection back.

    Source: Yang et al. 2024, arXiv:2412.06464; transformers' Qwen3_5GatedDeltaNet, for the same numbers.
    """

    def __init__(self, config: RecurrentConfig, hidden: int, eps: float, weight: NewWeight):
        super().__init__(config, weight)
        self._eps = eps
        values = config.num_value_heads * config.value_dim
        self.widths = [config.num_channels, values, config.num_value_heads, config.num_value_heads]
        self.inputs = weight(sum(self.widths), hidden)  # what is convolved, the gate, write strength, decay
        self.decay_bias, self.decay_log = weight(config.num_value_heads), weight(config.num_value_heads)
        self.scale = weight(config.value_dim)
        self.output = weight(hidden, values)

    def forward(self, x: Tensor, rope: Rope, attend: Callable[..., Tensor], rows: Tensor | None = None) -> Tensor:
        mixed, gate, strength, decay = self._split(F.linear(x, self.inputs))
        wide = self.wide
        rate = -self.decay_log.to(wide).exp() * F.softplus(decay.to(wide) + self.decay_bias)
        out = attend(mixed, rate.unsqueeze(-1), strength.sigmoid())
        out = F.rms_norm(out.to(wide), out.shape[-1:], None, self._eps).to(x.dtype) * self.scale
        out = (out * F.silu(gate.view_as(out).to(wide))).to(x.dtype)
        out = out.flatten(1)
        return self.project(out if rows is None else out[rows], self.output, None)

    def _split(self, x: Tensor) -> tuple[Tensor, ...]:
        """What was projected, of `widths`: what is convolved, the gate, write strength, decay."""
        config, heads = self.config, self.config.num_key_heads
        if not config.by_key_head:
            return torch.split(x, self.widths, -1)
        each = config.num_value_heads // heads
        wide, narrow = torch.split(x, [sum(self.widths[:2]), sum(self.widths[2:])], -1)
        widths = [config.key_dim, config.key_dim, each * config.value_dim, each * config.value_dim]
        q, k, v, gate = (part.flatten(1) for part in torch.split(wide.reshape(len(x), heads, -1), widths, -1))
        strength, decay = (part.flatten(1) for part in torch.split(narrow.reshape(len(x), heads, -1), each, -1))
        return torch.cat((q, k, v), -1), gate, strength, decay

    def divisions(self) -> Mapping[str, Division]:
        config, value = self.config, (self.config.num_value_heads, self.config.value_dim)
        heads, each = config.num_key_heads, config.num_value_heads // config.num_key_heads
        inputs = *self.convolved, value, (config.num_value_heads, 1), (config.num_value_heads, 1)
        if config.by_key_head:
            inputs = (heads, 2 * config.key_dim + 2 * each * config.value_dim), (heads, 2 * each)
        return {**super().divisions(), "inputs": (0, inputs), "output": (1, (value,))}

    def targets(self) -> Targets:
        widths = dict(zip(("qkv", "z", "b", "a"), self.widths, strict=True))
        if self.config.by_key_head:
            widths = {"qkvz": widths["qkv"] + widths["z"], "ba": widths["b"] + widths["a"]}
        parts = zip(widths, torch.split(self.inputs, [*widths.values()]), strict=True)
        return {f"linear_attn.in_proj_{name}.weight": part for name, part in parts} | {
            "linear_attn.conv1d.weight": self.convolution,
            "linear_attn.dt_bias": self.decay_bias,
            "linear_attn.A_log": self.decay_log,
            "linear_attn.norm.weight": self.scale,
            "linear_attn.out_proj.weight": self.output,
        }


class GatedAttention(SelfAttention):
    """What attention gives is multiplied by the sigmoid of a gate: each query head has two in `qkv`, itself and it."""

    def __init__(self, config: ModelConfig, weight: NewWeight):
        super().__init__(config, weight, 2 * config.num_heads)

    def forward(self, x: Tensor, rope: Rope, attend: Callable[..., Tensor], rows: Tensor | None = None) -> Tensor:
        heads, kv = self.num_heads, self.num_kv_heads
        queries, k, v = torch.split(self.heads(x), [2 * heads, kv, kv], 1)
        qk = self.rotated(torch.cat((queries[:, ::2], k), 1), rope)
        return self.end(attend(qk[:, :heads], qk[:, heads:], v) * queries[:, 1::2].sigmoid(), rows)
