"""Our own trace format: what is checked in a line, and workloads written in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_engines import make_engine

from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.errors import WorkloadError
from framework.registry.components import build_allocator
from framework.replay.items import feed, trace_items
from framework.workload import stream
from framework_workloads.trace import open_trace
from framework_workloads.trace.own_format import as_trace


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"input_tokens": 3, "output_tokens": 2, "n": 0}, "n: expected"),
        ({"input_tokens": 3, "output_tokens": 2, "n": "x"}, "n: expected"),
        ({"input_tokens": 3, "output_tokens": 2, "n": 2, "beam_width": 2}, "n: expected"),
        ({"tokens": [1, 2], "input_tokens": 3, "output_tokens": 1}, "input_tokens: says"),
        ({"tokens": [1, 2], "output": [1], "output_tokens": 2}, "output_tokens: says"),
        ({"input_tokens": 2, "output": [1, 2], "output_tokens": 0}, "output_tokens: says"),
        ({"tokens": [1, 2], "output_tokens": 0, "contents": [[0, 3, "a"]]}, "contents: content 'a' covers"),
        ({"input_tokens": 2, "block_ids": [1], "output_tokens": 0, "contents": [[0, 2, "a"]]}, "contents: expected be"),
    ],
)
def test_a_line_that_contradicts_itself_is_named(tmp_path: Path, line: dict[str, Any], message: str) -> None:
    path = tmp_path / "t.jsonl"
    header = {"format": "kvlab-trace", "version": 1, "block_tokens": 16}
    path.write_text(f"{json.dumps(header)}\n{json.dumps({'arrival_s': 0, **line})}\n")
    with pytest.raises(WorkloadError, match=rf"t\.jsonl:2: {message}"):
        list(open_trace(path))


def test_replay_forks_what_the_trace_asks_for() -> None:
    allocator = build_allocator("cow", "lru", "sha256", num_blocks=2000, block_size=16, max_model_len=4096)
    engine = make_engine(allocator, ReplayExecutor(constant_step(0.01)), max_model_len=4096)
    requests = list(as_trace(stream("forks", {"num_requests": 8, "beam_share": 0.0, "n": 3}), 16))
    for _ in feed(engine, trace_items(requests)):
        pass
    engine.check()
    assert engine.metrics.num_forks == 16, "two further samples each"
    assert engine.metrics.num_output_tokens == 3 * sum(r.output_tokens for r in requests)
