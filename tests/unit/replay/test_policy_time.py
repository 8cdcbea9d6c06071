"""The clock that policies see, in each kind of run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_engines import make_engine

from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.interfaces.workload import WorkloadRequest
from framework.registry.components import build_allocator
from framework.replay.paths import build_paths
from framework.replay.reference import replay
from framework.sampling import Sampling
from framework_builtin.eviction.lru import Lru
from framework_builtin.eviction.ttl import Ttl


class Watch(Lru):
    """LRU that notes `now` beside the arrival of the request that last used the block."""

    needs_requests = True

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[float, float | None]] = []

    def release(self, blocks: Any, now: float) -> None:
        self.seen.append((now, self.blocks.last_request[blocks[0]].arrival))
        super().release(blocks, now)


@pytest.mark.parametrize("virtual", [True, False])
def test_a_replay_counts_virtual_seconds_and_a_serve_run_steps_in_now_and_arrival_alike(virtual: bool) -> None:
    watch = Watch()
    built = build_allocator("prefix_cow", watch, "sha256", num_blocks=8, block_size=4, max_model_len=32)
    engine = make_engine(built, ReplayExecutor(constant_step(0.5)), max_model_len=32, virtual_clock=virtual)
    for at, first in ((0.0, 1), (600.0, 20)):
        engine.submit([*range(first, first + 9)], Sampling(max_tokens=3, ignore_eos=True), arrival_s=at)
    engine.run()
    assert watch.seen == ([(1.0, 0.0), (601.0, 600.0)] if virtual else [(3.0, 0.0), (7.0, 4.0)]), watch.seen


def test_a_cache_only_replay_gives_the_arrival_of_the_request_at_hand_as_now() -> None:
    requests = [
        WorkloadRequest(arrival_s=at, input_tokens=1, output_tokens=1, block_ids=np.array([block]), block_tokens=1)
        for at, block in ((0.0, 1), (500.0, 2), (550.0, 1), (700.0, 3), (710.0, 1))
    ]
    paths, watch = build_paths(requests), Watch()
    replay(paths, watch, 2)
    assert watch.seen == [(at, at) for at in (0.0, 500.0, 550.0, 700.0, 710.0)], watch.seen
    # Block 1 is 700 s old when block 3 needs room, block 2 but 200 s.
    hits = {ttl: replay(paths, Ttl(ttl, refresh=False), 2).hit_blocks for ttl in (600.0, 1000.0)}
    assert hits == {600.0: 1, 1000.0: 2}, hits
