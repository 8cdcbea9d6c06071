"""With prefix semantics our LRU and our optimum hit as many tokens as kvcache-simulator's.

Its FIFO is another one: root side first within a request, and the request at hand is not pinned.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from framework.interfaces.workload import WorkloadRequest
from framework_builtin.eviction.lru import Lru
from framework_builtin.eviction.optimum import Optimum
from framework_cache_only.paths import RequestPaths, build_paths
from framework_cache_only.reference import replay
from framework_workloads.trace import open_trace

policies = pytest.importorskip("kvcache_sim.policies", reason="kvcache-simulator is not installed")
plans = pytest.importorskip("kvcache_sim.plan")
parser = pytest.importorskip("kvcache_sim.trace")

OURS = {
    "lru": lambda paths, size: replay(paths, Lru(), size),
    "optimal": lambda paths, size: replay(paths, Optimum(), size, bypass=True),
}


def their_plan(paths: RequestPaths) -> Any:
    """The same trace as their plan; its first half warms the cache up and is not counted."""
    starts, nodes = paths.starts.tolist(), paths.nodes.tolist()
    tokens = [
        min(paths.block_tokens, int(paths.input_tokens[request]) - index * paths.block_tokens)
        for request in range(paths.num_requests)
        for index in range(starts[request + 1] - starts[request])
    ]
    total = int(paths.input_tokens.sum())
    data = parser.TraceData(
        ids=nodes,
        tokens=tokens,
        request_starts=starts,
        block_size=paths.block_tokens,
        request_count=paths.num_requests,
        unique_raw_blocks=paths.num_nodes,
        total_input_tokens=total,
        average_input_tokens=total / paths.num_requests,
        parse_errors=0,
        skipped_records=0,
    )
    return plans.build_execution_plan(data)


def compare(paths: RequestPaths, sizes: tuple[int, ...]) -> None:
    plan = their_plan(paths)
    for name, ours in OURS.items():
        for size in sizes:
            theirs = policies.simulate_policy(plan, name, size)
            assert theirs.measurementMode == "fixed_window", "the first half must fill the cache"
            found = int(paths.hit_tokens(ours(paths, size).request_hits)[plan.warmup_requests :].sum())
            assert found == theirs.hitTokens, (name, size, found, theirs)


@pytest.mark.parametrize("seed", range(6))
def test_they_agree_on_random_trees(seed: int) -> None:
    rng = Random(seed)
    requests = [[rng.randrange(3) for _ in range(rng.randint(1, 7))] for _ in range(400)]
    paths = build_paths(
        WorkloadRequest(
            arrival_s=0.0, input_tokens=4 * len(ids) - 1, output_tokens=1, block_ids=np.array(ids), block_tokens=4
        )
        for ids in requests
    )
    compare(paths, (8, 20, 60))


@pytest.mark.slow
def test_they_agree_on_the_conversation_trace(traces: Path) -> None:
    compare(build_paths(open_trace(traces / "mooncake_conversation_trace.jsonl.gz")), (10_000, 1_000))
