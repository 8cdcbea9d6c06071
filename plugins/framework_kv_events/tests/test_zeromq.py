"""KV events over ZeroMQ: what subscribers get, what they may lose, and that the run never notices."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from framework.errors import ConfigError
from framework_kv_events import zeromq
from framework_kv_events.schema import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from framework_kv_events.zeromq import END, Publisher, Subscriber, decode, encode

zmq: Any = pytest.importorskip("zmq", reason="KV events over ZeroMQ need pyzmq: pip install -e '.[kv-events]'")
ANY = "tcp://127.0.0.1:0"
STORED = BlockStored(block_hashes=[b"\x01" * 32], parent_block_hash=None, token_ids=[1, 2], block_size=2, medium="GPU")


@contextmanager
def published(**limits: int) -> Iterator[Publisher]:
    """A publisher, made with these in place of the module's own limits."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in limits.items():
            patch.setattr(zeromq, name, value)
        made = Publisher(ANY, ANY)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def socket(kind: int, address: str | None, **options: int) -> Iterator[Any]:
    context = zmq.Context()
    made = context.socket(kind)
    for name, value in options.items():
        made.setsockopt(getattr(zmq, name), value)
    if kind == zmq.SUB:
        made.setsockopt(zmq.SUBSCRIBE, b"")
    made.connect(address)
    try:
        yield made
    finally:
        context.destroy(linger=0)


def frames(subscriber: Any, timeout_s: float = 10) -> list[bytes]:
    assert subscriber.poll(1000 * timeout_s), "nothing came"
    found: list[bytes] = subscriber.recv_multipart()
    return found


def asked_again(publisher: Publisher, number: int) -> list[int]:
    with Subscriber(publisher.endpoint, publisher.replay_endpoint) as subscriber:
        return [found for found, _ in subscriber.again(number)]


def test_a_subscriber_gets_topic_number_and_a_batch_as_vllm_sends_it() -> None:
    with published() as made, socket(zmq.SUB, made.endpoint) as subscriber:
        removed = BlockRemoved(block_hashes=[b"\x01" * 32], medium="GPU", group_idx=0)
        deadline = time.monotonic() + 10
        number = 0
        while not subscriber.poll(20) and time.monotonic() < deadline:  # a subscription takes a moment
            made.put(number, 1.0, [STORED, removed, AllBlocksCleared()])
            number += 1
        topic, sequence, data = frames(subscriber)
        assert topic == b"", "as vLLM's by default"
        assert int.from_bytes(sequence, "big") < number
        ts, events, rank = msgspec.msgpack.decode(data)
        assert events == [
            {"type": "BlockStored", "block_hashes": [b"\x01" * 32], "parent_block_hash": None, "token_ids": [1, 2],
             "block_size": 2, "lora_id": None, "medium": "GPU", "lora_name": None},
            {"type": "BlockRemoved", "block_hashes": [b"\x01" * 32], "medium": "GPU", "group_idx": 0},
            {"type": "AllBlocksCleared"},
        ], "as vLLM's structs have it: plugins/framework_engines/tests/engines decodes with them"  # fmt: skip
        assert abs(ts - time.time()) < 60
        assert rank == 0
        assert decode(data).events == [STORED, removed, AllBlocksCleared()]


def test_the_last_batches_can_be_asked_for_again() -> None:
    with published(_KEPT_BATCHES=5) as made:
        for number in range(8):
            made.put(number, 0.0, [STORED])
        made.facts()  # waits until they are sent
        assert asked_again(made, 0) == [3, 4, 5, 6, 7]
        assert asked_again(made, 6) == [6, 7]
        assert asked_again(made, 8) == []


def test_a_request_for_a_replay_that_is_none_is_ignored() -> None:
    with published() as made:
        with socket(zmq.DEALER, made.replay_endpoint) as client:
            client.send_multipart((b"", b"short"))
            client.send_multipart((b"one frame",))
            assert not client.poll(200)
        assert asked_again(made, 0) == []
        assert made.facts()["kv_event_failed_batches"] == 0


def test_a_port_that_is_taken_is_refused_with_what_to_do() -> None:
    with published() as made:
        with pytest.raises(ConfigError, match=r"kv_events\.publish=tcp.*cannot be bound.*choose another address"):
            Publisher(made.endpoint)
        with pytest.raises(ConfigError, match=r"kv_events\.replay_endpoint"):
            Publisher(ANY, made.endpoint)
    with pytest.raises(ConfigError, match="cannot be bound"):
        Publisher("not an address")


