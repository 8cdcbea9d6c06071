"""KV events as values: the fields of vLLM 0.33's BlockStored, BlockRemoved, AllBlocksCleared and event batch.

SGLang 0.5.23 sends the same maps; its `cache_salt` is read as well. A field that is not known here is ignored, so that
streams of later versions can be read; a field that is missing or of another type is an error that names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeAlias

from framework.interfaces.records import FieldError

Hash: TypeAlias = bytes | int | str
"""Names a block's content and all before it: bytes or an integer as sent, or text of a JSON file."""

GPU, CPU = "GPU", "CPU"
"""What vLLM calls the places of blocks; SGLang says CPU_PINNED, DISK and EXTERNAL for those below the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStored:
    """Blocks became findable, each below the one before and the first below `parent_block_hash`.

    Attributes:
        block_hashes: in prompt order.
        parent_block_hash: of the block above the first; None at the root.
        token_ids: of all these blocks, `block_size` each; empty where the sender keeps them to itself.
        block_size: tokens a block.
        lora_id: None; vLLM's older way to say `lora_name`.
        medium: where they lie; None: not said.
        lora_name: the adapter of their namespace.
        extra_keys: what else than tokens each block's hash covers: the adapter, and the salt in the first block.
        group_idx: the KV cache group.
        session_id: of the request that stored them.
        cache_salt: the salt, where it is said here (SGLang).
        The others are what vLLM says of sliding windows, remote places and lookahead hashing; never set here.
    """

    block_hashes: Sequence[Hash]
    parent_block_hash: Hash | None
    token_ids: Sequence[int]
    block_size: int
    lora_id: int | None = field(default=None, metadata={"sent": True})
    medium: str | None = field(default=None, metadata={"sent": True})
    lora_name: str | None = field(default=None, metadata={"sent": True})
    extra_keys: Sequence[Sequence[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: Sequence[Sequence[int]] | None = None
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRemoved:
    """These blocks can no longer be found in `medium`."""

    block_hashes: Sequence[Hash]
    medium: str | None = field(default=None, metadata={"sent": True})
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """Nothing can be found any more, in any medium."""


Event: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared
_KINDS: Mapping[str, Callable[..., Event]] = {
    kind.__name__: kind for kind in (BlockStored, BlockRemoved, AllBlocksCleared)
}


@dataclass(frozen=True, slots=True)
class EventBatch:
    """What one step of an engine did to its cache; whoever reads it sees all of it or nothing.

    Attributes:
        ts: when: seconds since 1970 on the wire, steps in a run directory.
        rank: of the data parallel rank that sent it; None: not said.
    """

    ts: float
    events: Sequence[Event]
    rank: int | None = None


Numbered: TypeAlias = tuple[int, EventBatch]
"""A batch with its number in the stream of one publisher, from 0."""


def as_map(event: Event) -> dict[str, Any]:
    """The tagged map of an event: `type`, and its fields but those that have their default and may be left out."""
    record: dict[str, Any] = {"type": type(event).__name__}
    for one in fields(event):
        value = getattr(event, one.name)
        if one.default is MISSING or value is not None or one.metadata.get("sent"):
            record[one.name] = value
    return record


def from_map(record: Any) -> Event:
    """The event of a tagged map.

    Raises:
        FieldError: no map, an unknown tag, or a field that is missing or wrong.
    """
    if not isinstance(record, Mapping):
        raise FieldError("event", f"expected a map with a type, found {type(record).__name__}")
    kind = _KINDS.get(str(record.get("type")))
    if kind is None:
        raise FieldError("type", f"expected one of {', '.join(_KINDS)}, found {str(record.get('type'))[:40]!r}")
    names = kind.__dataclass_fields__  # type: ignore[attr-defined]
    values = {name: record[name] for name in names if name in record}
    for name in names:
        if name not in values and names[name].default is MISSING:
            raise FieldError(name, f"missing in a {record['type']}")
    for name, value in values.items():
        holds, rule = _RULES.get(name, _ANYTHING)
        if not holds(value):
            raise FieldError(name, f"expected {rule}, values {str(value)[:40]}")
    return kind(**values)


def _is_hash(value: object) -> bool:
    return isinstance(value, (bytes, str)) or type(value) is int


_MOST_TOKENS = 2**20
"""A block of more is taken for damage."""
_TEXT: tuple[Callable[[Any], bool], str] = (lambda value: isinstance(value, (str, type(None))), "text or null")
_ANYTHING: tuple[Callable[[Any], bool], str] = (lambda value: True, "anything")
_RULES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "block_hashes": (
        lambda value: isinstance(value, (list, tuple)) and all(map(_is_hash, value)),
        "a list of hashes: bytes, integers or text",
    ),
    "parent_block_hash": (lambda value: value is None or _is_hash(value), "a hash or null"),
    "token_ids": (lambda value: isinstance(value, (list, tuple)), "a list"),
    "block_size": (lambda value: type(value) is int and 1 <= value <= _MOST_TOKENS, f"1 to {_MOST_TOKENS} tokens"),
    "medium": _TEXT,
    "lora_name": _TEXT,
    "session_id": _TEXT,
    "cache_salt": _TEXT,
    "group_idx": (lambda value: value is None or type(value) is int, "an integer or null"),
}
"""Test of a value, and the rule in words, for each field that anything here relies on."""


def as_array(batch: EventBatch) -> list[Any]:
    """A batch as the array that vLLM's EventBatch is on the wire."""
    return [batch.ts, [as_map(event) for event in batch.events], batch.rank]


def from_array(record: Any) -> EventBatch:
    """The batch of such an array, the rank left out or not.

    Raises:
        FieldError: it is none, or one of its events is not.
    """
    if not isinstance(record, (list, tuple)) or len(record) < 2:
        raise FieldError("batch", "expected an array of a time, a list of events and a rank")
    return batch_of(record[0], record[1], record[2] if len(record) > 2 else None)


def batch_of(ts: Any, events: Any, rank: Any) -> EventBatch:
    """The batch of a time, tagged maps and a rank, as they were read.

    Raises:
        FieldError: one of them is none.
    """
    if isinstance(ts, bool) or not isinstance(ts, (int, float)) or not 0 <= ts < math.inf:
        raise FieldError("ts", f"expected a finite number, at least 0, found {str(ts)[:40]}")
    if not isinstance(events, (list, tuple)):
        raise FieldError("events", f"expected a list, found {str(events)[:40]}")
    if rank is not None and type(rank) is not int:
        raise FieldError("data_parallel_rank", f"expected an integer or null, found {str(rank)[:40]}")
    return EventBatch(float(ts), [from_map(event) for event in events], rank)
