"""KV events as values: the fields of vLLM 0.33's BlockStored, BlockRemoved, AllBlocksCleared and event batch.

SGLang 0.5.23 sends the same maps; its `cache_salt` is read as well. A field that is not known here is ignored, so that
streams of later versions can be read; a field that is missing or of another type is an error that names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import asdict

from framework_workloads.trace.format import FieldError

Hash: TypeAlias = bytes | int | str
"""Names a block's content and all before it: bytes or an integer as sent, or text of a JSON file."""

GPU = "GPU"
"""What vLLM and SGLang call the place of the pool's blocks."""


class BlockStored(Struct, frozen=True, kw_only=True, tag=True):
    """Blocks became findable, each below the one before and the first below `parent_block_hash`.

    Attributes:
        block_hashes: in prompt order.
        parent_block_hash: of the block above the first; None at the root.
        token_ids: of all these blocks, `block_size` each; empty where the sender keeps them to itself.
        block_size: tokens a block.
        lora_id: None; vLLM's older way to say `lora_name`.
        medium: where they lie; None: not said.
        lora_name: the adapter of their namespace.
        extra_keys: what else than tokens each block's hash covers: the adapter, [name, start seen from the
            block] of each content that touches it (an image), and the salt in the first block.
        group_idx: the KV cache group.
        session_id: of the request that stored them.
        cache_salt: the salt, where it is said here (SGLang).
        The others are what vLLM says of sliding windows, remote places and lookahead hashing; never set here.
    """

    block_hashes: Sequence[Any]
    parent_block_hash: Any
    token_ids: Sequence[Any]
    block_size: Annotated[int, Meta(ge=1, le=2**20)]
    lora_id: Any = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: Any = None
    group_idx: int | None = None
    kv_cache_spec_kind: Any = None
    kv_cache_spec_sliding_window: Any = None
    locality: Any = None
    ownership: Any = None
    session_id: str | None = None
    lookahead_token_ids: Any = None
    cache_salt: str | None = None


class BlockRemoved(Struct, frozen=True, kw_only=True, tag=True):
    """These blocks can no longer be found in `medium`."""

    block_hashes: Sequence[Any]
    medium: str | None = None
    group_idx: int | None = None
    locality: Any = None
    ownership: Any = None


class AllBlocksCleared(Struct, frozen=True, tag=True):
    """Nothing can be found any more, in any medium."""


Event: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(Struct, frozen=True, array_like=True):
    """What one step of an engine did to its cache; whoever reads it sees all of it or nothing.

    Attributes:
        ts: when: seconds since 1970 on the wire, steps in a run directory.
        rank: of the data parallel rank that sent it; None: not said.
    """

    ts: Annotated[float, Meta(ge=0, lt=1e300)]
    events: Sequence[BlockStored | BlockRemoved | AllBlocksCleared]
    rank: int | None = None


Numbered: TypeAlias = tuple[int, EventBatch]
"""A batch with its number in the stream of one publisher, from 0."""


_SENT = ("parent_block_hash", "lora_id", "medium", "lora_name")
"""Fields that are sent though they are null; others are left out then."""


def as_map(event: Event) -> dict[str, Any]:
    """The tagged map of an event: `type`, and its fields but those that are null and may be left out."""
    values = asdict(event)
    sent = {name: value for name, value in values.items() if value is not None or name in _SENT}
    return {"type": type(event).__name__, **sent}


def as_array(batch: EventBatch) -> list[Any]:
    """A batch as the array that vLLM's EventBatch is on the wire."""
    return [batch.ts, [as_map(event) for event in batch.events], batch.rank]


def from_array(record: Any) -> EventBatch:
    """The batch of such an array, the rank left out or not.

    Raises:
        FieldError: it is none, or one of its events is not; names the field.
    """
    try:
        batch = convert(record, EventBatch)
    except ValidationError as error:
        raise FieldError("batch", str(error)) from error
    for event in batch.events:
        if not isinstance(event, AllBlocksCleared):
            _check_hashes("block_hashes", event.block_hashes)
        if isinstance(event, BlockStored) and event.parent_block_hash is not None:
            _check_hashes("parent_block_hash", [event.parent_block_hash])
    return batch


def _check_hashes(field: str, hashes: Iterable[Any]) -> None:
    for value in hashes:
        if type(value) not in (bytes, int, str):
            raise FieldError(field, f"expected bytes, an integer or text, found {str(value)[:40]}")
