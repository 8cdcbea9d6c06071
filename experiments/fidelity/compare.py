"""One stream through an engine and through the replay, and what differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.fidelity import our_side
from experiments.fidelity.streams import Outcome, Talk
from experiments.live.server import policy_config
from framework.interfaces.hash import HashScheme


def in_vllm(talks: Sequence[Talk], eviction: Any, *, waiting: int = 64, **limits: Any) -> Outcome:
    """Through vLLM's scheduler; its own queue where `eviction` is None.

    Raises:
        RuntimeError: the policy failed, or blocks leaked.
    """
    from experiments.fidelity import vllm_side

    scheduler = vllm_side.scheduler_of(
        **limits, transfer=None if eviction is None else policy_config(eviction, "steps")
    )
    outcome = vllm_side.run(talks, scheduler, waiting=waiting)
    watch = None if eviction is None else scheduler.connector.watch
    if watch is not None and watch.queue.failure is not None:
        raise RuntimeError(f"{eviction} failed in vLLM") from watch.queue.failure
    if getattr(scheduler.waiting, "failure", None) is not None:
        raise RuntimeError(f"{limits['scheduling']} failed in vLLM") from scheduler.waiting.failure
    if scheduler.kv_cache_manager.block_pool.get_num_free_blocks() != limits["num_blocks"]:
        raise RuntimeError("blocks leaked in vLLM")
    return outcome


def in_replay(
    talks: Sequence[Talk], eviction: Any, hash: HashScheme, *, watermark: float = 0.0, duplicates: str = "keep",
    waiting: int = 64, **limits: Any,
) -> Outcome:  # fmt: skip
    """Through the engine of mode=replay, which keeps duplicates, as vLLM does, or merges them."""
    allocator = {"name": "prefix", "watermark": watermark, "duplicates": duplicates}
    settings = our_side.Settings(allocator=allocator, eviction=eviction, hash=hash, **limits)
    return our_side.run(talks, settings, waiting=waiting)


def differences(theirs: Outcome, ours: Outcome) -> dict[str, Any]:
    """Counts of each side's, and how much is not the same: all 0 where the replay is the engine."""
    return {
        "hit_tokens": sum(theirs.hits.values()),
        "evictions": len(theirs.evicted),
        "num_steps": len(theirs.steps),
        "preemptions": theirs.num_preemptions,
        "requests_that_hit_differently": sum(theirs.hits[i] != ours.hits.get(i) for i in theirs.hits),
        "steps_that_differ": unequal(theirs.steps, ours.steps),
        "evictions_that_differ": unequal(theirs.evicted, ours.evicted),
        "preemptions_that_differ": abs(theirs.num_preemptions - ours.num_preemptions),
        "hit_tokens_here": sum(ours.hits.values()),
    }


def unequal(theirs: Sequence[Any], ours: Sequence[Any]) -> int:
    """Places at which two sequences differ, those that only one of them has included."""
    shared = sum(a != b for a, b in zip(theirs, ours, strict=False))
    return shared + abs(len(theirs) - len(ours))
