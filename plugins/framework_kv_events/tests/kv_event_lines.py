"""Recorded KV events for tests: a few of them, and files of their lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from framework_kv_events.schema import BlockRemoved, BlockStored, as_map

STORED = BlockStored(block_hashes=["a", "b"], parent_block_hash=None, token_ids=[], block_size=2, medium="GPU")
AGAIN = BlockStored(block_hashes=["c"], parent_block_hash="a", token_ids=[], block_size=2, medium="GPU")
REMOVED = BlockRemoved(block_hashes=["b"], medium="GPU")
HEADER = {"format": "kvlab-kv-events", "version": 1, "clock": "seconds", "block_size": 2}


def written(path: Path, *records: Any) -> Path:
    """A file of these records, one a line."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def line(number: int, ts: float, *events: Any) -> dict[str, Any]:
    """One batch, as a stream's file has it."""
    return {"seq": number, "ts": ts, "events": [as_map(event) for event in events]}
