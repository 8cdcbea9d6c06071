"""A trace that a connector writes inside vLLM's own scheduler replays here as vLLM served it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from experiments.fidelity import our_side, vllm_side
from experiments.fidelity.streams import Talk, grown
from experiments.live.server import connector_config
from framework.replay.items import trace_items
from framework_cache_only.description import describe
from framework_workloads.trace import open_trace

pytestmark = pytest.mark.timeout(600)


def transfer(path: Path, **options: Any) -> dict[str, Any]:
    return connector_config("TraceConnector", "vllm_trace", path=str(path), **options)


def test_the_replay_of_the_trace_hits_request_by_request_what_vllm_hit(tmp_path: Path) -> None:
    talks, path = grown(400), tmp_path / "trace.jsonl"
    stock = vllm_side.run(talks, vllm_side.scheduler_of(num_blocks=200, max_batch_requests=1))
    scheduler = vllm_side.scheduler_of(num_blocks=200, max_batch_requests=1, transfer=transfer(path))
    outcome = vllm_side.run(talks, scheduler)
    scheduler.shutdown()
    assert (outcome.hits, outcome.steps, outcome.evicted) == (stock.hits, stock.steps, stock.evicted), "it only looks"
    requests = [*open_trace(path)]
    assert [request.input_tokens for request in requests] == [len(talk.prompt) for talk in talks]
    assert [request.output_tokens for request in requests] == [len(talk.output) for talk in talks]
    again = [Talk(request.tokens, request.output) for request in trace_items(iter(requests))]
    settings = our_side.Settings(
        num_blocks=200, max_batch_requests=1, allocator={"name": "prefix", "watermark": 0.0}, hash="sha256"
    )
    original, recorded = our_side.run(talks, settings), our_side.run(again, settings)
    assert recorded.hits == original.hits == outcome.hits
    assert len(recorded.evicted) == len(original.evicted) == len(outcome.evicted) > 500


def test_a_trace_of_requests_in_flight_together_is_in_order_of_arrival_and_private(tmp_path: Path) -> None:
    talks, path = grown(120), tmp_path / "trace.jsonl"
    scheduler = vllm_side.scheduler_of(num_blocks=300, transfer=transfer(path))
    vllm_side.run(talks, scheduler)
    scheduler.shutdown()
    requests = [*open_trace(path)]
    assert [request.input_tokens for request in requests] == [len(talk.prompt) for talk in talks]
    assert [request.arrival_s for request in requests] == sorted(request.arrival_s for request in requests)
    assert path.stat().st_mode & 0o077 == 0
    text = path.read_text()
    assert re.search(r"\b10001\b", text) is None, "a prompt's token"
    sharing = describe(open_trace(path))[0].sharing
    assert sharing is not None
    assert sharing.hit_rate_full_blocks > 0.5