def test_a_missing_package_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(ConfigError, match=r"need pyzmq, .*: pip install 'kvcache-framework\[kv-events\]'"):
        Publisher(ANY)


def test_a_full_queue_loses_batches_whose_numbers_are_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    def slowly(batch: EventBatch) -> bytes:
        go.wait(10)
        return encode(batch)

    monkeypatch.setattr(zeromq, "encode", slowly)
    with published(_MOST_WAITING=2) as made:
        began = time.monotonic()
        for number in range(10):
            made.put(number, 0.0, [STORED])
        assert time.monotonic() - began < 5, "the run was held up"
        go.set()
        facts = made.facts()
        assert 7 <= facts["kv_event_dropped_batches"] <= 8, facts
        sent = asked_again(made, 0)
        assert len(sent) == 10 - facts["kv_event_dropped_batches"]


def test_a_batch_that_cannot_be_sent_is_counted_and_the_rest_goes_on() -> None:
    with published() as made:
        made.put(0, 0.0, [BlockStored(block_hashes=[object()], parent_block_hash=None, token_ids=[], block_size=1)])  # type: ignore[list-item]
        made.put(1, 0.0, [STORED])
        facts = made.facts()
        assert facts["kv_event_failed_batches"] == 1
        assert "object" in facts["kv_event_error"]
        assert asked_again(made, 0) == [1]


def test_closing_ends_the_thread_and_frees_the_port() -> None:
    with published() as made:
        address = made.endpoint
    made.close()
    assert not made._thread.is_alive()
    Publisher(address).close()


GOOD = encode(EventBatch(1.0, [AllBlocksCleared()], 0))


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[tuple[str, Any]]:
    context = zmq.Context()
    socket = context.socket(zmq.PUB)
    address = f"ipc://{tmp_path}/kv"
    socket.bind(address)
    yield address, socket
    context.destroy(linger=0)


def test_damaged_messages_are_counted_and_left_out(sender: tuple[str, Any]) -> None:
    address, socket = sender
    messages = [(b"", b"\0" * 8), (b"", b"\0" * 7, GOOD), (b"", b"\0" * 8, b"no msgpack"), (b"", b"\0" * 8, GOOD[:-4])]
    messages.append((b"", b"\0" * 8, b"\x91" * 100_000))  # lists within lists
    with Subscriber(address) as subscriber:
        while not subscriber._messages.poll(20):
            socket.send_multipart((b"", b"\0" * 8, GOOD))
        for message in (*messages, (b"topic", (5).to_bytes(8, "big"), GOOD)):
            socket.send_multipart(message)
        found = [*subscriber.batches(0.3)]
        assert found[0] == (0, EventBatch(1.0, [AllBlocksCleared()], 0))
        assert found[-1][0] == 5
        assert subscriber.num_damaged == 5
        assert subscriber.first_damage


def test_a_publisher_that_does_not_answer_is_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zeromq, "_ANSWER_S", 0.2)
    silent = Subscriber(f"ipc://{tmp_path}/kv", f"ipc://{tmp_path}/nobody")
    with silent, pytest.raises(TimeoutError, match="did not answer within"):
        [*silent.again(0)]
    with Subscriber(f"ipc://{tmp_path}/kv") as subscriber, pytest.raises(TimeoutError, match="no replay endpoint"):
        [*subscriber.again(0)]


def test_an_answer_of_one_frame_is_damaged(tmp_path: Path) -> None:
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.bind(address := f"ipc://{tmp_path}/replay")
    with Subscriber(f"ipc://{tmp_path}/kv", address) as subscriber:
        found = subscriber.again(0)
        answer = threading.Thread(target=lambda: _answer(router, [b"x"], [(5).to_bytes(8, "big"), GOOD], [END, b""]))
        answer.start()
        assert [number for number, _ in found] == [5]
        answer.join()
        assert subscriber.num_damaged == 1
    context.destroy(linger=0)


def _answer(router: Any, *messages: list[bytes]) -> None:
    who = router.recv_multipart()[0]
    for message in messages:
        router.send_multipart([who, *message])
