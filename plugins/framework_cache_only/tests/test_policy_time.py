"""The clock that policies see in a replay that counts hits alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from framework.interfaces.workload import WorkloadRequest
from framework_builtin.eviction.lru import Lru
from framework_builtin.eviction.ttl import Ttl
from framework_cache_only.paths import build_paths
from framework_cache_only.reference import replay


class Watch(Lru):
    """LRU that notes `now` beside the arrival of the request that last used the block."""

    needs_requests = True

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[float, float | None]] = []

    def release(self, blocks: Any, now: float) -> None:
        self.seen.append((now, self.blocks.last_request[blocks[0]].arrival))
        super().release(blocks, now)


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
