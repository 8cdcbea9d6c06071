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
_TEXTS = frozenset({"medium", "lora_name", "session_id", "cache_salt"})
_MOST_TOKENS = 2**20
"""A block of more is taken for damage."""


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
    found = {name: record[name] for name in names if name in record}
    for name in names:
        if name not in found and names[name].default is MISSING:
            raise FieldError(name, f"missing in a {record['type']}")
    _check(found)
    return kind(**found)


def _check(found: Mapping[str, Any]) -> None:
    """The fields that anything here relies on."""
    hashes = found.get("block_hashes", ())
    if not isinstance(hashes, (list, tuple)) or not all(map(is_hash, hashes)):
        raise FieldError("block_hashes", "expected a list of hashes: bytes, integers or text")
    if "parent_block_hash" in found and not (found["parent_block_hash"] is None or is_hash(found["parent_block_hash"])):
        raise FieldError("parent_block_hash", "expected a hash or null")
    if "token_ids" in found and not isinstance(found["token_ids"], (list, tuple)):
        raise FieldError("token_ids", "expected a list")
    if "block_size" in found:
        size = found["block_size"]
        if type(size) is not int or not 1 <= size <= _MOST_TOKENS:
            raise FieldError("block_size", f"expected 1 to {_MOST_TOKENS} tokens, found {str(size)[:40]}")
    for name in found.keys() & _TEXTS:
        if not isinstance(found[name], (str, type(None))):
            raise FieldError(name, f"expected text or null, found {type(found[name]).__name__}")
    group = found.get("group_idx")
    if group is not None and type(group) is not int:
        raise FieldError("group_idx", f"expected an integer or null, found {type(group).__name__}")


def is_hash(value: object) -> bool:
    """Whether a value can name a block's content."""
    return isinstance(value, (bytes, str)) or type(value) is int


def as_array(batch: EventBatch) -> list[Any]:
    """A batch as the array that vLLM's EventBatch is on the wire."""
    return [batch.ts, [as_map(event) for event in batch.events], batch.rank]


def from_array(record: Any) -> EventBatch:
    """The batch of such an array, the rank left out or not.

    Raises:
        FieldError: it is none, or one of its events is not.
    """
    if not isinstance(record, (list, tuple)) or len(record) < 2 or not isinstance(record[1], (list, tuple)):
        raise FieldError("batch", "expected an array of a time, a list of events and a rank")
    return EventBatch(time_of(record[0]), [from_map(event) for event in record[1]], rank_of(record[2:3]))


def time_of(value: Any) -> float:
    """A batch's time.

    Raises:
        FieldError: no finite number, or below 0.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise FieldError("ts", f"expected a finite number, at least 0, found {str(value)[:40]}")
    return float(value)


def rank_of(rest: Sequence[Any]) -> int | None:
    """A batch's rank, of the values after its events."""
    rank = rest[0] if rest else None
    if rank is not None and type(rank) is not int:
        raise FieldError("data_parallel_rank", f"expected an integer or null, found {type(rank).__name__}")
    return rank
