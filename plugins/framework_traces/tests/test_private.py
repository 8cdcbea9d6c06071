"""Traces of a live engine: equal blocks stay equal, order is that of arrival, and an engine is never harmed."""

from __future__ import annotations

from pathlib import Path

import pytest

from framework.errors import ConfigError
from framework_traces.private import LiveRequest, PrivateTrace
from framework_workloads.trace import open_trace


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
