"""The same requests through vLLM's scheduler over several groups of KV and through the replay: what differs."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from experiments.fidelity import our_side
from experiments.fidelity.compare import differences as steps_that_differ
from experiments.fidelity.compare import unequal
from experiments.fidelity.streams import FIRST_OUTPUT, Talk
from experiments.shared import begun, finish, parser_of, table
from framework.groups.checkpoints import CheckpointRule, Retention
from framework.interfaces.allocator import CacheEvent
from framework.interfaces.groups import KVGroup
from framework.interfaces.workload import WorkloadRequest
from framework.paged.pool import PromptEnds
from framework.registry.components import Component
from framework_builtin.memory.one_pool import OnePool
from framework_cache_only.paths import RequestPaths, build_paths
from framework_engines.host_blocks import build_policy
from framework_engines.vllm_connector import lead
from framework_hybrid.replay import replay_groups
from framework_hybrid.rules import Dense
from framework_workloads.trace.own_format import as_trace


@dataclass
class Seen:
    """What one side did.

    Attributes:
        hits: tokens, by request. evicted: (group, content) in order.
        blocks: (request, tokens computed) -> blocks in use by group, after each step.
        junctions: (request, tokens) of each junction found.
    """

    hits: list[int] = field(default_factory=list)
    evicted: list[tuple[int, Any]] = field(default_factory=list)
    blocks: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    junctions: list[int] = field(default_factory=list)


def paths_of(talks: Sequence[Talk], unit: int) -> RequestPaths:
    """What each request computes, its last token left out, which nothing computes. Turns are those of the prompts."""
    ends = PromptEnds()

    def turn(request: Talk) -> int:
        return ends.turn_of([request.prompt[:end].tobytes() for end in range(unit, len(request.prompt) + 1, unit)])

    requests = (
        WorkloadRequest(
            prompt=np.concatenate([request.prompt, request.output[:-1]]), arrival_s=float(i), turn=turn(request)
        )
        for i, request in enumerate(talks)
    )
    return build_paths(as_trace(requests, unit), full_blocks_only=True)


def here(
    talks: Sequence[Talk], groups: Sequence[KVGroup], *, num_blocks: int, retention: int | None, chunk_tokens: int,
    eviction: Component = "lru",
) -> Seen:  # fmt: skip
    """The replay with one pool."""
    unit, seen = min(group.block_tokens for group in groups), Seen()
    paths = paths_of(talks, unit)
    memory = OnePool().open(
        groups, lambda blocks: build_policy(eviction, blocks, block_size=unit), parents=paths.parents.tolist(),
        unit=unit, num_bytes=num_blocks * max(group.block_bytes for group in groups),
    )  # fmt: skip

    def heard(event: CacheEvent) -> None:
        if event.kind == "evict":
            seen.evicted.extend((event.group, node) for node in event.hashes)

    memory.listener = heard
    rule: CheckpointRule = Dense() if retention is None else Retention(retention)

    def look(request: int, computed: int, tables: Sequence[Sequence[int]]) -> None:
        seen.blocks[request, computed] = [sum(block > 0 for block in table) for table in tables]

    counts = replay_groups(paths, memory, rule, prompt_tokens=[len(request.prompt) for request in talks],
                           chunk_tokens=chunk_tokens, num_samples=0, seen=look)  # fmt: skip
    seen.hits = counts.hits.tolist()
    seen.junctions = [hit + more if more else 0 for hit, more in zip(seen.hits, counts.junctions.tolist(), strict=True)]
    return seen


def in_vllm(
    talks: Sequence[Talk], groups: Sequence[KVGroup], *, num_blocks: int, retention: int | None, chunk_tokens: int,
    eviction: Component | None = None,
) -> Seen:  # fmt: skip
    """vLLM's scheduler, one request at a time; contents by the numbers that the replay has for them.

    Args:
        eviction: the policy that leads it; None: its own order.
    """
    from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id

    from experiments.fidelity import vllm_side

    unit, seen = min(group.block_tokens for group in groups), Seen()
    scheduler = vllm_side.scheduler_of(
        num_blocks=num_blocks, block_size=unit, groups=groups, retention=retention,
        max_batch_requests=1, max_batch_tokens=chunk_tokens,
    )  # fmt: skip
    nodes: dict[bytes, int] = {}
    for i, path in enumerate(paths_of(talks, unit).walk()):
        request = vllm_side.request_of(str(i), talks[i], unit)
        request.append_output_token_ids(talks[i].output.tolist())
        nodes.update(zip(map(bytes, request.block_hashes), path, strict=False))
    manager, latest = scheduler.kv_cache_manager, [0]
    watch = None if eviction is None else lead(manager, eviction, clock=lambda: float(latest[0]))
    pool, schedule = manager.block_pool, scheduler.schedule
    evict = pool._maybe_evict_cached_block

    def noted(block: Any) -> bool:
        name = block.block_hash
        gone: bool = evict(block)
        if gone:
            seen.evicted.append((get_group_id(name), nodes[bytes(get_block_hash(name))]))
        return gone

    def looked(*args: Any, **kwargs: Any) -> Any:
        latest[0] = int(next(iter(scheduler.requests)))
        output = schedule(*args, **kwargs)
        for name in output.num_scheduled_tokens:
            request = scheduler.requests[name]
            tables = manager.coordinator.get_blocks(name)
            seen.blocks[int(name), request.num_computed_tokens] = [
                sum(not block.is_null for block in table) for table in tables
            ]
            if int(name) == len(seen.junctions):
                seen.junctions.append(request.shared_prefix_boundary)
        return output

    pool._maybe_evict_cached_block, scheduler.schedule = noted, looked
    outcome = vllm_side.run(talks, scheduler)
    seen.hits = [outcome.hits[i] for i in range(len(talks))]
    if watch is not None and watch.queue.failure is not None:
        raise watch.queue.failure
    return seen


def _group(kind: Any, length: int = 0, *, block: int = 16, drop: bool = False, name: str = "") -> KVGroup:
    return KVGroup(name=name or kind, kind=kind, block_tokens=block, block_bytes=1, length=length, lookahead_drop=drop)


LAYOUTS: dict[str, tuple[KVGroup, ...]] = {
    "full, window": (_group("full"), _group("window", 40)),
    "full, two windows": (_group("full"), _group("window", 40, name="narrow"), _group("window", 100, name="wide")),
    "full, window of smaller blocks": (_group("full", block=32), _group("window", 40)),
    "full, state": (_group("full"), _group("state")),
    "full, window, state": (_group("full"), _group("window", 40), _group("state")),
    "full, chunk": (_group("full"), _group("chunk", 64)),
    "full, window, lookahead": (_group("full", drop=True), _group("window", 40, drop=True)),
}
# vLLM refuses a retention without windows or states. Under a lookahead, an interval that a window reaches over
# (64 here) makes it keep the first block of windows, too, which no hit needs; 128 does not.
SETTINGS: tuple[tuple[str, dict[str, Any]], ...] = tuple(
    (layout, {"retention": retention, "chunk_tokens": chunk})
    for layout in LAYOUTS
    for retention in ((None,) if layout == "full, chunk" else (None, 0, 128 if "lookahead" in layout else 64))
    for chunk in (8192, 96)
)
"""Layout -> its settings: dense, vLLM's default, an interval; prompts computed whole and in chunks."""

