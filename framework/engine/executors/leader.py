"""The executor of a model over several ranks: rank 0's, which the others follow, and what they do."""

# Shapes: T packed tokens

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from framework.engine.executors.base import BoolArray, FloatArray, Step
from framework.engine.executors.model import ModelExecutor
from framework.engine.rows import IntArray, Rows
from framework.engine.served_pass import Gaps, served_pass
from framework.errors import RankError
from framework.interfaces.backend import AttentionSpec
from framework.model.ranks import Call, Ranks, Worker
from framework.types import BlockCopy

T = TypeVar("T")


class LeaderExecutor(ModelExecutor):
    """Over rank 0's part of the model and of the pool. Sends the calls of a step to the other ranks, in one message.

    Tokens are drawn here alone, from the logits of the whole vocabulary.
    """

    def __init__(self, ranks: Ranks, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.ranks = ranks
        self._calls: list[Call] = []
        ranks.leader = self

    def reset(self) -> None:
        """See Executor.

        Raises:
            RankError: the interrupted step left the other ranks in the middle of it, which ended them.
        """
        self.ranks.require_alive()
        self._calls = [(execute, ("reset",))]
        super().reset()

    def set_table(self, row: int, start: int, ids: npt.NDArray[np.int32], group: int = 0) -> None:
        self._calls.append((execute, ("set_table", row, start, ids.copy(), group)))
        super().set_table(row, start, ids, group)

    def clear_table(self, row: int) -> None:
        self._calls.append((execute, ("clear_table", row)))
        super().clear_table(row)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        self._calls.append((execute, ("copy_blocks", list(copies))))
        super().copy_blocks(copies)

    def fresh(self, ids: npt.NDArray[np.int32], group: int = 0) -> None:
        self._calls.append((execute, ("fresh", ids.copy(), group)))
        super().fresh(ids, group)

    def forward(self, step: Step, rows: Rows) -> None:
        """See Executor.

        Raises:
            RankError: another rank failed, or another LLM has taken the ranks over.
        """
        if self.ranks.leader is not self:
            raise RankError("another LLM was made over the same ranks, and their KV pool is now its own; load twice")
        calls, self._calls = self._calls, []
        with self.ranks.in_step():
            self.ranks.tell([*calls, (forward, (step, rows.tokens[step.packed]))])
            super().forward(step, rows)

    def sample(self, indices: IntArray, streams: IntArray, step: Step, rows: Rows) -> tuple[IntArray, BoolArray]:
        return self._drawn(super().sample(indices, streams, step, rows))

    def logprobs(self, indices: IntArray, tokens: IntArray, k: int) -> tuple[FloatArray, IntArray, FloatArray]:
        return self._drawn(super().logprobs(indices, tokens, k))

    def _drawn(self, drawn: T) -> T:
        """What was read of the device means nothing if a rank died meanwhile."""
        self.ranks.require_alive()
        return drawn


@dataclass(frozen=True, slots=True)
class Serving:
    """What serves another rank's part of the model."""

    executor: ModelExecutor
    spec: AttentionSpec
    rows: Rows


def execute(worker: Worker, name: str, *arguments: Any) -> None:
    """On another rank: a method of the executor."""
    getattr(worker.serving.executor, name)(*arguments)


def forward(worker: Worker, step: Step, tokens: IntArray) -> None:
    """On another rank: compute the step's tokens (T,), packed row by row."""
    rows = worker.serving.rows
    rows.tokens[step.packed] = tokens
    rows.length[step.rows] = step.computed + step.num_new
    worker.serving.executor.forward(step, rows)


def measure_gaps(worker: Worker, tokens: list[int], num_prompt: int) -> Gaps:
    """On another rank: what attention over its heads lost; see `served_pass`."""
    serving: Serving = worker.serving
    executor = serving.executor
    return served_pass(worker.decoder, executor.by_layer, serving.spec, executor.pool, tokens, num_prompt)[1]
