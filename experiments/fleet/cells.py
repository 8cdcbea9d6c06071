"""Cells of the fleet experiment: which runs, over which requests, and what is kept of each."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.shared import AGENTIC, AGENTIC_B, trace_path
from framework import api, registry
from framework.interfaces.workload import WorkloadRequest
from framework_report.statistics import rate_interval
from framework_traces.writing import write_trace
from framework_workloads.trace import open_trace

BLOCK, NUM_BLOCKS = 512, 600
ANSWER = 16
"""Tokens that answers are cut to: prefill and reuse are the trace's, decoding is not."""
ANSWER_S_PER_TOKEN = 0.015
"""Seconds a token that recorded answers are taken to have taken: 67 tokens a second."""
TRACES = {"agentic_b": AGENTIC_B, "agentic": AGENTIC}
SESSIONS, TURNS = 44, 6
"""The first sessions of a trace, and the first turns of each."""
LOADS = (16, 40)
"""How many times as fast sessions begin and gaps pass behind routers: a lower and a higher load."""
ALONE = 4
"""The same for one replica."""
PAIRS = ("lru", "fcfs"), ("hazard", "fcfs"), ("lru", "longest_prefix"), ("hazard", "longest_prefix")
"""Policies and orders."""

Cell = dict[str, Any]


def cut(trace: str, speed: float, sessions: int, out: Path) -> Path:
    """The first turns of the first sessions, faster, with short answers and the think times of a closed loop."""
    requests = open_trace(trace_path(TRACES[trace]), block_tokens=BLOCK)
    write_trace(out, _cut(requests, speed, sessions), block_tokens=BLOCK)
    return out


def _cut(requests: Iterable[WorkloadRequest], speed: float, sessions: int) -> Iterator[WorkloadRequest]:
    last: dict[str, WorkloadRequest] = {}
    for request in requests:
        assert request.session is not None
        assert request.turn is not None
        if request.turn >= TURNS or (request.session not in last and len(last) == sessions):
            continue
        before, after, delay_s = last.get(request.session), tuple[str, ...](), 0.0
        if before is not None:
            gap_s = request.arrival_s - before.arrival_s - ANSWER_S_PER_TOKEN * (before.output_tokens or 0)
            after, delay_s = (before.key,), max(0.0, gap_s) / speed
        kept = replace(request, key=f"{request.session}:{request.turn}")
        last[request.session] = kept
        yield replace(
            kept, arrival_s=request.arrival_s / speed, after=after, delay_s=delay_s,
            output_tokens=min(ANSWER, request.output_tokens or 1),
        )  # fmt: skip


def cell(trace: str, **facts: Any) -> Cell:
    return {"trace": trace, "router": "round_robin", "eviction": "lru", "scheduling": "fcfs", "replicas": 1,
            "loop": "closed", **facts}  # fmt: skip


def loop_cells(*, quick: bool) -> list[Cell]:
    """Open against closed, one replica."""
    return [
        cell(trace, speed=ALONE, loop=loop, eviction=eviction, scheduling=scheduling)
        for trace in (["agentic_b"] if quick else sorted(TRACES))
        for eviction, scheduling in (PAIRS[:1] if quick else PAIRS)
        for loop in ("open", "closed")
    ]


def router_cells(*, quick: bool) -> list[Cell]:
    """The full cross of traces, policies and orders, sizes, loads and routers."""
    if quick:
        return [cell("agentic_b", router=name, replicas=4, speed=LOADS[1]) for name in ("round_robin", "lmetric")]
    return [
        cell(trace, router=name, replicas=replicas, speed=speed, eviction=eviction, scheduling=scheduling)
        for trace in TRACES
        for eviction, scheduling in PAIRS
        for speed in LOADS
        for replicas in (4, 8)
        for name in registry.names("router")
        if not name.startswith("near_")
    ]


def run_cell(cell: Cell, path: Path) -> dict[str, Any]:
    """One run over the cut trace at `path`: what it hit, how long first tokens took, with intervals by session, and the
    bounds."""
    with tempfile.TemporaryDirectory() as folder:
        found = api.run({
            "mode": {"name": "fleet", "replicas": cell["replicas"], "router": cell["router"], "loop": cell["loop"],
                     "bounds": True},
            "executor": "roofline", "eviction": cell["eviction"], "scheduling": cell["scheduling"], "hash": "xxh64",
            "workload": {"name": "trace", "path": str(path)},
            "cache": {"block_size": BLOCK, "num_blocks": NUM_BLOCKS},
            "run": {"dir": f"{folder}/run", "progress": False},
        })  # fmt: skip
        requests = [json.loads(line) for line in (Path(folder) / "run/requests.jsonl").read_text().splitlines()]
    return {**cell, "requests": found["num_finished"], "sessions": len({row["session"] for row in requests}),
            **_measured(found, requests)}  # fmt: skip


