"""The tenant that holds the most loses a block."""

from __future__ import annotations

import numpy as np

from framework.replay.paths import build_paths
from framework.replay.reference import replay
from framework.workload.traces import TraceRequest
from framework_builtin.eviction.tenant_fair import TenantFair


def test_the_largest_tenant_pays() -> None:
    names = ["small", "big", "big", "big", "new"]
    paths = build_paths(
        TraceRequest(
            arrival_s=0.0, input_tokens=1, output_tokens=1, block_ids=np.array([i]), block_tokens=1, tenant=name
        )
        for i, name in enumerate(names)
    )
    out: list[int] = []
    replay(paths, TenantFair(), 4, on_evict=lambda _, node: out.append(node))
    assert out == [1], "the big tenant's oldest, though the small tenant's is older"
