"""Warm-up: steps of every kind before the first request, so that serving compiles and allocates nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from framework.config.sections import EngineOptions
from framework.engine.executors.base import Executor, Step
from framework.engine.graphs import bucket_sizes
from framework.engine.rows import Rows
from framework.engine.sizes import Sizes
from framework.types import BlockCopy, BlockId

Row = tuple[int, int]
"""(new tokens, tokens computed before)."""


def warm_up(executor: Executor, rows: Rows, sizes: Sizes, options: EngineOptions) -> float:
    """Compute a step of each kind, draw from each, and copy blocks; returns the seconds it took.

    Kernels and captured programs depend on how many rows decode, on whether their contexts are short or long, and on
    whether prompts are among them; on nothing else that requests bring. Only while nothing runs, over a pool whose
    blocks nobody uses: they are written to. Counts and clock begin anew afterwards.

    Args:
        rows: of the engine, none in use.
    """
    start, every = time.perf_counter(), np.arange(sizes.blocks_of(sizes.longest), dtype=np.int32)
    # As many of each group as there are, over and over: what is read does not matter.
    blocks, *further = (every % (one.num_blocks if one else len(every)) + 1 for one in sizes.groups or (None,))
    for kind in kinds_of_steps(sizes.longest, options):
        _compute(executor, rows, kind, (blocks, *further), sizes)
    if len(blocks) >= 3:
        chain = [BlockCopy(BlockId(a), BlockId(b)) for a, b in ((1, 2), (2, 3))]
        for copies in (chain[:1], [chain[0], BlockCopy(BlockId(1), BlockId(3))], chain):
            executor.copy_blocks(copies)
    executor.fresh(blocks)
    executor.restart_clock()
    return time.perf_counter() - start


def kinds_of_steps(longest: int, options: EngineOptions) -> Iterator[list[Row]]:
    """The rows of each step: largest first, so that what grows with a step grows once.

    One prompt of as many tokens as a step takes; then, over a short and over the longest context, decode rows of the
    sizes that graphs are captured at, a long and a short chunk, and chunks beside decode rows.

    Args:
        longest: tokens of context that one row can have.
    """
    max_tokens, max_rows = options.max_batch_tokens, options.max_batch_requests
    most = min(max_tokens, options.chunk_size or max_tokens, longest)
    yield [(most, 0)]
    full, left = min(max_tokens // most, max_rows), max_tokens % most
    if full > 1:
        yield [(most, 0)] * full + ([(left, 0)] if left and full < max_rows else [])
    for context in dict.fromkeys((longest, min(longest, 2))):
        for count in reversed(bucket_sizes(min(max_rows, max_tokens))):
            yield [(1, context - 1)] * count
        for chunk in dict.fromkeys((min(most, context), min(2, most, context))):
            prompt = (chunk, context - chunk)
            yield [prompt]
            if chunk > 1 and max_rows > 2 and max_tokens > chunk + 1:
                yield [(1, context - 1), prompt, *([prompt] if max_tokens > 2 * chunk else [])]


def _compute(
    executor: Executor, rows: Rows, kind: Sequence[Row], blocks: Sequence[npt.NDArray[np.int32]], sizes: Sizes
) -> None:
    """One step of these rows, whose tables name the same blocks of a group, and a draw of each way from its logits."""
    count = len(kind)
    new, computed = (np.array(column, dtype=np.int64) for column in zip(*kind, strict=True))
    for row, length in enumerate((new + computed).tolist()):
        for group, ids in enumerate(blocks):
            tokens = sizes.groups[group].group.block_tokens if sizes.groups else sizes.spec.block_size
            executor.set_table(row, 0, ids[: -(-length // tokens)], group)
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