def _measured(found: dict[str, Any], requests: list[dict[str, Any]]) -> dict[str, Any]:
    """What a row says; `by_session` holds hit and prompt tokens, seconds to first tokens and requests of each session,
    in order of their first arrivals."""
    sums: dict[str, list[float]] = {}
    for row in sorted(requests, key=lambda row: row["arrival_s"]):
        mine = sums.setdefault(row["session"], [0.0] * 4)
        if row["status"] == "finished":  # else it is longer than a pool
            mine[0] += row["cached_tokens"]
            mine[1] += row["prompt_tokens"]
            mine[2] += row["first_token_s"] - row["arrival_s"]
            mine[3] += 1
    by_session = [mine for mine in sums.values() if mine[3]]
    hits, tokens, times, counts = np.array(by_session).T
    low, high = rate_interval(hits, tokens) or (None, None)
    scale = 10 * float((times / counts).max())  # an interval of rates is one of shares
    within = rate_interval(times / scale, counts)
    early, late = (None, None) if within is None else (scale * within[0], scale * within[1])
    whole, bound = found["prompt_tokens"], found["shared_optimum_hit_tokens"]
    return {
        "hit_rate": found["hit_rate"], "hit_rate_low": low, "hit_rate_high": high,
        "ttft_s_mean": found["ttft_s_mean"], "ttft_s_low": early, "ttft_s_high": late,
        "ttft_s_p50": found["ttft_s_p50"], "ttft_s_p95": found["ttft_s_p95"], "ttft_s_p99": found["ttft_s_p99"],
        "imbalance": found["imbalance"], "wall_s": found["wall_s"], **_missed(found),
        "shared_lru": found["shared_lru_hit_tokens"] / whole, "shared_optimum": bound / whole,
        "static": found["static_hit_tokens"] / whole, "regret_tokens": found["regret_tokens"],
        "ttft_regret_s": found["ttft_regret_s"], "by_session": by_session,
    }  # fmt: skip


def _missed(found: dict[str, Any]) -> dict[str, float]:
    """Shares of the prompts that were missed, by cause."""
    causes = ("elsewhere", "evicted", "new")
    return {f"missed_{why}": found[f"missed_{why}_tokens"] / found["prompt_tokens"] for why in causes}


CASES = (
    ("round_robin", {"name": "round_robin"}),
    ("least_load", {"name": "least_load"}),
    ("cache_aware, match counts from .3", {"name": "sglang_cache_aware"}),
    ("cache_aware, match counts from .25", {"name": "sglang_cache_aware", "cache_threshold": 0.25}),
    ("the same, unbalanced above 8", {"name": "sglang_cache_aware", "cache_threshold": 0.25, "balance_abs": 8}),
    ("lmetric", {"name": "lmetric"}),
)
"""sglang#21199: two workers, 3 requests a second, at most 36 at once; 2,548 shared and 7,252 own tokens, 430 new."""


def case(name: str, router: dict[str, Any], *, quick: bool) -> dict[str, Any]:
    """The benchmark of sglang#21199 with this router."""
    with tempfile.TemporaryDirectory() as folder:
        found = api.run({
            "mode": {"name": "fleet", "replicas": 2, "router": router, "concurrency": 36}, "executor": "roofline",
            "workload": {"name": "shared_prefix", "num_requests": 60 if quick else 400, "prefix_tokens": 2548,
                         "unique_tokens": 7252, "new_tokens": 430, "rate_per_s": 3.0},
            "cache": {"block_size": 64, "num_blocks": 20_000}, "replay": {"shape": "deepseek-v3", "device": "h200"},
            "engine": {"tensor_parallel_size": 8}, "hash": "xxh64", "run": {"dir": f"{folder}/run", "progress": False},
        })  # fmt: skip
        rows = [json.loads(line) for line in (Path(folder) / "run/requests.jsonl").read_text().splitlines()]
    counts = [sum(row["replica"] == index for row in rows) for index in (0, 1)]
    return {
        "router": name, "requests_0": counts[0], "requests_1": counts[1], "hit_rate": found["hit_rate"],
        "ttft_s_mean": found["ttft_s_mean"], "ttft_s_p50": found["ttft_s_p50"], "ttft_s_p99": found["ttft_s_p99"],
        "tpot_s_p50": found["tpot_s_p50"], **_missed(found),
    }  # fmt: skip
