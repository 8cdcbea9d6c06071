"""Phi-3: a Mistral whose projections are stored as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from framework.model.families import Mistral

if TYPE_CHECKING:
    from framework.model.layers import Mixer, Mlp, NewWeight


class Phi3(Mistral):
    def attention(self, layer: int, weight: NewWeight) -> Mixer:
        from framework_models.modules.fused import FusedAttention

        return FusedAttention(self, weight)

    def mlp(self, layer: int, weight: NewWeight) -> Mlp:
        from framework_models.modules.fused import FusedMlp

        return FusedMlp(self, weight)
