"""The layers of Nemotron-H: Mamba 2, attention without rotation, MLPs without a gate, each alone in a layer."""

# Shapes: T packed tokens  E hidden  G groups  N heads  K state dim  V head dim  I intermediate

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from framework.model.functions import linear
from framework.model.layers import DecoderLayer, Mlp, NewWeight, Rope, SelfAttention, Target, Targets
from framework.model.shape import Division
from framework_models.modules.linear_attention import LinearAttention
from framework_models.recurrent import RecurrentConfig


class Mamba2(LinearAttention):
    """One layer: projections, a short convolution over time, a selective state space, a gated norm, a projection back.

    As linear attention: C are the queries and B the keys of G groups, x the values, a step of time their strength,
    which also says how far the memory decays. Source: Dao and Gu 2024, arXiv:2405.21060 section 7.

    NOTE: transformers' prefill raises steps of time below `time_step_min` to it and its decode does not, so that the
    two differ; here, as in vLLM, neither does.
    """

    CORRECTS = False

    def __init__(self, config: RecurrentConfig, hidden: int, eps: float, weight: NewWeight):
        super().__init__(config, weight)
        self._eps = eps
        heads, self._keys = config.num_value_heads, config.num_key_heads * config.key_dim
        values = heads * config.value_dim
        self.widths = [values, config.num_channels, heads]
        self.inputs = weight(sum(self.widths), hidden)  # the gate, what is convolved, steps of time
        self.convolution_bias = weight(config.num_channels)
        self.time_bias, self.decay_log, self.skip = weight(heads), weight(heads), weight(heads)
        self.scale = weight(values)
        self.output = weight(hidden, values)

    def forward(self, x: Tensor, rope: Rope, attend: Callable[..., Tensor], rows: Tensor | None = None) -> Tensor:
        gate, mixed, time = torch.split(linear(x, self.inputs, None), self.widths, -1)
        time = F.softplus(time.to(self.wide) + self.time_bias)
        rate = -self.decay_log.to(self.wide).exp() * time
        out = attend(mixed, rate.unsqueeze(-1), time).flatten(1).to(self.wide) * F.silu(gate.to(self.wide))
        grouped = out.view(len(x), self.config.num_key_heads, -1)
        out = F.rms_norm(grouped, grouped.shape[-1:], None, self._eps).flatten(1).to(x.dtype) * self.scale
        return self.project(out if rows is None else out[rows], self.output, None)

    @property
    def convolved(self) -> tuple[tuple[int, int], ...]:
        keys, _, values = super().convolved
        return values, keys, keys

    def divisions(self) -> Mapping[str, Division]:
        each, values = (self.config.num_value_heads, 1), self.convolved[0]
        of_each = dict.fromkeys(("time_bias", "skip"), (0, (each,)))
        return {
            **super().divisions(), **of_each, "inputs": (0, (values, *self.convolved, each)),
            "convolution_bias": (0, self.convolved), "scale": (0, (values,)), "output": (1, (values,)),
        }  # fmt: skip

    def heads(self, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        config = self.config
        x, b, c = torch.split(F.silu(convolved).to(self.wide), [self.widths[0], self._keys, self._keys], -1)
        each = config.num_value_heads // config.num_key_heads
        q, k = (a.reshape(len(a), -1, config.key_dim).repeat_interleave(each, 1) for a in (c, b))
        return q, k, x.reshape(len(x), -1, config.value_dim)

    def targets(self) -> Targets:
        assert self.convolution_bias is not None
        assert self.skip is not None
        return {
            "self_attn.in_proj.weight": self.inputs,
            "self_attn.conv1d.weight": self.convolution,
            "self_attn.conv1d.bias": self.convolution_bias,
            "self_attn.dt_bias": self.time_bias,
            "self_attn.A_log": self.decay_log,
            "self_attn.D": self.skip,
            "self_attn.norm.weight": self.scale,
            "self_attn.out_proj.weight": self.output,
        }


class UnrotatedAttention(SelfAttention):
    def forward(self, x: Tensor, rope: Rope, attend: Callable[..., Tensor], rows: Tensor | None = None) -> Tensor:
        return super().forward(x, None, attend, rows)


class SquaredMlp(Mlp):
    """Down of the squared ReLU of up. `room`: begins its weights' names."""

    def __init__(self, hidden: int, width: int, weight: NewWeight, room: str = "mlp"):
        super().__init__()
        self.up, self.down, self.room = weight(width, hidden), weight(hidden, width), room

    def forward(self, x: Tensor) -> Tensor:
        return self.project(F.relu(linear(x, self.up, None)).square(), self.down, None)

    def divisions(self) -> Mapping[str, Division]:
        columns = ((len(self.up), 1),)
        return {"up": (0, columns), "down": (1, columns)}

    def targets(self) -> Targets:
        return {f"{self.room}.up_proj.weight": self.up, f"{self.room}.down_proj.weight": self.down}


class SingleLayer(DecoderLayer):
    """One part behind a norm, both named alike whatever the part is."""

    def targets(self) -> Targets:
        found: dict[str, Tensor | Target] = {}
        for name, target in super().targets().items():
            room, _, rest = name.partition(".")
            found[f"norm.{rest}" if room.endswith("layernorm") else f"mixer.{rest}"] = target
        return found
