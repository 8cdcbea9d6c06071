"""Traces of a live engine: equal blocks stay equal, order is that of arrival, and an engine is never harmed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from framework.errors import ConfigError
from framework.export.vllm_trace import TraceMethods
from framework.workload.traces import open_trace
from framework.workload.traces.private import LiveRequest, PrivateTrace


def test_equal_hashes_are_equal_tokens_and_the_rest_is_each_requests_own(tmp_path: Path) -> None:
    trace = PrivateTrace(tmp_path / "t", 4)
    for number, hashes in enumerate(([b"a", b"b", b"c"], [b"a", b"b"])):
        trace.arrived(LiveRequest(arrival_s=float(number), prompt_tokens=10, total_tokens=14, hashes=hashes))
        trace.ended()
    trace.close()
    first, second = open_trace(tmp_path / "t")
    assert first.tokens[:8].tolist() == second.tokens[:8].tolist()
    assert first.tokens[8:].tolist() != second.tokens[8:].tolist()
    assert (first.input_tokens, first.output_tokens) == (10, 4)
    assert first.block_tokens == 4


def test_requests_wait_for_those_that_came_before_them(tmp_path: Path) -> None:
    trace = PrivateTrace(tmp_path / "t", 4)
    early, late, never = (LiveRequest(arrival_s=at, prompt_tokens=5) for at in (0.0, 1.0, 2.0))
    for request in (early, late, never):
        trace.arrived(request)
    late.total_tokens = 6
    trace.ended()
    assert trace.num_requests == 0
    early.total_tokens = 7
    trace.ended()
    assert trace.num_requests == 2
    trace.close()
    trace.close()
    assert [one.output_tokens for one in open_trace(tmp_path / "t")] == [2, 1], "what did not end is left out"


def test_a_file_that_is_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("precious")
    with pytest.raises(ConfigError, match="is there already"):
        PrivateTrace(tmp_path / "t", 4)
    with pytest.raises(ConfigError, match="cannot be written"):
        PrivateTrace(tmp_path / "absent" / "t", 4)


class Request(SimpleNamespace):
    """What the connector reads of vLLM's Request; tests/engines runs it inside vLLM."""

    def __init__(self, name: str, prompt: int) -> None:
        super().__init__(request_id=name, num_prompt_tokens=prompt, num_tokens=prompt, session_id="talk", priority=3,
                         block_hashes=[b"a"])  # fmt: skip


def test_the_connector_writes_what_has_ended_and_survives_a_file_that_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    connector: Any = TraceMethods()
    connector.path = tmp_path / "t"
    connector.bind_kv_cache_manager(SimpleNamespace(block_pool=SimpleNamespace(hash_block_size=4)))
    one, two = Request("1", 5), Request("2", 6)
    connector.on_new_request(one)
    connector.on_new_request(two)
    one.num_tokens = 8
    assert connector.request_finished_all_groups(one, ()) == (False, None)
    (only,) = open_trace(tmp_path / "t")
    assert (only.input_tokens, only.output_tokens, only.priority) == (5, 3, -3)
    assert only.session not in (None, "talk")

    def full(record: Any) -> None:
        raise OSError(28, "No space left on device")

    connector.trace._put = full
    assert connector.request_finished_all_groups(two, ()) == (False, None)
    assert "the recording ends here, vLLM goes on" in caplog.text
    connector.on_new_request(Request("3", 5))
    connector.request_finished_all_groups(Request("3", 5), ())
    connector.shutdown()
