"""The extension point for compression: which tokens of a request stay in the pool after they were written."""

# Shapes: K kv heads  H query heads  D head dim  n tokens in the pool  w queries

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from framework.interfaces.allocator import Allocator
from framework.interfaces.attention import AttentionSpec
from framework.interfaces.backend import AttentionBackend
from framework.interfaces.below import Below

if TYPE_CHECKING:
    from torch import Tensor

    from framework.engine.request import Sequence as Row
    from framework.results.metric import Metric

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
class CompressedPool:
    """The pool whose requests are to lose tokens.

    Attributes:
        allocator: of its blocks, empty. below: what lies below it.
        windowed: of the first group, what a sliding window or chunk has passed is not read.
        num_groups: of KV, each with a table of its own. num_ranks: that share the model.
        captures: decode steps are captured. mode: of the run.
        backend, spec: of a model that is served; None in a replay, which has no keys to read.
    """

    allocator: Allocator
    below: Below
    windowed: bool = False
    num_groups: int = 1
    num_ranks: int = 1
    captures: bool = False
    mode: str = "serve"
    backend: AttentionBackend | None = None
    spec: AttentionSpec | None = None


class Compressor(ABC):
    """Drops tokens of what runs in one engine.

    Attributes:
        dropped_tokens, returned_blocks: so far.
    """

    dropped_tokens: int = 0
    returned_blocks: int = 0

    @abstractmethod
    def step_end(self, seq: Row, start: int, end: int) -> int:
        """Where the next step of `seq` ends, which could compute its tokens from `start` up to `end`: above `start`."""

    @abstractmethod
    def begin(self, rows: npt.NDArray[np.int64], num_new: npt.NDArray[np.int64]) -> None:
        """So many tokens `num_new` (B,) of these rows (B,), packed in this order, are about to be computed."""

    @abstractmethod
    def end(self) -> None:
        """The step was computed, and all that it filled is published: drop what is due."""

    @abstractmethod
    def forked(self, parent: Row, child: Row) -> None:
        """`child` shares what `parent` has left."""

    @abstractmethod
    def released(self, seq: Row) -> None:
        """`seq` leaves its row: where it comes back it is computed anew."""

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """What a run's result says of it."""


class Compression:
    """Nothing is dropped: the default.

    The base class of what does, chosen by `compression=NAME`; constructor keywords are its options.
    `framework_lossy.compression.TokenDropping` is the one to write a method with.

    Attributes:
        metrics: what `Compressor.summary` may give besides the framework's, declared.
        reads_cache: whether it reads keys, values or queries, which a replay does not have.
        by_head: whether each KV head of each layer has a block table of its own, as `executor` keeps it.
    """

    metrics: ClassVar[Sequence[Metric]] = ()
    reads_cache: bool = False
    by_head: bool = False

    def check(self, pool: CompressedPool) -> None:
        """Refuse a pool that it cannot be combined with.

        Raises:
            ConfigError: names all reasons.
        """

    def allocator(self) -> type[Any] | None:
        """The kind of GroupedAllocator that serves several groups in place of the usual one; None: that one."""
        return None

    def executor(self) -> type[Any] | None:
        """The kind of ModelExecutor that a model is served with in place of the usual one; None: that one."""
        return None

    def compressor(self, state: Any, life: Any) -> Compressor | None:
        """What drops tokens in an engine, when it begins and after each reset; None: nothing does.

        Args:
            state, life: the engine's EngineState and Lifecycle.
        """
        return None
