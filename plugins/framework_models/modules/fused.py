"""Attention and MLP whose projections a checkpoint stores as one, as here."""

from __future__ import annotations

from torch import Tensor

from framework.model.layers import GatedMlp, SelfAttention


class FusedAttention(SelfAttention):
    def projections(self, qkv: Tensor) -> dict[str, Tensor]:
        return {"qkv_proj": qkv}


class FusedMlp(GatedMlp):
    def projections(self, gate_up: Tensor) -> dict[str, Tensor]:
        return {"gate_up_proj": gate_up}
