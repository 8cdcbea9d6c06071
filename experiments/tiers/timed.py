"""The same rules through the engine on a virtual clock: what a hit below the pool does to the first token."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from experiments.shared import CONVERSATION, columns, trace_path
from framework.api import run

RULES = ("never", "on_eviction", "write_through", "on_second_hit", "load_or_recompute")
LINKS = {"PCIe 5.0 x16": 50e9, "NVMe": 7e9}
"""Bytes/s each way, assumed; an operation takes 100 µs more."""
REQUESTS, POOL, TIER = 800, 2_500, 20_000

Timed = tuple[str, str, int]
"""(rule, link, requests)."""


def timed_cells(*, quick: bool) -> list[Timed]:
    """Every rule over every link; without tiers once."""
    if quick:
        return [("on_eviction", "NVMe", 60)]
    cells = [(rule, link, REQUESTS) for link in LINKS for rule in RULES]
    return [cell for cell in cells if cell[0] != "never" or cell[1] == "NVMe"]


def timed_row(cell: Timed) -> dict[str, Any]:
    """One replay through the engine, on two H100s at the roofline with llama-3.1-8b in bfloat16."""
    rule, link, requests = cell
    tier = {"store": "null", "num_blocks": TIER, "bytes_per_s": LINKS[link]}
    with tempfile.TemporaryDirectory() as folder:
        found = run(
            {
                "mode": "replay",
                "executor": "roofline",
                "workload": {"name": "trace", "path": str(trace_path(CONVERSATION)), "limit": requests, "speed": 0.5},
                "cache": {"num_blocks": POOL, "block_size": 512},
                "replay": {"device": "h100"},
                "engine": {"tensor_parallel_size": 2},
                "below": {"name": "tiers", "tiers": [tier], "tiering": rule},
                "run": {"dir": str(Path(folder) / "run"), "progress": False, "requests": False},
            }
        )
    row = {"rule": rule, "link": "" if rule == "never" else link, "requests": requests}
    wanted = ("hit_rate", "ttft_s_p50", "ttft_s_p95", "tier1_hit_blocks", "num_loads", "load_wait_s")
    counts = ("tier1_bytes_in", "tier1_bytes_out", "tier1_unread_blocks")
    return {**row, **{key: found[key] for key in (*wanted, *counts)}}


def timed_table(rows: list[dict[str, Any]]) -> str:
    """What a reader sees."""
    return columns(rows, {
        "rule": "{rule}", "link": "{link}", "hit rate": lambda row: f"{100 * row['hit_rate']:.1f} %",
        "TTFT p50, s": "{ttft_s_p50:.2f}", "TTFT p95, s": "{ttft_s_p95:.2f}",
        "waited for a load, s": lambda row: f"{row['load_wait_s'] / max(1, row['num_loads']):.2f}",
        "in, GiB": lambda row: f"{row['tier1_bytes_in'] / 2**30:,.0f}",
        "out, GiB": lambda row: f"{row['tier1_bytes_out'] / 2**30:,.0f}",
    })  # fmt: skip
