"""Routed experts in plain torch: each token goes through a few of many MLPs."""

# Shapes: T tokens  E hidden  X experts  A experts a token  I intermediate

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from framework.model.functions import linear
from framework.model.layers import Mlp, NewWeight, Target, Targets
from framework.model.shape import Division
from framework_models.experts import ExpertsConfig, RoutingConfig

_SWIGLU_ALPHA, _SWIGLU_LIMIT = 1.702, 7.0
"""Constants of gpt-oss. Source: its model card; transformers' GptOssConfig."""


class RoutedExperts(Mlp):
    """A router and X MLPs. Source: Mixtral, arXiv:2401.04088 section 2.1; transformers' modeling code.

    NOTE: on a CPU each expert computes its own tokens. Elsewhere, and when compiled, every expert computes every token
    and weights of 0 drop what was not chosen: X / A times the work, but nothing waits for the device, so that decode
    steps can be captured.

    Attributes:
        ROOM, NAMES: of a checkpoint's weights: what they begin with, and those of an expert: gate, up and down.
    """

    ROOM: ClassVar[str] = "mlp"
    NAMES: ClassVar[tuple[str, ...]] = ("gate_proj", "up_proj", "down_proj")

    def __init__(self, config: ExpertsConfig, hidden: int, weight: NewWeight):
        super().__init__()
        self._config = config
        count, width = config.count, config.intermediate_size

        self.router = weight(count, hidden)
        self.choice_bias: nn.Parameter | None = None
        if config.routing is not None:  # in float32 at least: half precision would choose others
            wide = torch.promote_types(self.router.dtype, torch.float32)
            self.choice_bias = nn.Parameter(weight(count).to(wide), requires_grad=False)
        self.gate_up = weight(count, (len(self.NAMES) - 1) * width, hidden)
        self.down = weight(count, hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """(T, E) to (T, E)."""
        weights, chosen = self._route(x)
        out = torch.zeros_like(x)
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            every = torch.zeros(len(x), self._config.count, dtype=x.dtype, device=x.device)
            every = every.scatter(1, chosen, weights)
            for expert in range(self._config.count):
                out = out + self._weighted(x, expert, every[:, expert, None])
            return out if self.group is None else self.group.sum(out)
        for expert in torch.bincount(chosen.flatten()).nonzero().flatten().tolist():
            token, place = (chosen == expert).nonzero(as_tuple=True)
            out.index_add_(0, token, self._weighted(x[token], expert, weights[token, place, None]))
        return out if self.group is None else self.group.sum(out)

    def _route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (T, A) in x's dtype, and the experts (T, A) they are for."""
        if self._config.routing is not None:
            return self._route_by_group(x, self._config.routing)
        scores = self._scores(x)
        if self._config.renormalise:  # a softmax over the chosen ones alone is the same
            top, chosen = scores.topk(self._config.per_token, -1)
            return top.float().softmax(-1).to(x.dtype), chosen
        top, chosen = scores.float().softmax(-1).topk(self._config.per_token, -1)
        return top.to(x.dtype), chosen

    def _scores(self, x: Tensor) -> Tensor:
        return F.linear(x, self.router)

    def _route_by_group(self, x: Tensor, routing: RoutingConfig) -> tuple[Tensor, Tensor]:
        """See RoutingConfig: a group is as good as its two best experts. Source: arXiv:2412.19437 section 2.1.2."""
        assert self.choice_bias is not None
        wide = self.choice_bias.dtype
        scores = F.linear(x.to(wide), self.router.to(wide)).sigmoid()
        biased = (scores + self.choice_bias).view(len(x), routing.num_groups, self._config.count // routing.num_groups)
        groups = biased.topk(2, -1).values.sum(-1).topk(routing.groups_per_token, -1).indices
        left = torch.ones_like(biased[..., 0], dtype=torch.bool).scatter(-1, groups, False)
        chosen = biased.masked_fill(left.unsqueeze(-1), -torch.inf).flatten(-2).topk(self._config.per_token, -1).indices
        top = scores.gather(-1, chosen)
        if self._config.renormalise:
            top = top / (top.sum(-1, keepdim=True) + 1e-20)
        return (top * routing.scaling).to(x.dtype), chosen

    def _weighted(self, x: Tensor, expert: int, weights: Tensor) -> Tensor:
        """What tokens (T, E) get of an expert that has these weights (T, 1) for them."""
        return self._expert(x, expert) * weights

    def _expert(self, x: Tensor, expert: int) -> Tensor:
        gate, up = F.linear(x, self.gate_up[expert]).chunk(2, -1)
        return F.linear(F.silu(gate) * up, self.down[expert])

    def divisions(self) -> Mapping[str, Division]:
        columns = self.down.shape[2], 1
        return {"gate_up": (1, (columns,) * (len(self.NAMES) - 1)), "down": (2, (columns,))}

    def targets(self) -> Targets:
        """Each expert alone."""
        views: dict[str, Tensor | Target] = {f"{self.ROOM}.gate.weight": self.router}
        if self.choice_bias is not None:
            views[f"{self.ROOM}.gate.e_score_correction_bias"] = self.choice_bias
        for index, (gate_up, down) in enumerate(zip(self.gate_up, self.down, strict=True)):
            parts = zip(self.NAMES, (*gate_up.chunk(len(self.NAMES) - 1), down), strict=True)
            views |= {f"{self.ROOM}.experts.{index}.{name}.weight": part for name, part in parts}
        return views


class MixtralExperts(RoutedExperts):
    ROOM, NAMES = "block_sparse_moe", ("w1", "w3", "w2")


class SquaredExperts(RoutedExperts):
    """Nemotron-H's: MLPs without a gate, activated by a squared ReLU."""

    NAMES = ("up_proj", "down_proj")

    def _expert(self, x: Tensor, expert: int) -> Tensor:
        return F.linear(F.relu(F.linear(x, self.gate_up[expert])).square(), self.down[expert])


class ClampedExperts(RoutedExperts):
    """gpt-oss's: biases, gate and up interleaved and clamped; all experts are stored as one, transposed."""

    def __init__(self, config: ExpertsConfig, hidden: int, weight: NewWeight):
        super().__init__(config, hidden, weight)
        count, width = config.count, config.intermediate_size
        self.router_bias = weight(count)
        self.gate_up_bias, self.down_bias = weight(count, 2 * width), weight(count, hidden)

    def divisions(self) -> Mapping[str, Division]:
        pairs = ((self.down.shape[2], 2),)
        return {**super().divisions(), "gate_up": (1, pairs), "gate_up_bias": (1, pairs), "down_bias": (1, ())}

    def _scores(self, x: Tensor) -> Tensor:
        return F.linear(x, self.router, self.router_bias)

    def _expert(self, x: Tensor, expert: int) -> Tensor:
        both = F.linear(x, self.gate_up[expert], self.gate_up_bias[expert])
        gate, up = both[..., ::2].clamp(max=_SWIGLU_LIMIT), both[..., 1::2].clamp(-_SWIGLU_LIMIT, _SWIGLU_LIMIT)
        mixed = (up + 1) * gate * torch.sigmoid(gate * _SWIGLU_ALPHA)
        return F.linear(mixed, self.down[expert], self.down_bias[expert])

    def targets(self) -> Targets:
        return {
            "mlp.router.weight": self.router,
            "mlp.router.bias": self.router_bias,
            "mlp.experts.gate_up_proj": self.gate_up.transpose(1, 2),
            "mlp.experts.gate_up_proj_bias": self.gate_up_bias,
            "mlp.experts.down_proj": self.down.transpose(1, 2),
            "mlp.experts.down_proj_bias": self.down_bias,
        }


class SharedExperts(Mlp):
    """Routed experts, and an MLP beside them that every token goes through; in Qwen's behind a gate."""

    def __init__(self, shared: Mlp, experts: RoutedExperts, gate: nn.Parameter | None = None):
        super().__init__()
        self.shared, self.gate, self.experts = shared, gate, experts

    def forward(self, x: Tensor) -> Tensor:
        shared: Tensor = self.shared(x)
        if self.gate is not None:
            shared = shared * linear(x, self.gate, None).sigmoid()
        routed: Tensor = self.experts(x)
        return routed + shared

    def targets(self) -> Targets:
        gate = {} if self.gate is None else {"mlp.shared_expert_gate.weight": self.gate}
        return {**self.experts.targets(), **self.shared.targets(), **gate}
