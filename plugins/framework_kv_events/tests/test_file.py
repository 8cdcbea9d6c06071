"""Recorded streams of KV events, as JSON lines."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from kv_event_lines import HEADER, REMOVED, STORED, line, written

from framework.errors import WorkloadError
from framework_kv_events.file import Header, header_of, is_stream, read_batches
from framework_kv_events.schema import BlockStored, EventBatch, as_array, as_map, from_array


def test_json_lines_are_read_with_a_header_and_without_one(tmp_path: Path) -> None:
    for name, first in (("with", [HEADER]), ("without", [])):
        path = written(tmp_path / name, *first, line(0, 1.0, STORED), line(1, 2.0, REMOVED))
        assert is_stream(path)
        assert [*read_batches(path)] == [(0, EventBatch(1.0, [STORED])), (1, EventBatch(2.0, [REMOVED]))]
    assert header_of(tmp_path / "with") == Header(block_size=2)
    assert header_of(tmp_path / "without") == Header()


def test_batches_as_vllm_writes_them_in_json_are_read(tmp_path: Path) -> None:
    named = BlockStored(block_hashes=[base64.b64encode(b"x" * 32).decode()], parent_block_hash=None, token_ids=[1, 2],
                        block_size=2)  # fmt: skip
    path = written(tmp_path / "vllm.jsonl", as_array(EventBatch(5.0, [named], 0)), [6.0, [as_map(REMOVED)]])
    assert [*read_batches(path)] == [(0, EventBatch(5.0, [named], 0)), (1, EventBatch(6.0, [REMOVED]))]


@pytest.mark.parametrize(
    ("record", "wrong"),
    [
        ({"seq": 0, "ts": 1, "events": [{"type": "Else"}]}, "batch: Invalid value 'Else' .*type"),
        ({"seq": 0, "ts": 1, "events": [{"type": "BlockRemoved", "block_hashes": [1.5]}]}, "block_hashes: expected"),
        ({"seq": -1, "ts": 1, "events": []}, "seq: expected a whole number"),
        ({"seq": 0, "ts": -1, "events": []}, "batch: Expected `float` >= 0"),
        (
            {"seq": 0, "ts": 1, "events": [{**as_map(STORED), "block_size": 10**9}]},
            "batch: Expected `int` <= 1048576 .*block_size",
        ),
        ({"seq": 0, "ts": 1, "events": [{**as_map(STORED), "parent_block_hash": 0.5}]}, "parent_block_hash: expected"),
    ],
)
def test_a_damaged_line_is_named_with_its_field(tmp_path: Path, record: Any, wrong: str) -> None:
    path = written(tmp_path / "bad.jsonl", HEADER, record)
    with pytest.raises(WorkloadError, match=f"bad.jsonl:2: {wrong}"):
        [*read_batches(path)]


def test_a_header_of_another_version_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "new.jsonl", {**HEADER, "version": 2})
    with pytest.raises(WorkloadError, match="this reader knows version 1"):
        header_of(path)


def test_fields_of_later_versions_are_ignored() -> None:
    assert from_array([1.0, [{**as_map(STORED), "brand_new": 1}]]).events == [STORED]
