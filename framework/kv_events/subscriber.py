"""A subscriber of KV events over ZeroMQ: batches as they come, and those asked for again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from framework.errors import ConfigError
from framework.interfaces.records import FieldError
from framework.kv_events.follower import Numbered
from framework.kv_events.wire import END, SEQUENCE_BYTES, decode, package

_ANSWER_S = 5.0


class Subscriber:
    """Connects to a publisher, ours, vLLM's or SGLang's, which need not be there yet. A context manager.

    A message that is damaged is left out, and so a gap.

    Args:
        endpoint, replay_endpoint: where the publisher is; None: nothing can be asked for again.
        topic: only messages whose first frame begins so.
        hwm: messages that may wait to be read here.

    Attributes:
        endpoint: as given.
        num_damaged: messages that were no batches. first_damage: why the first was none.

    Raises:
        ConfigError: a package is missing, or no such address.
    """

    def __init__(
        self, endpoint: str, replay_endpoint: str | None = None, *, topic: str = "", hwm: int = 1_000_000
    ) -> None:
        zmq = package("zmq")
        package("msgspec")
        self._zmq, self.endpoint, self._replay_endpoint = zmq, endpoint, replay_endpoint
        self.num_damaged, self.first_damage = 0, ""
        self._context = zmq.Context()
        self._messages = self._context.socket(zmq.SUB)
        self._messages.setsockopt(zmq.RCVHWM, hwm)
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
            found = self._numbered(self._messages.recv_multipart())
            if found is not None:
                yield found

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
                found = self._numbered(frames)
                if found is not None:
                    yield found
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
