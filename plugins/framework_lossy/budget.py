"""What all compressions here share: a budget, when it is kept, and what the tokens that stay are worth."""

# Shapes: L layers  K kv heads  H query heads  G = H / K  D head dim  n tokens in the pool  m that stay  w queries

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from framework.errors import ConfigError
from framework.interfaces.compression import LayerCache
from framework.results.metric import Metric, section
from framework.types import RequestInfo
from framework_lossy.compression import Kept, TokenDropping, Written

if TYPE_CHECKING:
    from torch import Tensor

memory = section("memory")
JUDGED = 16
"""Last queries by which what stays is judged."""


@dataclass(kw_only=True)
class Budgeted(TokenDropping):
    """Drops a share of what a prompt has left in the pool, as soon as it is computed.

    Args:
        ratio: share of the tokens that is dropped, 0 to below 1; `max(1, int(n * (1 - ratio)))` of n stay, as in
            kvpress.
        question_tokens: last tokens of a prompt that are computed after that, from what stayed: without any, the first
            token of an answer still follows from the whole prompt. A request that hits more is compressed once it has
            computed the rest.
        every: tokens after which more is dropped, until no more stay than of the prompt; None: never.

    Raises:
        ConfigError: a value outside its bounds.
    """

    metrics: ClassVar[Sequence[Metric]] = (
        memory("kept_attention_mass", "share", "higher", "attention kept",
               "Attention of the last 16 queries before a compression to what stayed, beside all that was there: mean "
               "over queries, heads, layers and compressions."),
        memory("compression_output_error", "share", "lower", "error of attention",
               "Largest difference of an attention output of these queries from that over all tokens, as a share of "
               "the largest |V|: mean over layers and compressions."),
    )  # fmt: skip

    ratio: float = 0.5
    question_tokens: int = 0
    every: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.ratio < 1.0:
            raise ConfigError(f"compression.ratio must be a share from 0 to below 1, found {self.ratio}")
        self._at_least(0, "question_tokens")
        if self.every is not None:
            self._at_least(1, "every")
        self.num_queries = JUDGED
        self._judged: list[tuple[float, float]] = []

    def _at_least(self, least: int, *options: str) -> None:
        for option in options:
            if not least <= (value := getattr(self, option)) < 2**31:  # as engine.max_model_len
                raise ConfigError(f"compression.{option} must be {least} to {2**31 - 1}, found {value}")

    def _boundary(self, request: RequestInfo) -> int:
        return max(1, (request.prompt_tokens or 0) - self.question_tokens)

    def step_end(self, request: RequestInfo, start: int, end: int) -> int:
        boundary = self._boundary(request) if self.ratio or self.question_tokens else end
        return boundary if start < boundary < end else end

    def due(self, written: Written) -> bool:
        if self.ratio == 0:
            return False
        if written.compressed_at is None:
            return written.computed >= self._boundary(written.info)
        return self.every is not None and written.computed - written.compressed_at >= self.every

    def num_kept(self, written: Written) -> int:
        """How many of the request's tokens in the pool stay."""
        length = written.stored if written.compressed_at is None else self._boundary(written.info)
        return min(written.stored, max(1, int(length * (1 - self.ratio))))

    def keep(self, written: Written) -> Kept | None:
        layers = written.layers()
        kept = self.choose(written, layers)
        if layers:
            tokens = kept.tokens_of(written)
            self._judged += [judge(layer, tokens[min(i, len(tokens) - 1)]) for i, layer in enumerate(layers)]
        return kept

    @abstractmethod
    def choose(self, written: Written, layers: Sequence[LayerCache]) -> Kept:
        """What stays: about `num_kept(written)` tokens."""

    def results(self) -> Mapping[str, Any]:
        if not self._judged:
            return {}
        mass, error = np.mean(self._judged, axis=0).tolist()
        return {"kept_attention_mass": mass, "compression_output_error": error}


class Scored(Budgeted):
    """The easy base class: `score` says how much each token is worth to each head; the best stay."""

    @abstractmethod
    def score(self, layer: LayerCache) -> Tensor:
        """(K, n); the highest stay."""

    def choose(self, written: Written, layers: Sequence[LayerCache]) -> Kept:
        count = self.num_kept(written)
        best = [self.score(layer).topk(count, -1).indices.sort(-1).values for layer in layers]
        return Kept(tokens=np.stack([one.cpu().numpy() for one in best]))


class ScoredBlocks(Budgeted):
    """The same for whole blocks, which all heads and layers keep or lose together: nothing is moved.

    The last block, which may not be full, stays. As many blocks are dropped as leave no fewer tokens than the budget.

    Attributes:
        each_layer: whether each layer keeps blocks of its own. They are then moved together.
    """

    each_layer: bool = False

    @abstractmethod
    def score(self, layer: LayerCache) -> Tensor:
        """(n,); of a block the mean over its tokens, and of these that over the layers that keep the same, decides."""

    def protected(self, num_blocks: int, written: Written) -> npt.NDArray[np.int64]:
        """(num_blocks,) how much more than any score a block is worth by its place: 0 of most."""
        return np.zeros(num_blocks, dtype=np.int64)

    def choose(self, written: Written, layers: Sequence[LayerCache]) -> Kept:
        size, stored = written.block_size, written.stored
        count = -(-stored // size)
        drop = min((stored - self.num_kept(written)) // size, count - 1)
        scores = np.stack([self.score(layer).double().cpu().numpy() for layer in layers])[:, : (count - 1) * size]
        worth = scores.reshape(len(layers), count - 1, size).mean(2)
        places = self.protected(count, written)[:-1]
        kept = [
            Kept(blocks=[*np.sort(np.lexsort((one, places))[drop:]).tolist(), count - 1])  # least first
            for one in (worth if self.each_layer else [worth.mean(0)])
        ]
        return Kept(tokens=np.concatenate([one.tokens_of(written) for one in kept])) if self.each_layer else kept[0]


def attention(layer: LayerCache, queries: Tensor, positions: Tensor) -> Tensor:
    """(K, G, w, n): what these queries (w, H, D) at (w,) attend to, each token by its position."""
    import torch

    heads, _, dim = layer.keys.shape
    grouped = queries.transpose(0, 1).reshape(heads, -1, len(queries), dim)
    scores = grouped @ layer.keys[:, None].transpose(-1, -2) * layer.scale
    unseen = layer.positions[:, None, None] > positions[:, None]
    return scores.masked_fill(unseen, -torch.inf).softmax(-1, dtype=torch.float32)


def judge(layer: LayerCache, tokens: npt.NDArray[np.int64]) -> tuple[float, float]:
    """The attention that tokens (K or 1, m), -1 for none, keep, and the error of the output: see `Budgeted.metrics`."""
    import torch

    weights = attention(layer, layer.queries[-JUDGED:], layer.query_positions[-JUDGED:])
    heads, length, _ = layer.keys.shape
    kept = np.zeros((heads, length + 1), dtype=bool)
    np.put_along_axis(kept, np.broadcast_to(tokens, (heads, tokens.shape[1])), True, 1)
    stays = torch.from_numpy(kept[:, :length]).to(layer.keys.device)
    left = weights * stays[:, None, None]
    mass = left.sum(-1, keepdim=True)
    values = layer.values[:, None].float()
    gap = (left / mass.clamp_min(1e-30)) @ values - weights @ values
    return float(mass.mean()), float(gap.abs().max() / values.abs().max())
