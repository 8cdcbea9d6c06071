"""LRU and FIFO hit as many blocks as plain dictionaries do that read the traces by themselves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from plain_caches import plain_fifo, plain_lru, read_plainly

from framework.replay.paths import build_paths
from framework.replay.reference import replay
from framework.workload.traces import open_trace
from framework_builtin.eviction.fifo import Fifo
from framework_builtin.eviction.lru import Lru

PLAIN = {"lru": (Lru, plain_lru), "fifo": (Fifo, plain_fifo)}
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("file", "every", "block_tokens", "size"),
    [
        ("mooncake_conversation_trace.jsonl.gz", 1, None, 10_000),
        pytest.param("mooncake_conversation_trace.jsonl.gz", 1, None, 1_000, marks=slow),
        pytest.param("mooncake_conversation_trace.jsonl.gz", 1, None, 50_000, marks=slow),
        pytest.param("agentic_coding_100_sessions.jsonl.gz", 8, 512, 3_000, marks=slow),
        pytest.param("agentic_coding_100_sessions.jsonl.gz", 8, 512, 10_000, marks=slow),
        pytest.param("agentic_coding_100_sessions.jsonl.gz", 1, 64, 40_000, marks=slow),
    ],
)
@pytest.mark.parametrize("name", PLAIN)
def test_on_real_traces(traces: Path, name: str, file: str, every: int, block_tokens: int | None, size: int) -> None:
    if not (traces / file).exists():
        pytest.skip(f"no {file} among the traces")
    policy, plain = PLAIN[name]
    paths = build_paths(open_trace(traces / file, block_tokens=block_tokens))
    assert replay(paths, policy(), size).hit_blocks == plain(read_plainly(traces / file, every), size)
