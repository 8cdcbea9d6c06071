"""KV events on the wire: msgpack as vLLM sends it, and the packages that this takes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from framework.errors import ConfigError
from framework.interfaces.records import FieldError
from framework.kv_events.schema import EventBatch, as_array, from_array

SEQUENCE_BYTES = 8
"""Of a batch's number, unsigned, big endian: the second frame of a message."""
END = (-1).to_bytes(SEQUENCE_BYTES, "big", signed=True)
"""In place of a number: a replay has come to its end."""


def package(name: str) -> Any:
    """`zmq` or `msgspec`, which are installed only where KV events travel.

    Raises:
        ConfigError: it is not installed, and how to install it.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"KV events over ZeroMQ need pyzmq and msgspec, and {name} is not installed: "
            "pip install 'kvcache-framework[kv-events]'"
        ) from error


def encode(batch: EventBatch) -> bytes:
    """The msgpack of a batch, as vLLM's structs decode it."""
    data: bytes = package("msgspec").msgpack.encode(as_array(batch))
    return data


def decode(data: bytes) -> EventBatch:
    """The batch of a message's last frame, from vLLM, SGLang or here.

    Raises:
        FieldError: no msgpack, or no batch.
    """
    msgspec = package("msgspec")
    try:
        record = msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FieldError("message", f"no msgpack: {error}") from error
    return from_array(record)
