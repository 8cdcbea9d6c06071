"""Outputs for a run's KV events, as its configuration lists them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from framework.config.config import Config
from framework.config.sections import KVEventsOptions
from framework.kv_events.json_lines import JsonLines
from framework.kv_events.publisher import Publisher


def publisher_of(asked: KVEventsOptions) -> Publisher:
    """The publisher at the addresses that were asked for, bound.

    Raises:
        ConfigError: an address that cannot be bound, or a package that is not installed.
    """
    return Publisher(
        asked.endpoint,
        asked.replay_endpoint,
        buffer_steps=asked.buffer_steps,
        hwm=asked.hwm,
        queue_size=asked.max_queue_size,
        topic=asked.topic,
        linger_s=asked.linger_s,
        int_hashes=asked.int_hashes,
    )


def event_file(config: Config, write: Callable[[Mapping[str, Any]], object]) -> JsonLines:
    """The run's file of KV events."""
    asked = config.kv_events
    return JsonLines(
        write,
        clock="steps",
        block_size=config.cache.block_size,
        num_blocks=config.cache.num_blocks,
        report_hits=asked.report_hits,
        token_ids=asked.token_ids,
    )
