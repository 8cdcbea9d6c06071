"""Extra CPU time of a policy in vLLM's pool, per block, against vLLM's own queue: rounds of each in turn."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Sequence
from typing import Any

from experiments.fidelity import vllm_side
from experiments.fidelity.streams import Talk
from experiments.live.server import policy_config

BLOCK_SIZE, NUM_BLOCKS = 16, 10_000


def rows_of(talks: Sequence[Talk], policies: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """One row a policy: microseconds a block that was taken, hit or published, median and range of the rounds."""
    _cpu(talks[: len(talks) // 4], None)  # imports, caches
    extra: dict[str, list[float]] = {name: [] for name in policies}
    stock_us: list[float] = []
    for _ in range(rounds):
        seconds, blocks = _cpu(talks, None)
        stock_us.append(1e6 * seconds / blocks)
        for name in policies:
            with_policy, counted = _cpu(talks, name)
            extra[name].append(1e6 * (with_policy - seconds) / counted)
    return [
        {
            "policy": name,
            "extra_us_a_block": statistics.median(values),
            "least": min(values),
            "most": max(values),
            "vllm_us_a_block": statistics.median(stock_us),
            "blocks": blocks,
            "rounds": rounds,
        }
        for name, values in extra.items()
    ]


def _cpu(talks: Sequence[Talk], eviction: str | None) -> tuple[float, int]:
    """CPU seconds of the scheduler's calls for this stream, and blocks that passed through the pool."""
    scheduler = vllm_side.scheduler_of(
        num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, max_batch_tokens=65_536, max_batch_requests=8,
        transfer=None if eviction is None else policy_config(eviction),
    )  # fmt: skip
    counts = {"taken": 0, "hit": 0}
    pool = scheduler.kv_cache_manager.block_pool
    take, touch = pool.get_new_blocks, pool.touch

    def taken(count: int) -> Any:
        counts["taken"] += count
        return take(count)

    def touched(blocks: Any) -> Any:
        counts["hit"] += len(blocks)
        return touch(blocks)

    pool.get_new_blocks, pool.touch = taken, touched
    gc.collect()
    gc.disable()
    try:
        start = time.process_time()
        vllm_side.run(talks, scheduler)
        seconds = time.process_time() - start
    finally:
        gc.enable()
    return seconds, counts["taken"] + counts["hit"]
