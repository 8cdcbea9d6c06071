"""tail_lru spares the tail that a latency budget recomputes."""

from __future__ import annotations

import numpy as np

from framework.replay.paths import build_paths
from framework.replay.reference import replay
from framework.workload.traces import TraceRequest
from framework_builtin.eviction.lru import Lru
from framework_builtin.eviction.tail_lru import TailLru


def test_tail_lru_spares_the_tail_that_the_budget_recomputes() -> None:
    def request(at: float, name: int, length: int) -> TraceRequest:
        ids = np.arange(length) + 100 * name
        return TraceRequest(arrival_s=at, input_tokens=2 * length, output_tokens=1, block_tokens=2, block_ids=ids)

    paths = build_paths([request(0, 1, 4), request(1, 2, 4), request(2, 3, 2), request(3, 1, 4)])
    assert replay(paths, Lru(), 8).request_hits.tolist() == [0, 0, 0, 2]
    gone: list[int] = []
    found = replay(paths, TailLru(budget_tokens=4, next_tokens=2), 8, on_evict=lambda request, node: gone.append(node))
    assert gone[:2] == [3, 7], "one block of two tokens of each prompt can be spared"
    assert found.request_hits.tolist() == [0, 0, 0, 3]
    assert replay(paths, TailLru(budget_tokens=0), 8).request_hits.tolist() == [0, 0, 0, 2], "no budget: LRU"
