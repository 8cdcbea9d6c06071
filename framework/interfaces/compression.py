"""The extension point for compression: which tokens of a request stay in the pool after they were written."""

# Shapes: L layers  K kv heads  H query heads  D head dim  n tokens in the pool  m tokens that stay  w queries

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from framework.types import RequestInfo

if TYPE_CHECKING:
    from torch import Tensor

    from framework.results.metric import Metric

__all__ = ["PAST", "Compression", "Kept", "LayerCache", "Written"]

PAST: int = np.iinfo(np.int64).max
"""The position of what fills up a head that keeps fewer tokens than another: behind every query, so nobody sees it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCache:
    """What one layer keeps of one request. Tensors are copies.

    Attributes:
        keys, values: (K, n, D), keys rotated. Of a latent cache its rows (1, n, D), which all query heads read, and
            of each its latent (1, n, V).
        positions: (K, n) int64, each token's place in its request; rising within a head. Behind the tokens of a head
            that has fewer than another, which only `Compression.by_head` brings about: PAST, with keys and values of 0.
        queries: (w, H, D), rotated: the last that the request computed, as many as `Compression.num_queries` asks for.
        query_positions: (w,) int64.
        scale: of the scores.
        rotary: positions (n,) -> cos and signed sin (n, 1, R): rotated = x * cos + x's halves swapped * sin.
        turned: the R elements of D that are rotated.
    """

    keys: Tensor
    values: Tensor
    positions: Tensor
    queries: Tensor
    query_positions: Tensor
    scale: float
    rotary: Callable[[Tensor], tuple[Tensor, Tensor]]
    turned: slice = field(default_factory=lambda: slice(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One running request between two steps.

    Attributes:
        info: who sent it, and how long its prompt is.
        computed: tokens of it that were computed.
        stored: of those, tokens that are in the pool: `computed` less what was dropped; where heads kept different
            numbers, as many as their mean, rounded up to whole blocks and what the last one has.
        block_size: tokens.
        compressed_at: `computed` when tokens were last dropped; None: never.
        layers: reads what each layer keeps; empty in a replay.
    """

    info: RequestInfo
    computed: int
    stored: int
    block_size: int
    compressed_at: int | None
    layers: Callable[[], Sequence[LayerCache]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What stays of a request: tokens, or whole blocks.

    Attributes:
        tokens: (L or 1, K or 1, m) int64, rising: the tokens of each head of each layer, as indexes 0 to n - 1 of what
            it has in the pool. They are moved together, so that all blocks but the first ceil(m / block_size) are
            given back. Each head keeps as many, as all heads and layers have one table; with `Compression.by_head` a
            head may keep fewer, by whole blocks, and has -1 behind them: given back is what the heads of the fullest
            layer spare together.
        blocks: rising logical indexes of the blocks that stay, in all layers. Nothing is moved. The last block, which
            is written to, must be among them unless it is full.
    """

    tokens: npt.NDArray[np.int64] | None = None
    blocks: Sequence[int] = field(default=())

    def tokens_of(self, written: Written) -> npt.NDArray[np.int64]:
        """The tokens (L or 1, K or 1, m) that stay, in whatever way they were named."""
        if self.tokens is not None:
            return self.tokens
        size = written.block_size
        tokens = (np.array([*self.blocks], dtype=np.int64)[:, None] * size + np.arange(size)).ravel()
        return tokens[tokens < written.stored][None, None]


class Compression:
    """Nothing is dropped: the default.

    The base class of what does, chosen by `compression=NAME`; constructor keywords are its options. It is asked after
    each step about each request that was in it, and changes nothing itself.

    Attributes:
        num_queries: last queries of each request that `keep` wants to see; None: all since it was admitted.
        reads_cache: whether `keep` reads keys, values or queries, which a replay does not have.
        metrics: what `results` may give, declared.
        by_head: whether heads may keep different numbers of tokens. Each head of each layer then has a block table of
            its own, and to the backend is a row of one KV head.
    """

    num_queries: int | None = 0
    reads_cache: bool = True
    metrics: ClassVar[Sequence[Metric]] = ()
    by_head: bool = False

    def step_end(self, request: RequestInfo, start: int, end: int) -> int:
        """Where the step ends that could compute the request's tokens from `start` up to `end`: above `start`."""
        return end

    def due(self, written: Written) -> bool:
        """Whether `keep` is to be asked about this request now."""
        return False

    def keep(self, written: Written) -> Kept | None:
        """What stays of this request; None: all."""
        return None

    def results(self) -> Mapping[str, Any]:
        """What `result.json` says of what was dropped, beside what the engine counts. Asked at the end."""
        return {}
