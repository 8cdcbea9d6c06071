"""Warm-up: steps of every kind before the first request, so that serving compiles and allocates nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from framework.config.sections import EngineOptions
from framework.engine.executors.base import Executor, Step
from framework.engine.graphs import bucket_sizes
from framework.engine.rows import Rows
from framework.types import BlockCopy, BlockId


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds an engine's steps.

    Attributes:
        num_blocks, block_size: of the pool.
        max_len: longest sequence, tokens, within pool and tables.
        max_tokens, max_rows, chunk_size: tokens and rows a step, prompt tokens of a row a step.
    """

    num_blocks: int
    block_size: int
    max_len: int
    max_tokens: int
    max_rows: int
    chunk_size: int

    @classmethod
    def of(cls, options: EngineOptions, *, num_blocks: int, block_size: int, max_len: int) -> Limits:
        """Those of an engine with these options."""
        return cls(
            num_blocks=num_blocks,
            block_size=block_size,
            max_len=max_len,
            max_tokens=options.max_batch_tokens,
            max_rows=options.max_batch_requests,
            chunk_size=options.chunk_size or options.max_batch_tokens,
        )

    @property
    def longest(self) -> int:
        """Tokens of context that one row can have."""
        return min(self.max_len, self.num_blocks * self.block_size)


Row = tuple[int, int]
"""(new tokens, tokens computed before)."""


def warm_up(executor: Executor, rows: Rows, limits: Limits) -> tuple[int, float]:
    """Compute a step of each kind, draw from each, and copy blocks; returns the number of steps and the seconds.

    Kernels and captured programs depend on how many rows decode, on whether their contexts are short or long, and on
    whether prompts are among them; on nothing else that requests bring. Only while nothing runs, over a pool whose
    blocks nobody uses: they are written to. Counts and clock begin anew afterwards.

    Args:
        rows: of the engine, none in use.
    """
    start, blocks = time.perf_counter(), np.arange(1, -(-limits.longest // limits.block_size) + 1, dtype=np.int32)
    steps = list(kinds_of_steps(limits))
    for kind in steps:
        _compute(executor, rows, kind, blocks, limits.block_size)
    if len(blocks) >= 3:
        chain = [BlockCopy(BlockId(a), BlockId(b)) for a, b in ((1, 2), (2, 3))]
        for copies in (chain[:1], [chain[0], BlockCopy(BlockId(1), BlockId(3))], chain):
            executor.copy_blocks(copies)
    executor.fresh(blocks)
    executor.restart_clock()
    return len(steps), time.perf_counter() - start


def kinds_of_steps(limits: Limits) -> Iterator[list[Row]]:
    """The rows of each step: largest first, so that what grows with a step grows once.

    One prompt of as many tokens as a step takes; then, over a short and over the longest context, decode rows of the
    sizes that graphs are captured at, a long and a short chunk, and chunks beside decode rows.
    """
    most = min(limits.max_tokens, limits.chunk_size, limits.longest)
    yield [(most, 0)]
    full, left = min(limits.max_tokens // most, limits.max_rows), limits.max_tokens % most
    if full > 1:
        yield [(most, 0)] * full + ([(left, 0)] if left and full < limits.max_rows else [])
    for context in dict.fromkeys((limits.longest, min(limits.longest, 2))):
        for count in reversed(bucket_sizes(min(limits.max_rows, limits.max_tokens))):
            yield [(1, context - 1)] * count
        for chunk in dict.fromkeys((min(most, context), min(2, most, context))):
            prompt = (chunk, context - chunk)
            yield [prompt]
            if chunk > 1 and limits.max_rows > 2 and limits.max_tokens > chunk + 1:
                yield [(1, context - 1), prompt, *([prompt] if limits.max_tokens > 2 * chunk else [])]


def _compute(
    executor: Executor, rows: Rows, kind: Sequence[Row], blocks: npt.NDArray[np.int32], block_size: int
) -> None:
    """One step of these rows, whose tables all name the same blocks, and a draw of each way from its logits."""
    count = len(kind)
    new, computed = (np.array(column, dtype=np.int64) for column in zip(*kind, strict=True))
    for row, length in enumerate((new + computed).tolist()):
        executor.set_table(row, 0, blocks[: -(-length // block_size)])
        rows.tokens[row, :length] = 0
        rows.length[row], rows.computed[row] = length, computed[row]
    every = np.arange(count)
    step = Step(0, every, new, computed, int(np.count_nonzero(new == 1)), every)
    executor.begin_step(0)
    executor.forward(step, rows)
    streams = np.zeros(count, dtype=np.int64)
    for temperature, top_k, top_p in ((0.0, 0, 1.0), (1.0, 0, 1.0), (1.0, 5, 0.9)):
        rows.temperature[every], rows.top_k[every], rows.top_p[every] = temperature, top_k, top_p
        executor.sample(every, streams, step, rows)
    executor.logprobs(every[:1], streams[:1], 1)
    for row in range(count):
        executor.clear_table(row)
        rows.length[row] = rows.computed[row] = 0
