"""Compressions that choose tokens, each head its own, and move what stays together."""

# Shapes: K kv heads  H query heads  G = H / K  D head dim  n tokens in the pool  w queries

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from framework.errors import ConfigError
from framework.interfaces.compression import LayerCache
from framework_lossy.budget import JUDGED, Budgeted, Scored, attention
from framework_lossy.compression import Kept, Written

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(kw_only=True)
class Streaming(Budgeted):
    """The first tokens and the last ones: attention sinks and a window. Positions are not renumbered.

    Args:
        sinks: first tokens that stay, while the budget lasts.

    Source: Xiao et al. 2023, StreamingLLM, arXiv:2309.17453: 4 sinks. There positions are those within the cache; here,
    as in kvpress, keys keep the rotation they have.
    """

    reads_cache = False

    sinks: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(0, "sinks")

    def choose(self, written: Written, layers: Sequence[LayerCache]) -> Kept:
        count, stored = self.num_kept(written), written.stored
        sinks = min(self.sinks, count)
        return Kept(tokens=np.r_[:sinks, stored - count + sinks : stored][None, None])


class KNorm(Scored):
    """Keys of small norm stay.

    Source: Devoto et al. 2024, arXiv:2406.11430.
    """

    def score(self, layer: LayerCache) -> Tensor:
        norms: Tensor = layer.keys.norm(dim=-1)
        return -norms


class KeyDiff(Scored):
    """Keys that point elsewhere than the mean key stay.

    Source: Park et al. 2025, arXiv:2504.15364, over all keys at once, as kvpress does: the paper goes block by block.
    """

    def score(self, layer: LayerCache) -> Tensor:
        from torch.nn import functional

        mean = functional.normalize(layer.keys, dim=-1).mean(1, keepdim=True)
        return -functional.cosine_similarity(layer.keys, mean, dim=-1)


@dataclass(kw_only=True)
class SnapKV(Scored):
    """What the last queries attend to, smoothed over neighbours, stays, and so does their window.

    Args:
        window: last queries that are asked, and last tokens that stay.
        kernel: tokens over which attention is averaged; odd.

    Source: Li et al. 2024, arXiv:2404.14469; window and kernel as in kvpress (64, 5); heads that share K and V are
    averaged. Of a request whose hit leaves fewer queries, those are asked.
    """

    window: int = 64
    kernel: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "window", "kernel")
        if self.kernel % 2 == 0:
            raise ConfigError(f"compression.kernel must be odd, found {self.kernel}")
        self.num_queries = max(self.window, JUDGED)

    def score(self, layer: LayerCache) -> Tensor:
        from torch.nn import functional

        length = layer.keys.shape[1]
        before = max(0, length - self.window)
        weights = attention(layer, layer.queries[-self.window :], layer.query_positions[-self.window :])
        scores = weights[..., :before].mean(2)
        if before:
            scores = functional.avg_pool1d(scores, self.kernel, stride=1, padding=self.kernel // 2)
        scores = scores.mean(1)
        return functional.pad(scores, (0, length - before), value=float(weights.max()) + 1)


@dataclass(kw_only=True)
class ExpectedAttention(Scored):
    """What queries still to come are expected to attend to stays, by the mean and covariance of those seen so far.

    Args:
        future: positions to come over which rotations are averaged.
        sinks: first tokens that stay, and whose queries do not count.

    Source: Devoto et al. 2025, arXiv:2510.00636; constants as in kvpress (512, 4), values' norms included. Queries are
    those that the request computed itself: a hit's are not known.
    """

    future: int = 512
    sinks: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        self._at_least(1, "future")
        self._at_least(0, "sinks")
        self.num_queries = None

    def score(self, layer: LayerCache) -> Tensor:
        import torch
        from torch.nn import functional

        heads, _, dim = layer.keys.shape
        counted = layer.query_positions >= self.sinks
        queries = unrotated(layer)[counted if counted.any() else ~counted].float().transpose(0, 1)  # (H, w, D)
        mean = queries.mean(1)
        centred = queries - mean[:, None]
        spread = centred.transpose(1, 2) @ centred / queries.shape[1]
        first = int(layer.query_positions[-1]) + 1
        cos, sin = layer.rotary(torch.arange(first, first + self.future, device=layer.keys.device))
        turn, width = torch.eye(dim, device=layer.keys.device), cos.shape[-1]
        half = torch.eye(width, device=layer.keys.device).roll(width // 2, 1)  # swaps halves; the sign is in `sin`
        ahead = torch.diag(cos[:, 0].float().mean(0)) + torch.diag(sin[:, 0].float().mean(0)) @ half
        turn[layer.turned, layer.turned] = ahead
        mean, spread = mean @ turn.T, turn @ spread @ turn.T
        sinks = min(self.sinks, layer.keys.shape[1] - 1)
        keys = layer.keys[:, sinks:].float().repeat_interleave(len(mean) // heads, 0)  # (H, n, D)
        scores = (keys @ mean[..., None])[..., 0] * layer.scale + ((keys @ spread) * keys).sum(-1) * layer.scale**2 / 2
        scores = scores.softmax(-1).view(heads, -1, keys.shape[1]).mean(1)
        scores = scores * layer.values[:, sinks:].float().norm(dim=-1)
        return functional.pad(scores, (sinks, 0), value=float(scores.max()) + 1)


def unrotated(layer: LayerCache) -> Tensor:
    """(w, H, D): the queries before their rotation, which is turned back."""
    cos, sin = layer.rotary(layer.query_positions)
    queries, rotated = layer.queries.clone(), layer.queries[..., layer.turned]
    queries[..., layer.turned] = rotated * cos - rotated.roll(cos.shape[-1] // 2, -1) * sin
    return queries
