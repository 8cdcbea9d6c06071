"""KV events of the real engines: their structs decode ours; their streams are followed and recorded here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
from vllm.distributed import kv_events as vllm_events
from vllm.v1.core.kv_cache_utils import get_block_hash, maybe_convert_block_hash

from experiments.fidelity import our_side, vllm_side
from experiments.fidelity.streams import Outcome, Talk, grown
from framework_kv_events import schema, zeromq
from framework_kv_events.index import BlockIndex, Follower
from framework_kv_events.schema import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from framework_kv_events.workload import KVEventStream
from framework_kv_events.zeromq import Publisher, Subscriber
from framework_traces.request_log import convert
from framework_workloads.trace import open_trace
from framework_workloads.trace_file import TraceFile

pytestmark = pytest.mark.timeout(600)
NAME = bytes(range(32))
BATCH = EventBatch(
    1.5,
    [
        BlockStored(
            block_hashes=[NAME, NAME[::-1]], parent_block_hash=NAME, token_ids=[1, 2, 3, 4], block_size=2, medium="GPU",
            lora_name="a", extra_keys=[["a", "s"], ["a"]], group_idx=0, session_id="talk",
        ),
        BlockRemoved(block_hashes=[NAME], medium="GPU", group_idx=0),
        AllBlocksCleared(),
    ],
    0,
)  # fmt: skip


# SGLang's package asks for it and uses it in notebooks alone.
sys.modules.setdefault("IPython", ModuleType("IPython"))
DISPLAY = sys.modules.setdefault("IPython.display", ModuleType("IPython.display"))
DISPLAY.HTML = DISPLAY.display = getattr(DISPLAY, "HTML", None)  # type: ignore[attr-defined]


def fields(kind: Any) -> list[str]:
    return [*kind.__struct_fields__]


def test_our_schema_has_the_fields_of_vllms_structs_in_their_order() -> None:
    ours = fields(schema.BlockStored)
    assert ours[:-1] == fields(vllm_events.BlockStored), "and cache_salt, which SGLang says"
    assert fields(schema.BlockRemoved) == fields(vllm_events.BlockRemoved)
    assert fields(vllm_events.EventBatch) == ["ts", "events", "data_parallel_rank"]


def test_vllms_structs_decode_our_messages_and_what_they_encode_is_read_here() -> None:
    found = msgspec.msgpack.Decoder(vllm_events.KVEventBatch).decode(zeromq.encode(BATCH))
    stored, removed, cleared = found.events
    assert isinstance(stored, vllm_events.BlockStored)
    assert (stored.block_hashes, stored.parent_block_hash) == ([NAME, NAME[::-1]], NAME)
    assert (stored.token_ids, stored.block_size, stored.medium, stored.lora_name) == ([1, 2, 3, 4], 2, "GPU", "a")
    assert (stored.extra_keys, stored.group_idx, stored.session_id) == ([("a", "s"), ("a",)], 0, "talk")
    assert removed == vllm_events.BlockRemoved(block_hashes=[NAME], medium="GPU", group_idx=0)
    assert isinstance(cleared, vllm_events.AllBlocksCleared)
    assert (found.ts, found.data_parallel_rank) == (1.5, 0)
    again = zeromq.decode(msgspec.msgpack.encode(found))
    assert zeromq.encode(again) == zeromq.encode(BATCH)


@pytest.fixture
def addresses(tmp_path: Path) -> tuple[str, str]:
    return f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay"


class Recorder:
    """`python -m framework record_events` in a process of its own."""

    def __init__(self, addresses: tuple[str, str], out: Path, *options: str) -> None:
        self.out = out
        command = [sys.executable, "-m", "framework", "record_events", addresses[0], "--replay", addresses[1],
                   "--out", str(out), *options]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
                                        env={**os.environ, "PYTHONUNBUFFERED": "1"})  # fmt: skip
        deadline = time.monotonic() + 60
        while not out.exists():
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def finish(self) -> str:
        time.sleep(1.0)
        self.process.send_signal(signal.SIGINT)
        said, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0
        return said


def served_by_vllm(
    talks: list[Talk], addresses: tuple[str, str], monkeypatch: pytest.MonkeyPatch, *, report: str, **limits: Any
) -> tuple[Outcome, Any]:
    """vLLM's Scheduler with its own ZmqEventPublisher, whose requests report hits as `report` says."""
    make = vllm_side.request_of

    def reporting(*arguments: Any, **facts: Any) -> Any:
        request = make(*arguments, **facts)
        request.kv_cache_report_mode = report
        return request

    monkeypatch.setattr(vllm_side, "request_of", reporting)
    scheduler = vllm_side.scheduler_of(events=True, **limits)
    scheduler.kv_event_publisher = vllm_events.ZmqEventPublisher(0, *addresses)
    return vllm_side.run(talks, scheduler), scheduler


