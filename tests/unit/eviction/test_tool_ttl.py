"""tool_ttl keeps a kind of request for as long as its calls take."""

from __future__ import annotations

import numpy as np
from learning_streams import hits

from framework.replay.paths import build_paths
from framework.workload.traces import TraceRequest
from framework_builtin.eviction.lru import Lru
from framework_builtin.eviction.tool_ttl import ToolTtl


def test_tool_ttl_keeps_a_kind_for_as_long_as_its_calls_take() -> None:
    due = []
    for call in range(400):
        due += [(10.0 * call, call, "tool"), (10.0 * call + 35.0, call, "tool")]
        due += [(10.0 * call + step, 10_000 + 10 * call + step, "once") for step in (1, 2, 3, 4)]
    requests = [
        TraceRequest(arrival_s=at, input_tokens=8, output_tokens=1, block_tokens=2, category=category,
                     block_ids=np.array([name * 10 + depth for depth in range(4)]))
        for at, name, category in sorted(due)
    ]  # fmt: skip
    paths = build_paths(requests)
    assert hits(ToolTtl(), paths, 48) > 2 * hits(Lru(), paths, 48)