SEEDS = (3, 5, 8)
"""Of the made-up requests, for each setting."""


def branching_talks(count: int, seed: int) -> list[Talk]:
    """Made-up requests that go on from any place of earlier ones, answers included."""
    draw, talks, known = random.Random(seed), list[Talk](), list[list[int]]()
    for number in range(count):
        base = (
            draw.choice(known[-12:]) if known and draw.random() < 0.8 else [draw.randrange(9)] * draw.randrange(1, 90)
        )
        if draw.random() < 0.6:
            base = base[: draw.randrange(1, len(base) + 1)]
        prompt = (base + [10_000 + number] * draw.choice((1, 7, 16, 19, 70)))[:600]
        output = [FIRST_OUTPUT + 1000 * number + offset for offset in range(draw.randrange(1, 50))]
        talks.append(Talk(np.array(prompt, dtype=np.int32), np.array(output, dtype=np.int32)))
        known.append(prompt + output)
    return talks


def differences(
    layout: str,
    *,
    seed: int = 3,
    num_requests: int = 250,
    num_blocks: int = 150,
    eviction: Component | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """What vLLM did on a made-up stream, in its own order or led by a policy, and what the replay did otherwise."""
    talks, groups = branching_talks(num_requests, seed), LAYOUTS[layout]
    theirs = in_vllm(talks, groups, num_blocks=num_blocks, eviction=eviction, **settings)
    ours = here(talks, groups, num_blocks=num_blocks, eviction=eviction or "lru", **settings)
    return {
        "groups": layout,
        **settings,
        "seed": seed,
        "hit_tokens": sum(theirs.hits),
        "evictions": len(theirs.evicted),
        "junctions": sum(junction > 0 for junction in theirs.junctions),
        "requests_that_hit_differently": unequal(theirs.hits, ours.hits),
        "evictions_that_differ": unequal(theirs.evicted, ours.evicted),
        "tables_that_differ": sum(theirs.blocks.get(step) != count for step, count in ours.blocks.items()),
        "junctions_that_differ": unequal(theirs.junctions, ours.junctions),
    }


IN_FLIGHT: tuple[dict[str, int], ...] = (
    {"num_blocks": 160, "max_batch_requests": 6, "max_batch_tokens": 256},
    {"num_blocks": 110, "max_batch_requests": 8, "max_batch_tokens": 96},
)
"""Requests that overlap; in the smaller pool some are preempted."""


def in_flight(
    layout: str, *, retention: int | None, seed: int = 5, num_requests: int = 200, **limits: Any
) -> dict[str, Any]:
    """The same of requests that overlap: vLLM's scheduler and the full replay, step by step."""
    from experiments.fidelity import vllm_side

    talks, groups = branching_talks(num_requests, seed), LAYOUTS[layout]
    theirs = vllm_side.run(talks, vllm_side.scheduler_of(groups=groups, retention=retention, **limits))
    rule: CheckpointRule = Dense() if retention is None else Retention(retention)
    settings = our_side.Settings(**limits, hash=vllm_side.hash_scheme(), groups=groups, rule=rule)
    found = steps_that_differ(theirs, our_side.run(talks, settings))
    return {"groups": layout, "retention": retention, **limits, "seed": seed, **found}


def main(arguments: Sequence[str] | None = None) -> int:
    """Both tables; vLLM must be installed."""
    import vllm

    options = begun(parser_of(__doc__, "hybrid.equal"), arguments, "results/vllm")
    found = {
        "vllm": [differences(layout, seed=seed, **settings) for layout, settings in SETTINGS for seed in SEEDS],
        "in_flight": [in_flight(layout, seed=seed, retention=retention, **limits) for layout in LAYOUTS
                      for limits in IN_FLIGHT for retention in ((None,) if "chunk" in layout else (None, 0))
                      for seed in SEEDS],
    }  # fmt: skip
    tables = {name: table(list(rows[0]), [list(row.values()) for row in rows]) for name, rows in found.items()}
    finish(options, found, tables, vllm=vllm.__version__)
    return 0


if __name__ == "__main__":
    sys.exit(main())
