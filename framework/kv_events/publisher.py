"""A publisher of KV events over ZeroMQ, as vLLM's and SGLang's: PUB for what happens, ROUTER for what was missed."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from framework.errors import ConfigError
from framework.kv_events.schema import Event, EventBatch
from framework.kv_events.wire import END, SEQUENCE_BYTES, encode, package

_POLL_S = 0.02
_CLOSE_S = 2.0
_KEPT_BATCHES = 10_000
_MOST_MESSAGES = 100_000
_MOST_WAITING = 100_000


class Publisher:
    """Sends each batch as `[empty topic, number, msgpack]` from a thread of its own. A Sink.

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
        zmq = package("zmq")
        package("msgspec")
        self._queue: queue.Queue[tuple[int, float, Sequence[Event]] | None] = queue.Queue(_MOST_WAITING)
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=_KEPT_BATCHES)
        self._again, self._closing = zmq.Again, False
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
        self._closing = True
        with suppress(queue.Full):  # the thread sees `_closing` as well
            self._queue.put_nowait(None)
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
        deadline = None
        while True:
            if self._replies is not None and self._replies.poll(0):
                self._guarded(self._answer)
            if self._closing and deadline is None:
                deadline = time.monotonic() + _CLOSE_S / 2
            try:
                item = self._queue.get(timeout=_POLL_S)
            except queue.Empty:
                if self._closing:
                    return
                continue
            if item is None or (deadline is not None and time.monotonic() > deadline):
                return
            self._guarded(lambda item=item: self._send(*item))
            self._queue.task_done()

    def _guarded(self, work: Any) -> None:
        try:
            work()
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
