"""Ids, token arrays, namespaces, times and facts of requests, as all packages share them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any, NewType

import numpy as np
import numpy.typing as npt

from framework.errors import InvalidArgument, InvalidTokens

BlockId = NewType("BlockId", int)
"""A physical block, 1 to num_blocks. Block 0 is the null block: never handed out, never written."""

RequestId = NewType("RequestId", int)
"""One sequence that holds a block table. Never reused within an allocator's life."""

BlockHash = NewType("BlockHash", bytes)
"""The chained name of a full block's content, as its HashScheme made it."""

TokenArray = npt.NDArray[np.int32]
"""(n,) int32 token ids, each 0 to 2**31 - 1. Plugins must not write to it."""

_LIMIT = 2**31
_INT32 = np.dtype(np.int32)


def as_tokens(tokens: Any) -> TokenArray:
    """The one canonical form of token ids: a contiguous (n,) int32 array.

    Lists, tuples, NumPy arrays of any integer width and torch tensors of equal ids give equal arrays, so
    that a block hash never depends on the container.

    Raises:
        InvalidTokens: floats, booleans, ids below 0 or from 2**31 up, or not one-dimensional.
    """
    if isinstance(tokens, np.ndarray) and (tokens.dtype is _INT32 or tokens.dtype == _INT32) and tokens.ndim == 1:
        array = np.ascontiguousarray(tokens)
        if array.size and array[array.argmin()] < 0:  # a sixth of what min() costs for a prompt
            raise InvalidTokens(f"token ids must be 0 to 2**31 - 1, found {int(array.min())}")
        return array
    if isinstance(tokens, Sequence) and not isinstance(tokens, (str, bytes)):
        if not {bool, np.bool_}.isdisjoint(map(type, tokens)):
            raise InvalidTokens("token ids must be integers, found a bool")
        if len(tokens) == 0:
            return np.empty(0, dtype=np.int32)
    array = np.asarray(tokens)
    if array.ndim != 1:
        raise InvalidTokens(f"token ids must be one-dimensional, found shape {array.shape}")
    if array.dtype.kind not in "iu":
        if array.size == 0 and array.dtype.kind == "f":
            raise InvalidTokens("token ids must be integers, found an empty float array; use dtype=int32")
        raise InvalidTokens(f"token ids must be integers below 2**31, found dtype {array.dtype}")
    if array.size:
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= _LIMIT:
            raise InvalidTokens(f"token ids must be 0 to 2**31 - 1, found {low if low < 0 else high}")
    return np.ascontiguousarray(array, dtype=np.int32)


Contents = tuple[tuple[int, int, str], ...]
"""Content that is not text, such as images: each by its first token, the token after its last, and its name."""


def as_contents(value: Any, num_tokens: int | None = None) -> Contents:
    """Contents from what a file or a client may write: a list of [start, end, name], in any order.

    Ranges may overlap, as those of an adapter and of an image do.

    Args:
        num_tokens: of the prompt, where it is known.

    Raises:
        InvalidArgument: anything else, an empty range or one that is not within the prompt, or no name.
    """
    if not isinstance(value, (list, tuple)):
        raise InvalidArgument(f"contents are a list of [start, end, name], found {ascii(value)[:60]}")
    for entry in value:
        wanted = isinstance(entry, (list, tuple)) and [*map(type, entry)] == [int, int, str]
        if not wanted or not is_unicode(entry[2]) or not entry[2]:
            raise InvalidArgument(f"a content is [start, end, name] in tokens, found {ascii(entry)[:60]}")
        if not 0 <= entry[0] < entry[1] <= (_LIMIT if num_tokens is None else num_tokens):
            prompt = "the prompt" if num_tokens is None else f"a prompt of {num_tokens} tokens"
            raise InvalidArgument(
                f"content {ascii(entry[2])[:40]} covers tokens {entry[0]} to before {entry[1]}, which is empty or not "
                f"within {prompt}"
            )
    return tuple(sorted(map(tuple, value)))


def is_unicode(text: Any) -> bool:
    """Whether it is text that UTF-8 can hold: JSON may spell half of a surrogate pair."""
    if not isinstance(text, str):
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Namespace:
    """What besides tokens must be equal for two blocks to hold the same KV. Mixed into the root hash.

    `contents` are mixed into the hashes of the blocks that they touch instead, and by the chain into those below, so
    that prompts share what stands before their first difference.
    """

    model: str = ""
    adapter: str = ""
    salt: str = ""
    contents: Contents = ()

    @property
    def root(self) -> Namespace:
        """This one without its contents: of blocks that none of them touches."""
        return replace(self, contents=()) if self.contents else self

    def within(self, start: int, end: int) -> Contents:
        """The contents of tokens `start` to before `end`, counted from there: a start below 0 began before it, and no
        end is past its end. Equal for two prompts where the same part of the same contents is at the same places."""
        touching = (one for one in self.contents if one[0] < end and one[1] > start)
        return tuple(sorted((first - start, min(last, end) - start, name) for first, last, name in touching))

    def encode(self) -> bytes:
        """Injective bytes: each text as its UTF-8 length and its UTF-8, and before a content's the range."""
        parts = [self.model.encode(), self.adapter.encode(), self.salt.encode()]
        for start, end, name in self.contents:
            parts += [b"%d %d" % (start, end), name.encode()]
        return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


