"""The interface of all executors, and the step that they are given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from framework.engine.rows import IntArray, Rows
from framework.interfaces.compression import LayerCache
from framework.types import BlockCopy

if TYPE_CHECKING:
    from torch import Tensor

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Step:
    """One step's work: B rows, decode rows first.

    Attributes:
        number: counts steps from 1.
        rows: (B,) row of each.
        num_new: (B,) tokens to compute, at least 1.
        computed: (B,) tokens whose KV was written before this step.
        num_decodes: leading rows with one new token.
        sampled: (S,) positions in `rows` whose last token's logits are needed.
    """

    number: int
    rows: IntArray
    num_new: IntArray
    computed: IntArray
    num_decodes: int
    sampled: IntArray

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return int(self.num_new.sum())

    @property
    def packed(self) -> tuple[IntArray, IntArray]:
        """Row and position (T,) of each token that the step computes, packed row by row."""
        ends = np.cumsum(self.num_new)
        position = np.arange(int(ends[-1])) + np.repeat(self.computed - (ends - self.num_new), self.num_new)
        return np.repeat(self.rows, self.num_new), position


def work_of(num_new: IntArray, computed: IntArray) -> dict[str, int]:
    """A step's rows, the tokens it computes, those whose K and V were there before, and attention's (query, key) pairs.

    Args:
        num_new: (B,) tokens to compute, of each row.
        computed: (B,) tokens of each row that were computed before.
    """
    return {
        "rows": len(num_new),
        "new_tokens": int(num_new.sum()),
        "context_tokens": int(computed.sum()),
        "pairs": int((num_new * computed + num_new * (num_new + 1) // 2).sum()),
    }


class Executor(ABC):
    """Does a step's work. Tables and copies are sent to it as they change; it never sees the allocator.

    What has a default is for executors with a pool, or with more to say.
    """

    def begin_step(self, number: int) -> None:  # noqa: B027
        """Step `number` begins, counted from 1; what is set, copied and computed from here on belongs to it."""

    def set_table(self, row: int, start: int, ids: npt.NDArray[np.int32], group: int = 0) -> None:  # noqa: B027
        """From logical index `start` on, `row`'s block table in this group of KV is `ids`."""

    def clear_table(self, row: int) -> None:  # noqa: B027
        """`row` holds no table any more, in any group."""

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:  # noqa: B027
        """Copy these blocks in every layer, in order, before any later write."""

    def fresh(self, ids: npt.NDArray[np.int32], group: int = 0) -> None:  # noqa: B027
        """What these blocks of a group of KV hold is nobody's: they were just handed out, or nothing of their row was
        written to them yet. A debugging executor poisons them."""

    def listen(self, listener: Callable[[int, Tensor], Any]) -> None:  # noqa: B027
        """Tell `listener` the queries (T, H, D) of each step in each layer with a KV pool, by its number there, before
        attention. An executor without a model tells nobody."""

    def read(
        self, row: int, positions: npt.NDArray[np.int64], queries: Sequence[Sequence[Tensor]], computed: int
    ) -> Sequence[LayerCache]:
        """What each layer keeps in the first n slots of the row's table; empty: nothing is kept.

        Args:
            positions: (L or 1, K or 1, n) int64, of the tokens; PAST: none.
            queries: of each layer, (w, H, D) in parts: of the last of the `computed` tokens.
        """
        return ()

    def compact(  # noqa: B027
        self,
        row: int,
        source: npt.NDArray[np.int32],
        destination: npt.NDArray[np.int32],
        tokens: npt.NDArray[np.int64],
        start: int,
    ) -> None:
        """Move tokens together: slot i of table `destination`, from `start` on, gets what slot `tokens[..., i]` of
        table `source` has, for each layer and head of (L or 1, K or 1, m) int64. Blocks may be in both tables.

        Args:
            tokens: -1, which only an executor with a table for each head is given: none.
        """

    def fork_heads(self, parent: int, child: int) -> None:  # noqa: B027
        """Row `child` shares the blocks of row `parent`: its heads have the same numbers of tokens."""

    @abstractmethod
    def forward(self, step: Step, rows: Rows) -> None:
        """Compute the step's tokens and keep the logits of `step.sampled`."""

    @abstractmethod
    def sample(self, indices: IntArray, streams: IntArray, step: Step, rows: Rows) -> tuple[IntArray, BoolArray]:
        """Next tokens (K,), and which rows' logits were not finite (K,). `indices` (K,) are into `step.sampled`."""

    @abstractmethod
    def logprobs(self, indices: IntArray, tokens: IntArray, k: int) -> tuple[FloatArray, IntArray, FloatArray]:
        """Log-probabilities (K,) of `tokens`, and the k likeliest: ids (K, k) and log-probabilities (K, k)."""

    @abstractmethod
    def now(self) -> float:
        """The clock, seconds."""

    @abstractmethod
    def wait_until(self, when: float) -> None:
        """Let the clock pass to `when`: sleep, or jump."""

    @abstractmethod
    def restart_clock(self) -> None:
        """The clock starts again at 0: what came before is no part of a run."""

    @abstractmethod
    def reset(self) -> None:
        """Forget all tables and all that belongs to requests, whatever an interrupted step left behind.

        Raises:
            FrameworkError: it cannot go on at all.
        """

    def summary(self) -> dict[str, Any]:
        """How steps were run, for a run's result; may be empty."""
        return {}
