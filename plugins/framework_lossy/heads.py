"""Budgets by head: heads whose tokens are worth more keep more of them, in block tables of their own."""

# Shapes: K kv heads  n tokens in the pool

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from framework.errors import ConfigError
from framework.interfaces.compression import LayerCache
from framework.registry.components import build_component
from framework_lossy.budget import Budgeted, Scored
from framework_lossy.compression import Kept, Written

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(kw_only=True)
class AdaKV(Budgeted):
    """The tokens of a layer that are worth the most stay, whichever head they belong to.

    Args:
        over: the method whose scores decide: its name, or a mapping of `name` and its own options.
        safeguard: share of the mean budget that each head keeps whatever its scores.

    Raises:
        ConfigError: `over` does not score tokens, or `every` is set: heads are not brought back to a budget.

    Source: Feng et al. 2024, Ada-KV, arXiv:2407.11550, algorithm 1; safeguard of 0.2 as there and in kvpress. What a
    head keeps is rounded to whole blocks, which alone are returned, so that the layer's budget is kept to the token; in
    blocks of one token nothing is rounded.
    """

    by_head = True

    over: str | Mapping[str, Any] = "snapkv"
    safeguard: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.safeguard <= 1.0:
            raise ConfigError(f"compression.safeguard must be a share from 0 to 1, found {self.safeguard}")
        if self.every is not None:
            raise ConfigError(f"compression.every must be null with adakv, whose heads differ; found {self.every}")
        over = build_component("compression", self.over, {})
        if not isinstance(over, Scored):
            raise ConfigError(f"compression.over must be a method that scores tokens, found {type(over).__name__}")
        self._over: Scored = over
        self.num_queries = over.num_queries

    def choose(self, written: Written, layers: Sequence[LayerCache]) -> Kept:
        budget = self.num_kept(written)
        each = [self._layer(self._over.score(layer), budget, written.block_size) for layer in layers]
        most = max(len(tokens) for heads in each for tokens in heads)
        return Kept(tokens=np.array([[np.pad(one, (0, most - len(one)), constant_values=-1) for one in heads]
                                     for heads in each]))  # fmt: skip

    def _layer(self, scores: Tensor, budget: int, size: int) -> list[npt.NDArray[np.int64]]:
        """The tokens of each head, rising: of those that score highest over all heads, as many as whole blocks say."""
        import torch

        heads, length = scores.shape
        safe = scores.topk(max(1, int(budget * self.safeguard)), -1).indices
        raised = scores.scatter(-1, safe, torch.inf)
        best = raised.flatten().topk(heads * budget).indices // length
        counts = whole_blocks(torch.bincount(best, minlength=heads).cpu().numpy(), length, size)
        return [
            one.topk(count).indices.sort().values.cpu().numpy()
            for one, count in zip(scores, counts.tolist(), strict=True)
        ]


def whole_blocks(counts: npt.NDArray[np.int64], length: int, size: int) -> npt.NDArray[np.int64]:
    """Counts (K,) with the same mean, or up to a block less, each of `size` times a whole number and one remainder.

    The heads that lose the most by rounding down get the blocks that are left. At least 1 and at most `length` each.
    """
    mean = int(counts.sum()) // len(counts)
    rest = mean % size
    most, least = (length - rest) // size, int(rest == 0)
    exact = np.clip((counts - rest) / size, least, most)
    full = np.floor(exact).astype(np.int64)
    for _ in range(len(counts) * (mean // size) - int(full.sum())):
        full[np.argmax(np.where(full < most, exact - full, -np.inf))] += 1
    while full.sum() > len(counts) * (mean // size):  # where heads were raised to the least
        full[np.argmax(np.where(full > least, full - exact, -np.inf))] -= 1
    return full * size + rest
