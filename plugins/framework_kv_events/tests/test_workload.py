"""Recorded KV events as a workload and as a trace."""

from __future__ import annotations

from pathlib import Path

import pytest
from kv_event_lines import AGAIN, HEADER, REMOVED, STORED, line, written
from synthetic_workloads import example

from framework.errors import WorkloadError
from framework_kv_events.schema import BlockStored
from framework_kv_events.workload import KVEventStream
from framework_workloads.trace import open_trace


def test_a_file_that_is_no_stream_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "else.jsonl", {"timestamp": 0})
    with pytest.raises(WorkloadError, match="no stream of KV events"):
        next(KVEventStream(path=path).requests())
    with pytest.raises(WorkloadError, match="no such file; a run with"):
        next(KVEventStream(path=tmp_path / "absent").requests())


def test_lines_that_come_twice_or_too_late_change_nothing(tmp_path: Path) -> None:
    once = written(tmp_path / "once", HEADER, line(0, 0, STORED), line(1, 9, AGAIN))
    twice = written(tmp_path / "twice", HEADER, line(0, 0, STORED), line(0, 0, STORED), line(1, 9, AGAIN),
                    line(0, 0, STORED))  # fmt: skip
    one, two = KVEventStream(path=once), KVEventStream(path=twice)
    assert [*one.requests()] == [*two.requests()]
    assert one.facts() == two.facts()


def test_a_gap_is_counted_and_the_pool_is_unknown_after_it(tmp_path: Path) -> None:
    stream = KVEventStream(path=written(tmp_path / "gap", HEADER, line(0, 0, STORED), line(3, 9, AGAIN)))
    assert len([*stream.requests()]) == 2
    assert stream.facts()["recorded_gaps"] == 1
    assert stream.facts()["recorded_missing_batches"] == 2
    assert stream.facts()["recorded_final_blocks"] == 1


def test_the_block_size_is_the_headers_or_the_first_stores_or_must_be_given(tmp_path: Path) -> None:
    bare = {"format": "kvlab-kv-events", "version": 1}
    assert open_trace(written(tmp_path / "a", HEADER, line(0, 0, REMOVED))).block_tokens == 2
    assert open_trace(written(tmp_path / "b", bare, line(0, 0, STORED))).block_tokens == 2
    assert open_trace(written(tmp_path / "c", line(0, 0, STORED))).block_tokens == 2
    late = written(tmp_path / "d", bare, line(0, 0, REMOVED), line(1, 0, STORED))
    with pytest.raises(WorkloadError, match="block_size: neither a header nor the first batch says it"):
        open_trace(late)
    assert sum(1 for _ in open_trace(late, block_tokens=2)) == 1
    with pytest.raises(WorkloadError, match="0 requests"):
        [*open_trace(written(tmp_path / "e", bare))]


def test_a_request_of_more_tokens_than_can_be_is_refused_before_it_is_made(tmp_path: Path) -> None:
    huge = BlockStored(block_hashes=[*map(str, range(200))], parent_block_hash=None, token_ids=[], block_size=2**20)
    path = written(tmp_path / "huge", line(0, 0, huge))
    with pytest.raises(WorkloadError, match="a request of 209715200 tokens"):
        [*KVEventStream(path=path).requests()]
    with pytest.raises(WorkloadError, match="a request of 209715200 tokens"):
        [*open_trace(path)]


def test_kv_events_whose_time_goes_back_are_refused(tmp_path: Path) -> None:
    path = example("kv_events", tmp_path)
    path.write_text(path.read_text().replace('"ts": 99', '"ts": 0'))
    with pytest.raises(WorkloadError, match=r"events\.jsonl:3: ts: 0\.0 s after 1\.0 s"):
        list(open_trace(path))
