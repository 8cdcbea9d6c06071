"""What rank 0 and the others say: calls of its executor, in order, as arrays of words, and their collectives."""

# Shapes: B rows of a step  S sampled rows  T packed tokens
# Shapes: R rows  V vocabulary

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from framework.engine.executors.base import Step
from framework.engine.rows import IntArray, Rows
from framework.errors import RankError
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


dist: Any = torch.distributed  # its types leave out what is made in C++

_FIRST = 2048
"""Words (8 bytes) in the first broadcast of a message: a decode step of 64 rows fits, and takes no second."""

_FOREVER = timedelta(days=365)


class Group:
    """NCCL for tensors on CUDA devices, gloo on this machine's loopback for everything else.

    The process groups are made directly, not as torch's default one: a process may belong to several, and to one of its
    own besides (vLLM's stateless groups do likewise). Every rank must make the same calls in the same order.

    Args:
        path: of a file that all ranks, and nobody else, can write: where they find each other.
        timeout_s: seconds after which a call that some rank does not join fails.
        explain: turns what a failed call raised into the error to raise.

    Raises:
        RankError: not all ranks came within the timeout.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        path: str,
        device: str,
        timeout_s: float,
        explain: Callable[[Exception], Exception] | None = None,
    ) -> None:
        self.rank, self.size = rank, size
        self._explain = explain or _consequence
        timeout = timedelta(seconds=min(timeout_s, _FOREVER.total_seconds()))
        with self._explained():
            store = dist.FileStore(path, size)
            store.set_timeout(timeout)
            options = dist.ProcessGroupGloo._Options()
            options._timeout, options._threads = timeout, 1
            options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
            self._control = dist.ProcessGroupGloo(dist.PrefixStore("control", store), rank, size, options)
            self._data = self._control if device == "cpu" else _nccl(store, rank, size, timeout)

    def sum(self, x: Tensor) -> Tensor:
        """The sum of every rank's `x`, in place and returned: the same bits on every rank."""
        with self._explained():
            self._data.allreduce([x]).wait()
        return x

    def gather(self, x: Tensor, widths: list[int]) -> Tensor:
        """x (R, widths[rank]) of every rank side by side on rank 0; its own on the others."""
        sent = F.pad(x, (0, max(widths) - x.shape[1])).contiguous()
        options = dist.GatherOptions()
        options.rootRank = 0
        parts = [torch.empty_like(sent) for _ in widths] if self.rank == 0 else []
        with self._explained():
            self._data.gather([parts] if parts else [], [sent], options).wait()
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], 1) if parts else x

    def send(self, words: Words) -> None:
        """Rank 0 tells every other rank these words, (n,) int64."""
        first = np.zeros(_FIRST, dtype=np.int64)
        first[0] = len(words)
        first[1 : 1 + len(words)] = words[: _FIRST - 1]
        self._broadcast(torch.from_numpy(first))
        if len(words) >= _FIRST:
            self._broadcast(torch.from_numpy(np.ascontiguousarray(words[_FIRST - 1 :])))

    def receive(self) -> Words:
        """The next message of rank 0, for which the others wait as long as it takes."""
        first = np.empty(_FIRST, dtype=np.int64)
        self._broadcast(torch.from_numpy(first), _FOREVER)
        count = int(first[0])
        if count < _FIRST:
            return first[1 : 1 + count]
        rest = np.empty(count - _FIRST + 1, dtype=np.int64)
        self._broadcast(torch.from_numpy(rest))
        return np.concatenate((first[1:], rest))

    def abort(self) -> None:
        """Make the collectives that run on a device fail: nothing else wakes one that waits for a dead rank."""
        if self._data is not self._control:
            self._data.abort()

    def _broadcast(self, tensor: Tensor, timeout: timedelta | None = None) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        if timeout is not None:
            options.timeout = timeout
        with self._explained():
            self._control.broadcast([tensor], options).wait()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise self._explain(error) from error


def _nccl(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(dist.PrefixStore("data", store), rank, size, options)


def _consequence(error: Exception) -> Exception:
    return RankError(f"a collective failed: {' '.join(str(error).split())}")
