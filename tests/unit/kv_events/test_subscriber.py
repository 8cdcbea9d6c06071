"""A subscriber of KV events: damaged messages, silent publishers, addresses that are none."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framework.errors import ConfigError
from framework.kv_events import subscriber as subscriber_module
from framework.kv_events.schema import AllBlocksCleared, EventBatch
from framework.kv_events.subscriber import Subscriber
from framework.kv_events.wire import END, encode

zmq: Any = pytest.importorskip("zmq", reason="KV events over ZeroMQ need pyzmq: pip install -e '.[kv-events]'")
pytest.importorskip("msgspec", reason="KV events over ZeroMQ need msgspec")
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


def test_only_the_topic_that_was_asked_for_comes(sender: tuple[str, Any]) -> None:
    address, socket = sender
    with Subscriber(address, topic="kv") as subscriber:
        while not subscriber._messages.poll(20):
            socket.send_multipart((b"else", b"\0" * 8, GOOD))
            socket.send_multipart((b"kv", (7).to_bytes(8, "big"), GOOD))
        assert {number for number, _ in subscriber.batches(0.2)} == {7}


def test_a_publisher_that_does_not_answer_is_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriber_module, "_ANSWER_S", 0.2)
    silent = Subscriber(f"ipc://{tmp_path}/kv", f"ipc://{tmp_path}/nobody")
    with silent, pytest.raises(TimeoutError, match="did not answer within"):
        [*silent.again(0)]
    with Subscriber(f"ipc://{tmp_path}/kv") as subscriber, pytest.raises(TimeoutError, match="no replay endpoint"):
        [*subscriber.again(0)]


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="is no address"):
        Subscriber("nowhere")


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
