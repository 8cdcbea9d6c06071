"""KV events for tests: made of letters, a few of them, and files of their lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from framework_kv_events.schema import BlockRemoved, BlockStored, as_map

STORED = BlockStored(block_hashes=["a", "b"], parent_block_hash=None, token_ids=[], block_size=2, medium="GPU")
AGAIN = BlockStored(block_hashes=["c"], parent_block_hash="a", token_ids=[], block_size=2, medium="GPU")
REMOVED = BlockRemoved(block_hashes=["b"], medium="GPU")
HEADER = {"format": "kvlab-kv-events", "version": 1, "clock": "seconds", "block_size": 2}


def stored(names: str, parent: str | None = None, **facts: Any) -> BlockStored:
    """A store of blocks whose names are letters."""
    given: dict[str, Any] = {"medium": "GPU", "block_size": 4, "token_ids": []} | facts
    return BlockStored(block_hashes=[*names], parent_block_hash=parent, **given)


def removed(names: str, medium: str = "GPU") -> BlockRemoved:
    return BlockRemoved(block_hashes=[*names], medium=medium)


def written(path: Path, *records: Any) -> Path:
    """A file of these records, one a line."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def line(number: int, ts: float, *events: Any) -> dict[str, Any]:
    """One batch, as a stream's file has it."""
    return {"seq": number, "ts": ts, "events": [as_map(event) for event in events]}
