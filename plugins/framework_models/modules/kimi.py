"""The layers of Kimi Linear: the delta rule with a decay of each element of a key, and latent attention as it is."""

# Shapes: T packed tokens  E hidden  N heads  K elements of a head

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from framework.model.functions import linear
from framework.model.layers import NewWeight, Rope, Targets
from framework.model.shape import Division
from framework_models.modules.latent import LatentAttention
from framework_models.modules.linear_attention import DeltaRule, between
from framework_models.recurrent import RecurrentConfig


class KimiDelta(DeltaRule):
    """One layer: projections, a short convolution over time, the rule, a gated norm, a projection back.

    Source: Kimi Linear, arXiv:2510.26692 section 3; transformers' KimiLinearDeltaAttention, for the same numbers.
    """

    CHUNK = 16

    def __init__(self, config: RecurrentConfig, hidden: int, eps: float, weight: NewWeight):
        super().__init__(config, weight)
        self._eps = eps
        heads, dim = config.num_value_heads, config.value_dim
        # What is convolved; write strength; what decay and gate are expanded from.
        self.widths = [config.num_channels, heads, dim, dim]
        self.inputs = weight(sum(self.widths), hidden)
        self.to_decay, self.to_gate = weight(heads * dim, dim), weight(heads * dim, dim)
        wide = torch.promote_types(self.inputs.dtype, torch.float32)
        self.decay_bias = nn.Parameter(weight(heads * dim).to(wide), requires_grad=False)
        self.decay_log = weight(1, 1, heads, 1)
        self.scale = weight(dim)
        self.output = weight(hidden, heads * dim)

    def forward(self, x: Tensor, rope: Rope, attend: Callable[..., Tensor], rows: Tensor | None = None) -> Tensor:
        mixed, strength, decay, gate = torch.split(linear(x, self.inputs, None), self.widths, -1)
        wide, heads = self.wide, (len(x), self.config.num_value_heads, -1)
        decay = F.softplus(linear(decay, self.to_decay, None).to(wide) + self.decay_bias).view(heads)
        out = attend(mixed, -self.decay_log[0].to(wide).exp() * decay, strength.sigmoid()).to(wide)
        out = F.rms_norm(out, out.shape[-1:], self.scale.to(wide), self._eps)
        out = (out * linear(gate, self.to_gate, None).view(heads).to(wide).sigmoid()).to(x.dtype).flatten(1)
        return self.project(out if rows is None else out[rows], self.output, None)

    def divisions(self) -> Mapping[str, Division]:
        heads, dim = self.config.num_value_heads, self.config.value_dim
        of_each = dict.fromkeys(("to_decay", "to_gate", "decay_bias"), (0, ((heads, dim),)))
        return {
            **super().divisions(), **of_each, "inputs": (0, (*self.convolved, (heads, 1), (1, dim), (1, dim))),
            "decay_log": (2, ((heads, 1),)), "output": (1, ((heads, dim),)),
        }  # fmt: skip

    def scores(self, left: Tensor, k: Tensor, total: Tensor) -> Tensor:
        """Chunk by chunk, since what is between two tokens differs from element to element."""
        each = [
            torch.einsum("...nik,njk,nijk->...nij", left[..., at, :, :], k[:, at], between(total[:, at]))
            for at in range(k.shape[1])
        ]
        return torch.stack(each, -3)

    def targets(self) -> Targets:
        inputs, strength, decay, gate = torch.split(self.inputs, self.widths)
        return {
            f"self_attn.{name}_{kind}.weight": part
            for kind, whole in (("proj", inputs), ("conv1d", self.convolution))
            for name, part in zip(("q", "k", "v"), whole.chunk(3), strict=True)
        } | {
            "self_attn.b_proj.weight": strength,
            "self_attn.f_a_proj.weight": decay,
            "self_attn.f_b_proj.weight": self.to_decay,
            "self_attn.dt_bias": self.decay_bias,
            "self_attn.A_log": self.decay_log,
            "self_attn.g_a_proj.weight": gate,
            "self_attn.g_b_proj.weight": self.to_gate,
            "self_attn.o_norm.weight": self.scale,
            "self_attn.o_proj.weight": self.output,
        }


class UnrotatedLatent(LatentAttention):
    def forward(self, x: Tensor, rope: Rope, attend: Callable[..., Tensor], rows: Tensor | None = None) -> Tensor:
        return super().forward(x, None, attend, rows)
