"""Rank 0's executor: does its own part of the work and sends the other ranks theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from framework.engine.executors.base import BoolArray, Executor, FloatArray, Step
from framework.engine.rows import IntArray, Rows
from framework.parallel.messages import Outbox
from framework.parallel.ranks import Ranks
from framework.types import BlockCopy

T = TypeVar("T")


class LeaderExecutor:
    """Passes every call on to `inner` and, with the next step, to the other ranks: one message a step.

    Tokens are drawn on rank 0 alone, which has the logits of the whole vocabulary. The clock is its own.

    Args:
        inner: over rank 0's part of the model and of the pool.
    """

    def __init__(self, inner: Executor, ranks: Ranks) -> None:
        self.inner, self.ranks = inner, ranks
        self._outbox = Outbox()
        self._turn = ranks.take_turn()

    def begin_step(self, number: int) -> None:
        """See Executor."""
        self.inner.begin_step(number)

    def restart_clock(self) -> None:
        """See Executor."""
        self.inner.restart_clock()

    def summary(self) -> dict[str, Any]:
        """See Executor."""
        return self.inner.summary()

    def reset(self) -> None:
        """See Executor.

        Raises:
            RankError: the interrupted step left the other ranks in the middle of it, which ended them.
        """
        self.ranks.require_turn(self._turn)
        self._outbox = Outbox()
        self._outbox.reset()
        self.inner.reset()

    def set_table(self, row: int, start: int, ids: npt.NDArray[np.int32]) -> None:
        """See Executor."""
        self._outbox.set_table(row, start, ids)
        self.inner.set_table(row, start, ids)

    def clear_table(self, row: int) -> None:
        """See Executor."""
        self._outbox.clear_table(row)
        self.inner.clear_table(row)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """See Executor."""
        self._outbox.copy_blocks(copies)
        self.inner.copy_blocks(copies)

    def fresh(self, ids: npt.NDArray[np.int32]) -> None:
        """See Executor."""
        self._outbox.fresh(ids)
        self.inner.fresh(ids)

    def forward(self, step: Step, rows: Rows) -> None:
        """See Executor.

        Raises:
            RankError: another rank failed, or another LLM has taken the ranks over.
        """
        self.ranks.require_turn(self._turn)
        self._outbox.forward(step, rows)
        with self.ranks.in_step():
            self.ranks.group.send(self._outbox.take())
            self.inner.forward(step, rows)

    def sample(self, at: IntArray, streams: IntArray, step: Step, rows: Rows) -> tuple[IntArray, BoolArray]:
        """See Executor."""
        return self._drawn(lambda: self.inner.sample(at, streams, step, rows))

    def logprobs(self, at: IntArray, tokens: IntArray, k: int) -> tuple[FloatArray, IntArray, FloatArray]:
        """See Executor."""
        return self._drawn(lambda: self.inner.logprobs(at, tokens, k))

    def now(self) -> float:
        """See Executor."""
        return self.inner.now()

    def wait_until(self, when: float) -> None:
        """See Executor."""
        self.inner.wait_until(when)

    def _drawn(self, draw: Callable[[], T]) -> T:
        """What `draw` reads of the device means nothing if a rank died meanwhile."""
        drawn = draw()
        self.ranks.require_alive()
        return drawn
