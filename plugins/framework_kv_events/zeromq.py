"""KV events over ZeroMQ, as vLLM and SGLang send them: msgpack, a publisher and a subscriber.

A message is three frames: a topic, the batch's number (unsigned, big endian) and its msgpack. Batches that were missed
are asked for at another address: a number is answered with all batches from there on, then a message numbered `END`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from framework.errors import ConfigError
from framework_kv_events.schema import Event, EventBatch, Numbered, as_array, from_array
from framework_kv_events.stream import Sink
from framework_workloads.trace.format import FieldError

SEQUENCE_BYTES = 8
"""Size of a batch's number, unsigned, big endian: the second frame of a message."""
END = (-1).to_bytes(SEQUENCE_BYTES, "big", signed=True)
"""In place of a number: a replay has come to its end."""

_POLL_S = 0.02
_CLOSE_S = 2.0
_ANSWER_S = 5.0
_KEPT_BATCHES = 10_000
_MOST_MESSAGES = 100_000
_MOST_WAITING = 100_000
_MOST_UNREAD = 1_000_000


def _zeromq() -> Any:
    """`zmq`, which is installed only where KV events travel.

    Raises:
        ConfigError: it is not installed, and how to install it.
    """
    try:
        import zmq
    except ImportError as error:
        raise ConfigError(
            "KV events over ZeroMQ need pyzmq, which is not installed: pip install 'kvcache-framework[kv-events]'"
        ) from error
    return zmq


def encode(batch: EventBatch) -> bytes:
    """The msgpack of a batch, as vLLM's structs decode it."""
    return msgspec.msgpack.encode(as_array(batch))


def decode(data: bytes) -> EventBatch:
    """The batch of a message's last frame, from vLLM, SGLang or here.

    Raises:
        FieldError: no msgpack, or no batch.
    """
    try:
        record = msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FieldError("message", f"no msgpack: {error}") from error
    return from_array(record)


class Publisher(Sink):
    """Sends each batch as `[empty topic, number, msgpack]` from a thread of its own.

    NOTE 1. It never holds up the run that it follows, nor fails it. A full queue loses the batch: its number is used
    up, so a subscriber sees the gap, and `facts` counts it. A slow subscriber loses what exceeds `_MOST_MESSAGES`,
    which ZeroMQ drops for it alone. A batch that cannot be sent is counted, with the first reason.
    NOTE 2. The last `_KEPT_BATCHES` can be asked for again: eight bytes with a number to the replay endpoint are
    answered with all batches from there on and a message whose number is -1.

    Args:
        endpoint, replay_endpoint: addresses to bind, such as tcp://127.0.0.1:5557; None: no replay.

    Raises:
        ConfigError: a package is missing, or an address cannot be bound.
    """

    def __init__(self, endpoint: str, replay_endpoint: str | None = None) -> None:
        zmq = _zeromq()
        self._queue: queue.Queue[tuple[int, float, Sequence[Event]]] = queue.Queue(_MOST_WAITING)
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=_KEPT_BATCHES)
        self._closing = False
        self._last_send = float("inf")
        self.num_dropped = self.num_failed = 0
        self.first_error = ""
        self._context = zmq.Context()
        try:
            self._sender = self._socket(zmq.PUB, zmq.SNDHWM, _MOST_MESSAGES)
            self.endpoint = _bind(self._sender, endpoint, "publish", zmq)
            self._replies, self.replay_endpoint = None, None
            if replay_endpoint is not None:
                self._replies = self._socket(zmq.ROUTER, zmq.SNDHWM, 2 * (_KEPT_BATCHES + 1))
                self.replay_endpoint = _bind(self._replies, replay_endpoint, "replay_endpoint", zmq)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._thread = threading.Thread(target=self._work, name="kv-events", daemon=True)
        self._thread.start()

    def _socket(self, kind: int, option: int, value: int) -> Any:
        socket = self._context.socket(kind)
        socket.setsockopt(option, value)
        return socket

    def put(self, sequence: int, step: float, events: Sequence[Event]) -> None:
        """See Sink; the time on the wire is the wall clock's."""
        try:
            self._queue.put_nowait((sequence, time.time(), events))
        except queue.Full:
            self.num_dropped += 1

    def close(self) -> None:
        """Send what waits, for a second or two at most, and close. Idempotent."""
        if self._closing:
            return
        self._last_send = time.monotonic() + _CLOSE_S / 2
        self._closing = True
        self._thread.join(_CLOSE_S)
        if not self._thread.is_alive():
            self._context.destroy(linger=int(1000 * _CLOSE_S))

    def facts(self) -> dict[str, Any]:
        """What the run's result says of it, once what waits is sent, for which it waits a second or two."""
        deadline = time.monotonic() + _CLOSE_S
        while self._queue.unfinished_tasks and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(_POLL_S / 4)
        facts: dict[str, Any] = {
            "kv_event_endpoint": self.endpoint,
            "kv_event_dropped_batches": self.num_dropped,
            "kv_event_failed_batches": self.num_failed,
        }
        return facts | ({"kv_event_error": self.first_error} if self.first_error else {})

    def _work(self) -> None:
        while not self._closing or (not self._queue.empty() and time.monotonic() < self._last_send):
            if self._replies is not None and self._replies.poll(0):
                self._guarded(self._answer)
            with suppress(queue.Empty):
                item = self._queue.get(timeout=_POLL_S)
                self._guarded(self._send, *item)
                self._queue.task_done()

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception as error:  # whatever it is, the run goes on
            self.num_failed += 1
            self.first_error = self.first_error or f"{type(error).__name__}: {error}"

    def _send(self, sequence: int, now: float, events: Sequence[Event]) -> None:
        number, data = sequence.to_bytes(SEQUENCE_BYTES, "big"), encode(EventBatch(now, events, 0))
        self._kept.append((number, data))
        self._sender.send_multipart((b"", number, data))

    def _answer(self) -> None:
        assert self._replies is not None
        frames = self._replies.recv_multipart()
        client, wanted = frames[0], frames[-1]
        if len(frames) != 3 or len(wanted) != SEQUENCE_BYTES:
            return
        for number, data in [*self._kept]:
            if number >= wanted:
                self._replies.send_multipart((client, b"", b"", number, data))
        self._replies.send_multipart((client, b"", b"", END, b""))


