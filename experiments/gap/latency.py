"""Part (d), latency: the engine on a roofline clock, hazard against LRU at equal memory and at equal hits."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.shared import CONVERSATION, ROOT, begun, publish, table, trace_path, write_provenance, write_rows
from framework import api

CELLS = (("lru", 5_000), ("hazard", 5_000), ("lru", 7_500), ("lru", 10_000), ("hazard", 10_000), ("lru", 12_500))
_SPEED = 0.5
_BLOCK = 512


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay each cell and write the table."""
    parser = argparse.ArgumentParser(prog="python -m experiments.gap.latency", description=__doc__)
    parser.add_argument("--limit", type=int, default=6_000, help="requests of the trace")
    parser.add_argument("--out", type=Path, help="where results go; default: the experiment's own results folder")
    options = begun(parser.parse_args(arguments), "gap.latency", ROOT / "experiments" / "gap", "results/latency")
    options.quick, options.jobs = False, 1
    rows = [_row(policy, size, options.limit) for policy, size in CELLS]
    write_rows(options.out / "latency.csv", rows)
    write_provenance(options, [trace_path(CONVERSATION)], limit=options.limit, speed=_SPEED, block_tokens=_BLOCK)
    header = ["policy", "blocks", "hit rate, %", "TTFT p50, s", "TTFT p99, s", "goodput, requests/s"]
    body = [
        [r["policy"], f"{r['num_blocks']:,}", f"{100 * r['hit_rate']:.1f}", f"{r['ttft_s_p50']:.2f}",
         f"{r['ttft_s_p99']:.2f}", f"{r['goodput_requests_per_s']:.3f}"]
        for r in rows
    ]  # fmt: skip
    publish(options, {"latency": table(header, body)})
    return 0


def _row(policy: str, num_blocks: int, limit: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        result = api.run(
            {
                "mode": "replay",
                "executor": "roofline",
                "allocator": {"name": "prefix"},
                "eviction": {"name": policy},
                "workload": {"name": "trace", "path": str(trace_path(CONVERSATION)), "limit": limit, "speed": _SPEED},
                "cache": {"num_blocks": num_blocks, "block_size": _BLOCK},
                "engine": {"max_batch_tokens": 8192},
                "run": {"dir": str(Path(folder) / "run"), "progress": False, "requests": False, "events": False},
            }
        )
    kept = ("hit_rate", "ttft_s_p50", "ttft_s_p99", "goodput_requests_per_s", "num_evictions", "num_preemptions")
    print(json.dumps({"policy": policy, "num_blocks": num_blocks, **{key: result[key] for key in kept}}), flush=True)
    return {"policy": policy, "num_blocks": num_blocks, **{key: result[key] for key in kept}}


if __name__ == "__main__":
    sys.exit(main())
