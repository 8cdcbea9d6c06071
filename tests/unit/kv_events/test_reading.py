"""Recorded streams of KV events, as JSON lines and as messages."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from framework.errors import WorkloadError
from framework.kv_events.private import Veil
from framework.kv_events.reading import MAGIC, Header, header_of, is_stream, read_batches
from framework.kv_events.schema import BlockRemoved, BlockStored, EventBatch, as_array, as_map, from_map
from framework.workload.kv_events import KVEventStream
from framework.workload.traces import open_trace

STORED = BlockStored(block_hashes=["a", "b"], parent_block_hash=None, token_ids=[], block_size=2, medium="GPU")
AGAIN = BlockStored(block_hashes=["c"], parent_block_hash="a", token_ids=[], block_size=2, medium="GPU")
REMOVED = BlockRemoved(block_hashes=["b"], medium="GPU")
HEADER = {"format": "kvlab-kv-events", "version": 1, "clock": "seconds", "block_size": 2}


def written(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def line(number: int, ts: float, *events: Any) -> dict[str, Any]:
    return {"seq": number, "ts": ts, "events": [as_map(event) for event in events]}


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


def test_messages_are_read_as_they_came(tmp_path: Path) -> None:
    msgspec = pytest.importorskip("msgspec", reason="messages are msgpack")
    path, raw = tmp_path / "messages", MAGIC
    for number, batch in ((4, EventBatch(1.0, [STORED])), (5, EventBatch(9.0, [AGAIN]))):
        data = msgspec.msgpack.encode(as_array(batch))
        raw += number.to_bytes(8, "big") + len(data).to_bytes(8, "big") + data
    path.write_bytes(raw)
    assert is_stream(path)
    assert [number for number, _ in read_batches(path)] == [4, 5]
    stream = KVEventStream(path=path)
    assert len([*stream.requests()]) == 2
    assert stream.facts()["recorded_missing_batches"] == 4
    assert sum(1 for _ in open_trace(path, block_tokens=2)) == 2
    path.write_bytes(raw[:-3])
    with pytest.raises(WorkloadError, match="message 2: message: the file is cut short"):
        [*read_batches(path)]


@pytest.mark.parametrize(
    ("record", "wrong"),
    [
        ({"seq": 0, "ts": 1, "events": [{"type": "Else"}]}, "type: expected one of BlockStored"),
        ({"seq": 0, "ts": 1, "events": [{"type": "BlockRemoved"}]}, "block_hashes: missing"),
        ({"seq": 0, "ts": 1, "events": [{"type": "BlockRemoved", "block_hashes": [1.5]}]}, "block_hashes: expected"),
        ({"seq": -1, "ts": 1, "events": []}, "seq: expected a whole number"),
        ({"seq": 0, "ts": "now", "events": []}, "ts: expected a finite number"),
        ({"seq": 0, "ts": -1, "events": []}, "ts: expected a finite number"),
        ({"seq": 0, "ts": 1, "events": [{**as_map(STORED), "block_size": 10**9}]}, "block_size: expected 1 to"),
        ({"seq": 0, "ts": 1, "events": [7]}, "event: expected a map"),
        ({"seq": 0, "ts": 1, "events": [{**as_map(STORED), "block_size": 0}]}, "block_size: expected"),
        ({"seq": 0, "ts": 1, "events": [{**as_map(STORED), "parent_block_hash": 0.5}]}, "parent_block_hash: expected"),
        ({"seq": 0, "ts": 1, "events": [{**as_map(STORED), "session_id": 3}]}, "session_id: expected"),
        ({"seq": 0, "ts": 1, "events": [{**as_map(STORED), "group_idx": "0"}]}, "group_idx: expected"),
        ({"seq": 0, "ts": 1, "events": [{**as_map(STORED), "token_ids": None}]}, "token_ids: expected"),
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


def test_a_file_that_is_no_stream_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "else.jsonl", {"timestamp": 0})
    with pytest.raises(WorkloadError, match="no stream of KV events"):
        next(KVEventStream(path=path).requests())
    with pytest.raises(WorkloadError, match="no such file; a run with"):
        next(KVEventStream(path=tmp_path / "absent").requests())


def test_fields_of_later_versions_are_ignored() -> None:
    assert from_map({**as_map(STORED), "brand_new": 1}) == STORED


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


def test_a_veil_keeps_equality_and_nothing_else() -> None:
    veil, other = Veil(), Veil()
    stored = BlockStored(block_hashes=[b"x", b"y"], parent_block_hash=b"x", token_ids=[1, 2], block_size=1,
                         lora_name="secret", extra_keys=[["salt"]], session_id="talk", cache_salt="s")  # fmt: skip
    hidden: Any = veil.event(stored)
    assert hidden.parent_block_hash == hidden.block_hashes[0] != hidden.block_hashes[1]
    assert hidden.token_ids == ()
    assert hidden.extra_keys is hidden.cache_salt is None
    assert "secret" not in str(hidden)
    assert "talk" not in str(hidden)
    assert veil.event(stored) == hidden
    assert other.name(b"x") != veil.name(b"x"), "who guesses a prompt cannot look for it"
    assert Veil(b"key").name(7) == Veil(b"key").name(7) != Veil(b"key").name("7")


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
