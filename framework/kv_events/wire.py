"""KV events on the wire: msgpack as vLLM sends it, and the packages that this takes."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

from framework.errors import ConfigError
from framework.interfaces.records import FieldError
from framework.kv_events.schema import BlockRemoved, BlockStored, Event, EventBatch, Hash, as_array, from_array

SEQUENCE_BYTES = 8
"""Of a batch's number, unsigned, big endian: the second frame of a message."""
END = (-1).to_bytes(SEQUENCE_BYTES, "big", signed=True)
"""In place of a number: a replay has come to its end."""
_LOW_64_BITS = 2**64 - 1


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


def as_integers(event: Event) -> Event:
    """The event with integers for hashes: the low 64 bits, as vLLM's VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES has them."""
    if isinstance(event, BlockStored):
        above = event.parent_block_hash
        return replace(event, block_hashes=[*map(_integer, event.block_hashes)],
                       parent_block_hash=None if above is None else _integer(above))  # fmt: skip
    if isinstance(event, BlockRemoved):
        return replace(event, block_hashes=[*map(_integer, event.block_hashes)])
    return event


def _integer(name: Hash) -> Hash:
    return int.from_bytes(name, "big") & _LOW_64_BITS if isinstance(name, bytes) else name
