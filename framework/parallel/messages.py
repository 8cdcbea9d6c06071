"""Messages from rank 0 to the others: the calls of its executor, in order, as one array of int64 words."""

# Shapes: B rows of a step  S sampled rows  T packed tokens

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from framework.engine.executors.base import Step
from framework.engine.rows import IntArray, Rows
from framework.types import BlockCopy, BlockId

Words = npt.NDArray[np.int64]


class Op(IntEnum):
    """The first word of each order."""

    SET_TABLE = 1
    CLEAR_TABLE = 2
    COPY_BLOCKS = 3
    FRESH = 4
    FORWARD = 5
    DENSE = 6
    CALL = 7
    STOP = 8
    RESET = 9


@dataclass(frozen=True, slots=True)
class Order:
    """One order, decoded. Which fields mean something depends on `op`.

    Attributes:
        numbers: SET_TABLE: row and start; CLEAR_TABLE: row.
        ids: block ids of SET_TABLE and FRESH; the tokens (T,) of FORWARD and DENSE.
        copies: of COPY_BLOCKS.
        step: of FORWARD.
    """

    op: Op
    numbers: tuple[int, ...] = ()
    ids: IntArray | None = None
    copies: tuple[BlockCopy, ...] = ()
    step: Step | None = None


class Outbox:
    """Orders that wait to be sent together with the next that cannot wait."""

    def __init__(self) -> None:
        self._parts: list[Words] = []

    def set_table(self, row: int, start: int, ids: npt.NDArray[np.int32]) -> None:
        """See Executor.set_table."""
        self._add(Op.SET_TABLE, (row, start), ids)

    def clear_table(self, row: int) -> None:
        """See Executor.clear_table."""
        self._add(Op.CLEAR_TABLE, (row,))

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """See Executor.copy_blocks."""
        self._add(Op.COPY_BLOCKS, (), [block for copy in copies for block in (copy.source, copy.destination)])

    def fresh(self, ids: npt.NDArray[np.int32]) -> None:
        """See Executor.fresh."""
        self._add(Op.FRESH, (), ids)

    def forward(self, step: Step, rows: Rows) -> None:
        """See Executor.forward: the step and the tokens it computes."""
        self._add(Op.FORWARD, (step.number, step.num_decodes), step.rows, step.num_new, step.computed, step.sampled)
        self._parts.append(rows.tokens[packed(step)].astype(np.int64))

    def dense(self, tokens: npt.ArrayLike) -> None:
        """A pass over one sequence's tokens (T,) without any cache."""
        self._add(Op.DENSE, (), tokens)

    def reset(self) -> None:
        """See Executor.reset."""
        self._add(Op.RESET, ())

    def call(self) -> None:
        """The rest comes through each rank's pipe."""
        self._add(Op.CALL, ())

    def stop(self) -> None:
        """There is nothing more to do."""
        self._add(Op.STOP, ())

    def take(self) -> Words:
        """All orders since the last time."""
        parts, self._parts = self._parts, []
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def _add(self, op: Op, numbers: tuple[int, ...], *arrays: npt.ArrayLike) -> None:
        """The order, its numbers, and each array with its length in front."""
        self._parts.append(np.array([op, *numbers], dtype=np.int64))
        for array in arrays:
            values = np.asarray(array, dtype=np.int64)
            self._parts += [np.array([len(values)], dtype=np.int64), values]


def packed(step: Step) -> tuple[IntArray, IntArray]:
    """Row and position (T,) of each token that `step` computes, packed row by row."""
    ends = np.cumsum(step.num_new)
    position = np.arange(int(ends[-1])) + np.repeat(step.computed - (ends - step.num_new), step.num_new)
    return np.repeat(step.rows, step.num_new), position


def orders(words: Words) -> Iterator[Order]:
    """The orders of one message, in order."""
    reader = _Reader(words)
    while reader.at < len(words):
        op = Op(reader.number())
        if op is Op.SET_TABLE:
            yield Order(op, (reader.number(), reader.number()), reader.array())
        elif op is Op.CLEAR_TABLE:
            yield Order(op, (reader.number(),))
        elif op is Op.COPY_BLOCKS:
            pairs = reader.array().reshape(-1, 2).tolist()
            yield Order(op, copies=tuple(BlockCopy(BlockId(a), BlockId(b)) for a, b in pairs))
        elif op is Op.FORWARD:
            step = _step(reader)
            yield Order(op, ids=reader.take(step.num_tokens), step=step)
        elif op in (Op.FRESH, Op.DENSE):
            yield Order(op, ids=reader.array())
        else:
            yield Order(op)


def _step(reader: _Reader) -> Step:
    number, num_decodes = reader.number(), reader.number()
    rows, num_new, computed, sampled = (reader.array() for _ in range(4))
    return Step(number, rows, num_new, computed, num_decodes, sampled)


class _Reader:
    """A place in a message."""

    def __init__(self, words: Words) -> None:
        self.words, self.at = words, 0

    def number(self) -> int:
        self.at += 1
        return int(self.words[self.at - 1])

    def array(self) -> IntArray:
        return self.take(self.number())

    def take(self, count: int) -> IntArray:
        self.at += count
        return self.words[self.at - count : self.at]