def _bind(socket: Any, address: str, name: str, zmq: Any) -> str:
    """Bind, and return the address with the port that was taken for port 0.

    Raises:
        ConfigError: no such address, or it is taken.
    """
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        raise ConfigError(
            f"kv_events.{name}={address} cannot be bound: {error}; choose another address, or end who holds it"
        ) from error
    bound: str = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    return bound


class Subscriber:
    """Connects to a publisher, ours, vLLM's or SGLang's, which need not be there yet. A context manager.

    A message that is damaged is left out, and so a gap.

    Args:
        endpoint, replay_endpoint: where the publisher is; None: nothing can be asked for again.
        topic: only messages whose first frame begins so.

    Attributes:
        endpoint: as given.
        num_damaged: messages that were no batches. first_damage: why the first was none.

    Raises:
        ConfigError: a package is missing, or no such address.
    """

    def __init__(self, endpoint: str, replay_endpoint: str | None = None, *, topic: str = "") -> None:
        zmq = _zeromq()
        self._zmq, self.endpoint, self._replay_endpoint = zmq, endpoint, replay_endpoint
        self.num_damaged, self.first_damage = 0, ""
        self._context = zmq.Context()
        self._messages = self._context.socket(zmq.SUB)
        self._messages.setsockopt(zmq.RCVHWM, _MOST_UNREAD)
        self._messages.setsockopt(zmq.SUBSCRIBE, topic.encode())
        try:
            self._connect(self._messages, endpoint)
            if replay_endpoint is not None:  # a wrong address is found now, not at the first gap
                self._connect(self._context.socket(zmq.DEALER), replay_endpoint).close(linger=0)
        except BaseException:
            self.close()
            raise

    def _connect(self, socket: Any, address: str) -> Any:
        try:
            socket.connect(address)
        except self._zmq.ZMQError as error:
            socket.close(linger=0)
            raise ConfigError(
                f"{address!r} is no address to connect to: {error}; as in tcp://127.0.0.1:5557"
            ) from error
        return socket

    def batches(self, timeout_s: float) -> Iterator[Numbered]:
        """Each batch as it comes, until none has come for so long."""
        while self._messages.poll(1000 * timeout_s):
            numbered = self._numbered(self._messages.recv_multipart())
            if numbered is not None:
                yield numbered

    def again(self, number: int) -> Iterator[Numbered]:
        """The batches from `number` on that the publisher still has.

        Raises:
            TimeoutError: there is no replay endpoint, or it did not answer to the end.
        """
        if self._replay_endpoint is None:
            raise TimeoutError("no replay endpoint")
        socket = self._connect(self._context.socket(self._zmq.DEALER), self._replay_endpoint)
        try:
            socket.send_multipart((b"", number.to_bytes(SEQUENCE_BYTES, "big")))
            deadline = time.monotonic() + _ANSWER_S
            while socket.poll(max(0.0, 1000 * (deadline - time.monotonic()))):
                frames = socket.recv_multipart()
                if len(frames) > 1 and frames[-2] == END:
                    return
                numbered = self._numbered(frames)
                if numbered is not None:
                    yield numbered
            raise TimeoutError(f"{self._replay_endpoint} did not answer within {_ANSWER_S} s")
        finally:
            socket.close(linger=0)

    def _numbered(self, frames: list[bytes]) -> Numbered | None:
        """The batch of a message, whose last two frames are its number and its msgpack."""
        try:
            if len(frames) < 2 or len(frames[-2]) != SEQUENCE_BYTES:
                raise FieldError("message", f"expected topic, number and batch, found {len(frames)} frames")
            return int.from_bytes(frames[-2], "big"), decode(frames[-1])
        except FieldError as error:
            self.num_damaged += 1
            self.first_damage = self.first_damage or str(error)
            return None

    def close(self) -> None:
        """Disconnect. Idempotent."""
        with suppress(Exception):
            self._context.destroy(linger=0)

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