ROOT_NAMESPACE = Namespace()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """What a client foretells of its conversation. It may be wrong, and a policy must stay correct then.

    Attributes:
        continues: probability, 0 to 1, that a later prompt extends this one; None when nothing is said.
        returns_s: expected seconds from this request's arrival to that later prompt's; None when nothing is said.
        deadline_s: seconds from this request's arrival by which its first token is wanted; None when nothing is said.

    Raises:
        InvalidArgument: a probability outside 0 to 1, a time below 0, or neither a number nor None.
    """

    continues: float | None = None
    returns_s: float | None = None
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        for name, most in (("continues", 1.0), ("returns_s", inf), ("deadline_s", inf)):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most or value == inf:
                wanted = "a probability from 0 to 1" if most == 1 else "finite seconds, at least 0"
                raise InvalidArgument(f"hint.{name} must be {wanted}, found {value!r}")

    @classmethod
    def of(cls, value: Any) -> Hint | None:
        """A hint from what a file or a client may write: None, a Hint, a probability to continue, or a mapping.

        Raises:
            InvalidArgument: anything else, an unknown key, or a value outside its bounds.
        """
        if value is None or isinstance(value, Hint):
            return value
        if isinstance(value, Mapping):
            unknown = sorted(str(key) for key in set(value) - {field.name for field in fields(cls)})
            if unknown:
                raise InvalidArgument(f"a hint has continues, returns_s and deadline_s, found {', '.join(unknown)}")
            return cls(**value)
        return cls(continues=value)


PolicyTime = float
"""The clock that policies and tiering rules see: their `now`, and a request's `arrival`, in one unit.

Seconds in a replay: virtual ones where an engine runs (`mode=replay`), the trace's own where none does
(`mode=cache_only`: the arrival of the request at hand, or its number from 1 where the trace has no arrivals). Steps in
a serve run, and in the replay of its recording, so that both do the same every time.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestInfo:
    """What an allocator and a policy may know of a request. What is unknown is None.

    Attributes:
        id: names the table in every later call.
        max_total_tokens: prompt plus the most tokens it may generate; what `contiguous` reserves under `oracle`.
        namespace: only requests of one namespace share blocks.
        priority: larger is more important.
        tenant: for policies that share a cache fairly.
        session: conversation or agent it belongs to.
        category: kind of request, such as chat, code or a tool call.
        hint: what the client foretells.
        turn: how many earlier requests' prompts it extends, where the workload says; else it is inferred.
        arrival: when it arrived, on the clock that policies see.
        prompt_tokens: length of its prompt; a preempted request comes back with more tokens than that.
    """

    id: RequestId
    max_total_tokens: int
    namespace: Namespace = ROOT_NAMESPACE
    priority: int = 0
    tenant: str = ""
    session: str | None = None
    category: str | None = None
    hint: Hint | None = None
    turn: int | None = None
    arrival: PolicyTime | None = None
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """What a policy may read of the request that last used a block. What is unknown is None.

    Attributes:
        turn: how many earlier requests' prompts its prompt extends: given, or inferred from the prompts seen.
        prompt_tokens: length of its prompt.
        new_blocks: blocks of its prompt that were not found in the cache when it was admitted.
        output_tokens: tokens that it has generated; known once it releases its blocks.
        arrival, session, category, hint: see RequestInfo.
        tenant: who sent it.
    """

    turn: int | None = None
    prompt_tokens: int | None = None
    new_blocks: int | None = None
    output_tokens: int | None = None
    arrival: PolicyTime | None = None
    session: str | None = None
    category: str | None = None
    tenant: str | None = None
    hint: Hint | None = None


UNKNOWN_REQUEST = RequestFacts()
"""A request of which nothing is known."""


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy the KV of block `source` into block `destination`, in every layer of its group of KV, before anything is
    written."""

    source: BlockId
    destination: BlockId
    group: int = 0


@dataclass(frozen=True, slots=True)
class TableChange:
    """What an allocator call did to one request's block table.

    Attributes:
        start: the first logical index whose entry differs from before; equal to the table's length when none does.
        copies: block copies that must be done, in this order, before the next write to the pool.
    """

    start: int
    copies: tuple[BlockCopy, ...] = ()
