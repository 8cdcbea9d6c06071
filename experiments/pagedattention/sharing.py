"""Blocks that samples and beams of one prompt save by sharing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from framework.config.sections import EngineOptions
from framework.engine.engine import Engine, ModelLimits
from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.registry.components import build_allocator
from framework.sampling import Sampling

MAX_LEN = 8192
ROWS = 60


@dataclass(frozen=True, slots=True)
class Usage:
    """Blocks in use summed over all steps, and what shows that two runs did the same work."""

    block_steps: int
    num_steps: int
    output_tokens: int
    forks: int
    copied_blocks: int


def usage(lengths: Sequence[tuple[int, int]], width: int, *, beam: bool, allocator: str, block_size: int = 16) -> Usage:
    """Run prompts of these (prompt, output) lengths, `width` samples or beams each, in a pool that is never full.

    So every allocator sees the same schedule, step by step, and only what its tables share differs. Prompts have
    nothing in common. Which beams live on comes from the replay executor's seeded candidates.
    """
    pool = ROWS * -(-MAX_LEN // block_size) + ROWS
    manager = build_allocator(allocator, "lru", "xxh64", num_blocks=pool, block_size=block_size, max_model_len=MAX_LEN)
    engine = Engine(
        manager,
        ReplayExecutor(constant_step(1.0)),
        limits=ModelLimits(max_model_len=MAX_LEN),
        options=EngineOptions(max_batch_tokens=ROWS * MAX_LEN, max_batch_requests=ROWS),
    )
    for number, (prompt, output) in enumerate(lengths):
        how = {"beam_width": width} if beam else {"n": width, "temperature": 1.0}
        sampling = Sampling(max_tokens=output, ignore_eos=True, **how)  # type: ignore[arg-type]
        engine.submit(np.full(prompt, number, dtype=np.int32), sampling, arrival_s=0.0)
    block_steps = 0
    while engine.num_unfinished:
        engine.step()
        block_steps += manager.stats().used_blocks
    engine.check()
    assert not engine.metrics.num_preemptions, "the pool was full; schedules differ"
    metrics = engine.metrics
    return Usage(
        block_steps,
        metrics.num_steps,
        metrics.num_output_tokens,
        metrics.num_forks,
        metrics.num_copied_blocks,
    )


def saving(without: Usage, with_sharing: Usage) -> float:
    """(blocks without sharing - blocks with) / blocks without, over all steps."""
    same = (without.num_steps, without.output_tokens, without.forks)
    assert same == (with_sharing.num_steps, with_sharing.output_tokens, with_sharing.forks), (without, with_sharing)
    return (without.block_steps - with_sharing.block_steps) / without.block_steps
