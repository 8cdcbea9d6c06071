"""Block references a second of CPU time from a trace file to LRU's hits, the first time and once its paths are cached.

pytest tests/bench/test_bench_trace_to_hits.py --benchmark-only -s

`read` is opening, parsing and numbering blocks; `count` is the replay by the fastest installed core, else in Python.
The counts are exact and asserted; time is only printed. KVLAB_BENCH_ROUNDS=3 by default.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from framework import registry
from framework.interfaces.allocator import Allocator
from framework.replay.cores import count
from framework.replay.path_cache import trace_paths
from framework.workload.traces import open_trace
from framework_builtin.eviction.lru import Lru

ROUNDS = int(os.environ.get("KVLAB_BENCH_ROUNDS", "3"))
CAPACITY = 10_000
TRACES = [
    ("mooncake_conversation_trace.jsonl.gz", None, 288_500, 61_046),
    ("agentic_coding_100_sessions.jsonl.gz", 512, 1_327_320, 1_261_002),
]


def core() -> str | None:
    """An installed allocator that counts by itself."""
    for name in registry.names("allocator"):
        method = registry.load("allocator", name).replay_references  # type: ignore[attr-defined]
        if method.__func__ is not Allocator.replay_references.__func__:  # type: ignore[attr-defined]
            return name
    return None


@pytest.mark.timeout(0)
@pytest.mark.parametrize(("file", "block_tokens", "references", "hits"), TRACES, ids=["conversation", "agentic"])
def test_trace_file_to_hits(
    benchmark, traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    file: str, block_tokens: int | None, references: int, hits: int,
) -> None:  # fmt: skip
    if not (traces / file).exists():
        pytest.skip(f"no {file} among the traces")
    monkeypatch.setenv("KVLAB_CACHE", "1")
    name, spent = core(), {"first": [], "cached": []}  # type: ignore[var-annotated]

    def from_file(kind: str) -> None:
        start = time.process_time()
        paths = trace_paths(open_trace(traces / file, block_tokens=block_tokens))
        read = time.process_time()
        _, found = count(name, paths, Lru(), CAPACITY)
        spent[kind].append((read - start, time.process_time() - read))
        assert (paths.num_references, found.hit_blocks) == (references, hits)

    def one_round() -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / str(len(spent["first"]))))
        from_file("first")
        for _ in range(3):
            from_file("cached")

    benchmark.pedantic(one_round, rounds=ROUNDS, iterations=1)
    for kind, times in spent.items():
        read, counted = (min(column) for column in zip(*times, strict=True))
        rate = references / (read + counted) / 1e6
        benchmark.extra_info[f"{kind} M references/s"] = round(rate, 2)
        print(
            f"\n{kind:7} {rate:6.2f} M references/s of CPU (read {read:.4f} s, count {counted:.4f} s, {name})", end=""
        )
