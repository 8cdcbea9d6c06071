"""The layers of Llama 4: attention that rotates neighbours or nothing, and experts that are given weighted tokens."""

# Shapes: T packed tokens  H query heads  K kv heads  D head dim  A experts a token

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from framework.model.functions import rms_norm, rotate
from framework.model.layers import NewWeight, Rope, SelfAttention, Targets
from framework_models.llama4 import Llama4
from framework_models.modules.experts import RoutedExperts


class Llama4Attention(SelfAttention):
    """Source: transformers' Llama4TextAttention; temperature: arXiv:2501.19399."""

    def __init__(self, config: Llama4, layer: int, weight: NewWeight):
        super().__init__(config, weight)
        self._rotates, self._normalises = config.rotated[layer], config.normalised
        self._floor, self._temper = config.floor_scale, config.attention_temper

    def forward(self, x: Tensor, rope: Rope, attend: Callable[..., Tensor], rows: Tensor | None = None) -> Tensor:
        assert rope is not None
        qkv = self.heads(x)
        qk, v = qkv[:, : -self.num_kv_heads], qkv[:, -self.num_kv_heads :]
        if self._rotates:
            qk = rotate(torch.cat((qk[..., ::2], qk[..., 1::2]), -1), rope)
            qk = rms_norm(qk.float(), None, self.eps).to(qk.dtype) if self._normalises else qk
        q, k = qk[:, : self.num_heads], qk[:, self.num_heads :]
        if not self._rotates and self._temper:
            scale = torch.log1p(torch.floor((rope[2].float() + 1) / self._floor)) * self._temper + 1
            q = (q * scale.view(-1, 1, 1)).to(q.dtype)
        return self.end(attend(q, k, v), rows)


class Llama4Experts(RoutedExperts):
    """Weights are sigmoids of the best scores, and multiply what goes into an expert; all experts are stored as one."""

    def _route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        top, chosen = self._scores(x).topk(self._config.per_token, -1)
        return top.float().sigmoid().to(x.dtype), chosen

    def _weighted(self, x: Tensor, expert: int, weights: Tensor) -> Tensor:
        return self._expert(x * weights, expert)

    def targets(self) -> Targets:
        return {
            "mlp.router.weight": self.router,
            "mlp.experts.gate_up_proj": self.gate_up.transpose(1, 2),
            "mlp.experts.down_proj": self.down.transpose(1, 2),
        }
