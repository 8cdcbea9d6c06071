"""An executor that keeps what a replay cannot compute again: the candidates of each beam search step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from framework.engine.executors.base import BoolArray, Executor, FloatArray, Step
from framework.engine.rows import IntArray, Rows
from framework.types import BlockCopy

Candidates = tuple[list[list[int]], list[list[float]]]


class RecordingExecutor:
    """Passes everything on to `inner`; `tops` has the candidates of each beam search step, by request number."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self.tops: dict[int, list[Candidates]] = {}
        self._step: Step | None = None
        self._rows: Rows | None = None

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
        """See Executor. What was kept stays: it belongs to requests by number."""
        self._step = self._rows = None
        self.inner.reset()

    def now(self) -> float:
        """See Executor."""
        return self.inner.now()

    def wait_until(self, when: float) -> None:
        """See Executor."""
        self.inner.wait_until(when)

    def set_table(self, row: int, start: int, ids: npt.NDArray[np.int32]) -> None:
        """See Executor."""
        self.inner.set_table(row, start, ids)

    def set_further(self, group: int, row: int, ids: npt.NDArray[np.int32], kept: int) -> None:
        """See Executor."""
        self.inner.set_further(group, row, ids, kept)

    def clear_table(self, row: int) -> None:
        """See Executor."""
        self.inner.clear_table(row)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """See Executor."""
        self.inner.copy_blocks(copies)

    def fresh(self, ids: npt.NDArray[np.int32]) -> None:
        """See Executor."""
        self.inner.fresh(ids)

    def forward(self, step: Step, rows: Rows) -> None:
        """See Executor."""
        self._step, self._rows = step, rows
        self.inner.forward(step, rows)

    def sample(self, at: IntArray, streams: IntArray, step: Step, rows: Rows) -> tuple[IntArray, BoolArray]:
        """See Executor."""
        return self.inner.sample(at, streams, step, rows)

    def logprobs(self, at: IntArray, tokens: IntArray, k: int) -> tuple[FloatArray, IntArray, FloatArray]:
        """See Executor."""
        found = self.inner.logprobs(at, tokens, k)
        assert self._step is not None
        assert self._rows is not None
        seq = self._rows.sequences[int(self._step.rows[self._step.sampled][at[0]])]
        if seq is not None and seq.request.group is not None:
            self.tops.setdefault(seq.request.number, []).append((found[1].tolist(), found[2].tolist()))
        return found
