"""Part of a GPU run: copies between pool and host, and the link models that fit them, a JSON line a link and a point.

    python experiments/gpu/links.py [--dry-run]

The host store as a serve run uses it (pinned memory, a stream for each direction), then plain copies of pinned and of
pageable memory, by size, in each direction and in both at once: `python -m framework.run mode=kernel
kernel.measure=links` without the run directory. Blocks of llama-3.1-8b. The aim is a model within 15 % of every point.
"""

from __future__ import annotations

import json
import sys

from framework.engine.block_bytes import pool_bytes
from framework.engine.pool import KVPool
from framework.kernel.link_times import POOL_BLOCKS, measure_copies, measure_store
from framework.kernel.links import judge
from framework.replay.shapes import ROOFLINE_SHAPES

TIER = {"store": {"name": "host"}, "num_blocks": POOL_BLOCKS}


def main() -> int:
    """Measure and print."""
    dry = "--dry-run" in sys.argv[1:]
    device, shape = ("cpu", ROOFLINE_SHAPES["qwen3-100m"]) if dry else ("cuda", ROOFLINE_SHAPES["llama-3.1-8b"])
    budget_s, block_size = (0.01, 4) if dry else (2.0, 16)

    def make_pool(tokens: int) -> KVPool:
        facts = (shape.num_layers, 1, shape.kv_numbers_per_token // 2, "bfloat16", device)
        return KVPool(POOL_BLOCKS, tokens, *facts)

    report = judge(measure_store(TIER, "host", make_pool, block_size, budget_s), copies_at_once=False)
    reports = [report]
    if not dry:
        block_bytes = pool_bytes(make_pool(block_size)).block_bytes
        reports += [judge(found, copies_at_once=True) for found in measure_copies(device, block_bytes, budget_s)]
    for report in reports:
        print(json.dumps({"link": report.name, **report.facts(), "within_15_percent": not report.off}), flush=True)
        for row in report.rows:
            print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
