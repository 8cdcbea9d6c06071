"""Compressions that drop whole blocks: no token is moved, and what stays keeps its hash."""

# Shapes: K kv heads  n tokens in the pool

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from framework.interfaces.compression import LayerCache
from framework_lossy.budget import JUDGED, ScoredBlocks, attention
from framework_lossy.compression import Written

if TYPE_CHECKING:
    from torch import Tensor


class PagedEviction(ScoredBlocks):
    """Blocks whose tokens have small values and large keys go; with `every` the block size, one a block that fills.

    Source: Chitty-Venkata et al. 2025, arXiv:2509.04377: a token is worth |V| / |K|, a block the mean of its tokens.
    The paper drops single tokens of a prompt, before its blocks are made; here a prompt lies in blocks already, which
    other requests may share, and loses whole ones too.
    """

    def score(self, layer: LayerCache) -> Tensor:
        worth: Tensor = layer.values.norm(dim=-1) / layer.keys.norm(dim=-1).clamp_min(1e-12)
        return worth.mean(0)


@dataclass(kw_only=True)
class OpenVINOEviction(ScoredBlocks):
    """Blocks between the first and the last ones go, those that got the least attention first.

    Args:
        start_tokens, recent_tokens: at both ends, in whole blocks, that go last: the recent before the first.
        window: last queries whose attention counts.
        each_layer: as there, each layer keeps blocks of its own. They are then moved together and lose their hashes;
            else all layers keep the same, by their mean attention, and nothing is moved.

    Source: OpenVINO GenAI 2026, CacheEvictionConfig: 32, 128, and a window of 8 for prompts. There queries of decode
    add up over a token's life (NORM_SUM); here the last `window` count.
    """

    start_tokens: int = 32
    recent_tokens: int = 128
    window: int = 8
    each_layer: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(0, "start_tokens", "recent_tokens")
        self._at_least(1, "window")
        self.num_queries = max(self.window, JUDGED)

    def score(self, layer: LayerCache) -> Tensor:
        weights = attention(layer, layer.queries[-self.window :], layer.query_positions[-self.window :])
        return weights.mean((0, 1, 2))

    def protected(self, num_blocks: int, written: Written) -> npt.NDArray[np.int64]:
        places, size = np.arange(num_blocks), written.block_size
        recent = places >= num_blocks - -(-self.recent_tokens // size)
        return np.where(places < -(-self.start_tokens // size), 2, recent.astype(np.int64))
