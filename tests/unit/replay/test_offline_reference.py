"""Offline next use in an engine hits as much as any order of evictions when requests come one at a time."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from fake_engines import make_engine

from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.interfaces.eviction import EvictionPolicy
from framework.registry.components import build_allocator
from framework.replay.items import Foresight, feed, trace_items
from framework.workload.traces import TraceRequest
from framework_builtin.eviction.belady import Belady

BLOCK = 4
MOST_SCHEDULES = 3_000


class Scripted(EvictionPolicy):
    """Evicts as a script says: the number of a candidate, in order of ids, at each eviction; then the first."""

    def __init__(self, script: list[int]) -> None:
        self._script, self._candidates, self.choices = script, set(), []

    def pin(self, blocks, now):
        self._candidates.difference_update(blocks)

    def release(self, blocks, now):
        self._candidates.update(blocks)

    def victim(self, now):
        at = len(self.choices)
        return sorted(self._candidates)[self._script[at] if at < len(self._script) else 0]

    def evicted(self, block, now):
        self.choices.append(len(self._candidates))
        self._candidates.discard(block)


def requests_of(draw: random.Random, count: int, gap_s: float) -> list[TraceRequest]:
    found = []
    for number in range(count):
        path = [draw.randrange(3)]
        while len(path) < draw.randint(1, 3):
            path.append(10 * path[-1] + draw.randrange(2) + 10)
        found.append(
            TraceRequest(
                arrival_s=number * gap_s,
                input_tokens=len(path) * BLOCK + 1,
                output_tokens=draw.randint(1, 2),
                block_ids=np.array(path),
                block_tokens=BLOCK,
            )
        )
    return found


def hits(policy: EvictionPolicy, requests: list[TraceRequest], num_blocks: int, batch: int) -> int:
    """Cached prompt tokens of all requests."""
    built = build_allocator("prefix", policy, "sha256", num_blocks=num_blocks, block_size=BLOCK, max_model_len=64)
    engine = make_engine(built, ReplayExecutor(constant_step(0.025)), max_model_len=64, max_batch_requests=batch)
    if policy.needs_future:
        Foresight(engine.allocator, requests, max_len=64).attach(engine)
    cached: list[int] = []
    engine.state.on_end = lambda request: cached.append(request.num_cached_tokens)
    for _ in feed(engine, trace_items(requests)):
        pass
    return sum(cached)


def of_all_schedules(requests: list[TraceRequest], num_blocks: int, batch: int) -> Iterator[int]:
    """Hits under every order of evictions, by backtracking over the choices that came up."""
    script: list[int] = []
    for _ in range(MOST_SCHEDULES):
        policy = Scripted(script)
        yield hits(policy, requests, num_blocks, batch)
        script = (script + [0] * len(policy.choices))[: len(policy.choices)]
        while script and script[-1] + 1 >= policy.choices[len(script) - 1]:
            script.pop()
        if not script:
            return
        script[-1] += 1
    pytest.fail(f"more than {MOST_SCHEDULES} schedules: a smaller instance is needed")


def test_one_request_at_a_time_no_order_of_evictions_hits_more() -> None:
    below = 0
    for seed in range(6):
        requests = requests_of(random.Random(seed), 6, 100.0)
        found = list(of_all_schedules(requests, 5, 1))
        assert hits(Belady(), requests, 5, 1) == max(found), seed
        below += min(found) < max(found)
    assert below >= 2, "else every order is as good and nothing is shown"
