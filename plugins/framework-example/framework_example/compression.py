"""A compression: tokens whose values are large stay in the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from framework.interfaces.compression import LayerCache
from framework_lossy.budget import Scored

if TYPE_CHECKING:
    from torch import Tensor


class LargeValues(Scored):
    """The tokens with the largest values stay, in each head."""

    def score(self, layer: LayerCache) -> Tensor:
        norms: Tensor = layer.values.norm(dim=-1)
        return norms
