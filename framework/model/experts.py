"""Routed experts in plain torch: each token goes through a few of many gated MLPs."""

# Shapes: T tokens  E hidden  X experts  A experts a token  I intermediate

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from framework.model.config import ExpertsConfig, RoutingConfig

_SWIGLU_ALPHA, _SWIGLU_LIMIT = 1.702, 7.0
"""Constants of gpt-oss. Source: its model card; transformers' GptOssConfig."""


NewWeight = Callable[..., nn.Parameter]
"""(*shape) -> an empty weight of that shape, in the model's dtype on its device."""


class RoutedExperts(nn.Module):
    """A router and X gated MLPs. Source: Mixtral, arXiv:2401.04088 section 2.1; transformers' modeling code.

    NOTE: on a CPU each expert computes its own tokens. Elsewhere, and when compiled, every expert computes every token
    and weights of 0 drop what was not chosen: X / A times the work, but nothing waits for the device, so that decode
    steps can be captured.
    """

    def __init__(self, config: ExpertsConfig, hidden: int, weight: NewWeight):
        super().__init__()
        self._config = config
        count, width = config.count, config.intermediate_size

        self.router = weight(count, hidden)
        self.router_bias = weight(count) if config.bias else None
        self.choice_bias: nn.Parameter | None = None
        if config.routing is not None:  # in float32 at least: half precision would choose others
            wide = torch.promote_types(self.router.dtype, torch.float32)
            self.choice_bias = nn.Parameter(weight(count).to(wide), requires_grad=False)
        self.gate_up = weight(count, 2 * width, hidden)
        self.gate_up_bias = weight(count, 2 * width) if config.bias else None
        self.down = weight(count, hidden, width)
        self.down_bias = weight(count, hidden) if config.bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(T, E) to (T, E)."""
        weights, chosen = self._route(x)
        out = torch.zeros_like(x)
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            every = torch.zeros(len(x), self._config.count, dtype=x.dtype, device=x.device)
            every = every.scatter(1, chosen, weights)
            for expert in range(self._config.count):
                out = out + self._expert(x, expert) * every[:, expert, None]
            return out
        for expert in torch.bincount(chosen.flatten()).nonzero().flatten().tolist():
            token, place = (chosen == expert).nonzero(as_tuple=True)
            out.index_add_(0, token, self._expert(x[token], expert) * weights[token, place, None])
        return out

    def _route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (T, A) in x's dtype, and the experts (T, A) they are for."""
        if self._config.routing is not None:
            return self._route_by_group(x, self._config.routing)
        scores = F.linear(x, self.router, self.router_bias)
        if self._config.renormalise:  # a softmax over the chosen ones alone is the same
            top, chosen = scores.topk(self._config.per_token, -1)
            return top.float().softmax(-1).to(x.dtype), chosen
        top, chosen = scores.float().softmax(-1).topk(self._config.per_token, -1)
        return top.to(x.dtype), chosen

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

    def _expert(self, x: Tensor, expert: int) -> Tensor:
        first = None if self.gate_up_bias is None else self.gate_up_bias[expert]
        second = None if self.down_bias is None else self.down_bias[expert]
        both = F.linear(x, self.gate_up[expert], first)
        if self._config.clamped:
            gate, up = both[..., ::2].clamp(max=_SWIGLU_LIMIT), both[..., 1::2].clamp(-_SWIGLU_LIMIT, _SWIGLU_LIMIT)
            return F.linear((up + 1) * gate * torch.sigmoid(gate * _SWIGLU_ALPHA), self.down[expert], second)
        gate, up = both.chunk(2, -1)
        return F.linear(F.silu(gate) * up, self.down[expert], second)