def in_pool(scheduler: Any) -> dict[Any, int]:
    """How many blocks of vLLM's own pool hold each content, by the names that its events have."""
    found: dict[Any, int] = {}
    for block in scheduler.kv_cache_manager.block_pool.blocks:
        if block.block_hash is not None:
            name = maybe_convert_block_hash(get_block_hash(block.block_hash))
            found[name] = found.get(name, 0) + 1
    return found


@pytest.mark.parametrize("report", ["incremental", "full"])
def test_an_index_that_follows_vllms_publisher_is_vllms_pool(
    report: str, addresses: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome, scheduler = served_by_vllm(grown(300), addresses, monkeypatch, report=report, num_blocks=200)
    assert len(outcome.evicted) > 500
    follower = Follower(BlockIndex(report_hits=report == "full"))
    with Subscriber(*addresses) as subscriber:  # after the fact: all of it from the replay endpoint
        follower.replay = subscriber.again
        deadline = time.monotonic() + 30
        while scheduler.kv_event_publisher._event_queue.qsize():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        batches = [*subscriber.again(0)]
        for number, batch in batches[:5]:
            assert follower.take(number, batch)
        assert follower.take(*batches[-1]), "the gap in between was asked for"
    scheduler.kv_event_publisher.shutdown()
    assert follower.num_recovered == len(batches) - 6
    index, pool = follower.index.copies[("GPU", 0)], in_pool(scheduler)
    if report == "incremental":
        assert follower.index.num_unknown_removals == 0
        assert index == pool
        return
    # What two requests compute from the root is stored twice, and a report of it would say the same.
    assert index.keys() <= pool.keys()
    assert len(pool) - len(index) <= 3
    assert follower.index.num_unknown_removals <= 3


def test_a_recording_of_vllm_hits_in_our_replay_what_vllm_hit(
    addresses: tuple[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    talks = grown(400)
    recorder = Recorder(addresses, tmp_path / "trace.jsonl", "--report-hits")
    outcome, scheduler = served_by_vllm(
        talks, addresses, monkeypatch, report="full", num_blocks=200, max_batch_requests=1
    )
    said = recorder.finish()
    scheduler.kv_event_publisher.shutdown()
    assert "0 were lost, 0 messages were damaged" in said
    stream = KVEventStream(path=recorder.out)
    assert sum(1 for _ in stream.requests()) <= len(talks)
    facts = stream.facts()
    hits = sum(outcome.hits.values())
    assert hits > 10_000
    assert facts["recorded_hit_blocks"] * 16 == hits
    assert facts["recorded_final_blocks"] == len(in_pool(scheduler))
    assert facts["recorded_lost_blocks"] > 0
    text = recorder.out.read_text()
    assert not any(str(name) in text for name in in_pool(scheduler))
    assert replayed_hits(recorder.out) == hits


def replayed_hits(path: Path) -> int:
    from framework.replay.items import trace_items

    requests = [*trace_items(iter(TraceFile(path=path, format="framework_kv_events.workload:KVEventTrace").requests()))]
    unique = iter(range(2**30, 2**31))
    talks = [
        Talk(request.tokens, np.array([next(unique)] if request.output is None else request.output, dtype=np.int32))
        for request in requests
    ]
    settings = our_side.Settings(
        num_blocks=200,
        max_batch_requests=1,
        allocator={"name": "prefix", "watermark": 0.0},
        hash=vllm_side.hash_scheme(),
    )
    return sum(our_side.run(talks, settings).hits.values())


@pytest.fixture
def sglang_publisher(addresses: tuple[str, str]) -> Iterator[Any]:
    events = pytest.importorskip("sglang.srt.disaggregation.kv_events")
    made = events.ZmqEventPublisher(0, *addresses)
    yield made
    made.shutdown()


def test_sglangs_publisher_is_recorded(addresses: tuple[str, str], sglang_publisher: Any, tmp_path: Path) -> None:
    from sglang.srt.disaggregation import kv_events as events

    recorder = Recorder(addresses, tmp_path / "trace.jsonl")
    time.sleep(1.0)
    chain = [-5, 7, 2**62]
    sglang_publisher.publish(events.KVEventBatch(ts=100.0, events=[
        events.BlockStored(block_hashes=chain, parent_block_hash=None, token_ids=[1, 2, 3], block_size=1, lora_id=None,
                           medium=events.StorageMedium.GPU, cache_salt="s", session_id="talk"),
    ]))  # fmt: skip
    sglang_publisher.publish(events.KVEventBatch(ts=110.0, events=[
        events.BlockRemoved(block_hashes=[2**62], medium=events.StorageMedium.GPU),
        events.BlockStored(block_hashes=[8], parent_block_hash=7, token_ids=[4], block_size=1, lora_id=None,
                           medium=events.StorageMedium.GPU),
        events.BlockStored(block_hashes=[2**62], parent_block_hash=7, token_ids=[3], block_size=1, lora_id=None,
                           medium=events.StorageMedium.CPU),
    ]))  # fmt: skip
    assert "2 batches" in recorder.finish()
    stream = KVEventStream(path=recorder.out)
    first, second = stream.requests()
    assert first.tokens is not None
    assert second.tokens is not None
    assert first.tokens[:2].tolist() == second.tokens[:2].tolist()
    assert second.arrival_s == 10.0
    facts = stream.facts()
    assert (facts["recorded_hit_blocks"], facts["recorded_removed_blocks"], facts["recorded_final_blocks"]) == (2, 1, 3)
    assert facts["recorded_stored_by_medium"] == {"CPU_PINNED": 1, "GPU": 4}
    assert '"talk"' not in recorder.out.read_text()


def test_our_publisher_speaks_to_a_client_of_vllms(addresses: tuple[str, str]) -> None:
    """The replay protocol of vLLM's own example subscriber: a REQ-like client that reads up to the end marker."""
    import zmq

    made = Publisher(*addresses)
    context = zmq.Context()
    try:
        for number in range(3):
            made.put(number, 0.0, BATCH.events)
        made.facts()
        client = context.socket(zmq.DEALER)
        client.connect(addresses[1])
        client.send_multipart((b"", (1).to_bytes(8, "big")))
        seen = []
        while client.poll(5000):
            _, _, number, payload = client.recv_multipart()
            if number == vllm_events.ZmqEventPublisher.END_SEQ:
                break
            seen.append(int.from_bytes(number, "big"))
            msgspec.msgpack.Decoder(vllm_events.KVEventBatch).decode(payload)
        assert seen == [1, 2]
    finally:
        context.destroy(linger=0)
        made.close()


@dataclass
class Asked:
    """The fields of SGLang's GenerateReqInput that matter: importing the real one takes a GPU's packages."""

    rid: str
    input_ids: list[int]
    text: str | None = None
    session_id: str | None = None


def test_a_log_of_sglangs_own_logger_becomes_a_trace(tmp_path: Path) -> None:
    request_logger = pytest.importorskip("sglang.srt.utils.request_logger")
    logger = request_logger.RequestLogger(True, 3, "json", [str(tmp_path / "logs")])
    for number, prompt in enumerate(([*range(3000)], [*range(2990), 7])):
        asked = Asked(f"r{number}", prompt)
        logger.log_received_request(asked)
        facts = {"id": asked.rid, "completion_tokens": 3, "e2e_latency": 0.25}
        logger.log_finished_request(asked, {"text": "secret", "output_ids": [1, 2, 3], "meta_info": facts})
    found = convert(tmp_path / "logs", tmp_path / "trace.jsonl", block_tokens=16)
    assert (found.num_requests, found.num_without_tokens) == (2, 0)
    first, second = open_trace(tmp_path / "trace.jsonl")
    assert (first.input_tokens, second.input_tokens, first.output_tokens) == (3000, 2991, 3)
    shared = int(np.flatnonzero(first.tokens[:2991] != second.tokens)[0])
    assert shared == 2990
