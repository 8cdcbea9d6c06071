"""Tables (e) and (f): hazard against LRU where requests overlap, in full replays and in vLLM's own scheduler."""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.gap.cells import TRACES, agent_text, kind_of, sources
from experiments.shared import CONVERSATION, begun, columns, finish, kept, parser_of, trace_path
from framework import api
from framework_traces.writing import write_trace

TIMED = (("lru", 5_000), ("hazard", 5_000), ("lru", 7_500), ("lru", 10_000), ("hazard", 10_000), ("lru", 12_500))
OVERLAPPING = (
    ("conversation", 2_500, 10_000), ("conversation", 12_031, 10_000), ("synthetic mix", 1_400, 2_500),
    ("synthetic mix", 3_993, 2_500), ("agentic coding", 800, 1_000), ("agentic coding", 4_732, 1_000),
    ("agentic coding b", 800, 1_000), ("agentic coding b", 7_712, 1_000), ("agent text", 1_566, 1_000),
)  # fmt: skip
"""Trace, requests, blocks."""
_SPEED = 0.5
_BLOCK, _TEXT_BLOCK = 512, 64
_LONGEST = 262_144
_ANSWER = 48
_IN_VLLM = 2_500


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay each cell, in vLLM's scheduler too where it is installed, and write the tables."""
    parser = parser_of(__doc__, "gap.engine")
    parser.add_argument("--limit", type=int, default=6_000, help="requests of the trace of table (e)")
    options = begun(parser, arguments, "results/engine")
    timed = [_timed(policy, size, options.limit) for policy, size in TIMED]
    with tempfile.TemporaryDirectory() as folder:
        write_trace(Path(folder) / "agent_text.jsonl", agent_text(), block_tokens=_TEXT_BLOCK)
        rows = [_overlapping(*cell, Path(folder), options.out / "cells") for cell in OVERLAPPING]
    traces = [trace_path(name) for name in TRACES.values()]
    tables = {"latency": _latency(timed), "overlap": _overlap(rows)}
    finish(options, {"latency": timed, "overlap": rows}, tables, traces,
           limit=options.limit, speed=_SPEED, longest_answer_in_vllm=_ANSWER)  # fmt: skip
    return 0


def _replayed(executor: str, policy: str, num_blocks: int, path: Path, limit: int) -> dict[str, Any]:
    is_text = path.name == "agent_text.jsonl"
    with tempfile.TemporaryDirectory() as folder:
        return api.run(
            {
                "mode": "replay",
                "executor": executor,
                "allocator": {"name": "prefix"},
                "eviction": {"name": policy},
                "workload": {"name": "trace", "path": str(path), "limit": limit, "speed": 1.0 if is_text else _SPEED},
                "cache": {"num_blocks": num_blocks, "block_size": _TEXT_BLOCK if is_text else _BLOCK},
                "engine": {"max_batch_tokens": 8192},
                "run": {"dir": str(Path(folder) / "run"), "progress": False, "requests": False, "events": False},
            }
        )


def _timed(policy: str, num_blocks: int, limit: int) -> dict[str, Any]:
    result = _replayed("roofline", policy, num_blocks, trace_path(CONVERSATION), limit)
    names = ("hit_rate", "ttft_s_p50", "ttft_s_p99", "goodput_requests_per_s", "num_evictions", "num_preemptions")
    row = {"policy": policy, "num_blocks": num_blocks, **{name: result[name] for name in names}}
    print(json.dumps(row), flush=True)
    return row


def _overlapping(trace: str, limit: int, num_blocks: int, folder: Path, cells: Path) -> dict[str, Any]:
    """Hit blocks of both policies in full replay, and hit tokens in vLLM's scheduler: -1 where that was not run."""
    path = folder / "agent_text.jsonl" if trace == "agent text" else trace_path(TRACES[trace])
    row: dict[str, Any] = {"trace": trace, "requests": limit, "num_blocks": num_blocks}
    for policy in ("lru", "hazard"):
        what, files = (trace, limit, num_blocks, policy, _SPEED, _ANSWER), [path, *sources(kind_of(policy))]

        def replay(policy: str = policy) -> dict[str, Any]:
            found = _replayed("none", policy, num_blocks, path, limit)
            return {"hit_blocks": found["hit_blocks"], "prompt_blocks": found["prompt_blocks"]}

        found = kept(cells, what, replay, files)
        in_vllm = {"hit_tokens": -1, "prompt_tokens": -1}
        if limit <= _IN_VLLM and importlib.util.find_spec("vllm"):
            in_vllm = kept(
                cells, ("vllm", *what), lambda policy=policy: _in_vllm(policy, num_blocks, path, limit), files
            )
        row[f"{policy}_hit_blocks"], row["prompt_blocks"] = found["hit_blocks"], found["prompt_blocks"]
        row[f"{policy}_vllm_hit_tokens"], row["vllm_prompt_tokens"] = in_vllm["hit_tokens"], in_vllm["prompt_tokens"]
    print(json.dumps(row), flush=True)
    return row


def _in_vllm(policy: str, num_blocks: int, path: Path, limit: int) -> dict[str, Any]:
    """The same requests, one after another as room allows, through vLLM's Scheduler and block pool."""
    from experiments.fidelity.compare import in_vllm
    from experiments.fidelity.streams import of_trace

    size = _TEXT_BLOCK if path.name == "agent_text.jsonl" else _BLOCK
    longest = min(_LONGEST, num_blocks * size) - _ANSWER  # vLLM would wait for ever for room for more
    talks = [request for request in of_trace(path, limit, longest=_ANSWER) if len(request.prompt) <= longest]
    outcome = in_vllm(
        talks, policy, num_blocks=num_blocks, block_size=size, max_batch_tokens=8192, max_batch_requests=32
    )
    return {"hit_tokens": sum(outcome.hits.values()), "prompt_tokens": sum(len(request.prompt) for request in talks)}


def _latency(rows: Sequence[Mapping[str, Any]]) -> str:
    return columns(rows, {
        "policy": "{policy}", "blocks": "{num_blocks:,}", "hit rate, %": lambda row: f"{100 * row['hit_rate']:.1f}",
        "TTFT p50, s": "{ttft_s_p50:.2f}", "TTFT p99, s": "{ttft_s_p99:.2f}",
        "goodput, requests/s": "{goodput_requests_per_s:.3f}",
    })  # fmt: skip


def _overlap(rows: Sequence[Mapping[str, Any]]) -> str:
    def points(row: Mapping[str, Any], what: str, of: str) -> str:
        gained = row[f"hazard_{what}"] - row[f"lru_{what}"]
        return f"{100 * gained / row[of]:+.2f}" if row[of] > 0 else "-"

    return columns(rows, {
        "trace": "{trace}", "requests": "{requests:,}", "blocks": "{num_blocks:,}",
        "LRU, blocks hit": "{lru_hit_blocks:,}", "hazard, blocks hit": "{hazard_hit_blocks:,}",
        "points of the hit rate": lambda row: points(row, "hit_blocks", "prompt_blocks"),
        "points in vLLM": lambda row: points(row, "vllm_hit_tokens", "vllm_prompt_tokens"),
    })  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
