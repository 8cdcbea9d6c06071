"""The extension point for allocators: which block holds which tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from framework.interfaces.groups import GroupHit, KVGroup
from framework.types import BlockHash, BlockId, Namespace, RequestId, RequestInfo, TableChange, TokenArray


@dataclass(frozen=True, slots=True)
class Hit:
    """How much of a prompt is cached, as `lookup` found it. Valid until the allocator changes.

    Attributes:
        num_tokens: leading tokens whose KV is cached; always less than the prompt's length.
        blocks: the blocks that hold them, in order.
        hashes: the chained hashes of all full blocks of the prompt; lets a later lookup skip hashing.
        version: the allocator's version at lookup; `allocate` refuses a hit of another version.
        groups: of an allocator with several groups of KV, the blocks of each, the first's included; 0, the null block,
            where nothing is needed.
        found: what each group could give, and which of them cut the hit; None of an allocator of one group.
    """

    num_tokens: int = 0
    blocks: tuple[BlockId, ...] = ()
    hashes: Sequence[BlockHash] = ()
    version: int = 0
    groups: tuple[tuple[BlockId, ...], ...] = ()
    found: GroupHit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorStats:
    """Counts of blocks at one moment. `free_blocks + cached_blocks + used_blocks == num_blocks`.

    Attributes:
        external_blocks: free blocks no request could get for want of a contiguous run; 0 when paged.
        hit_tokens, prompt_tokens: summed over admissions, once a request each time it is admitted.
        evictions, copied_blocks, collisions: since construction. A collision is a hash that matched other content.
    """

    num_blocks: int
    free_blocks: int
    cached_blocks: int
    used_blocks: int
    external_blocks: int = 0
    num_requests: int = 0
    hit_tokens: int = 0
    prompt_tokens: int = 0
    evictions: int = 0
    copied_blocks: int = 0
    collisions: int = 0


class CacheEvent(NamedTuple):
    """Blocks whose content was published together ("admit") or lost together ("evict").

    Attributes:
        hashes: of the blocks' content, one each. Both sequences stay as they are after the call.
        group: of KV, where an allocator has several.
    """

    kind: str
    blocks: Sequence[BlockId]
    hashes: Sequence[BlockHash]
    group: int = 0


class Allocator(ABC):
    """Owns block ids, reference counts and tables; never tensors. Full control.

    Each public call plans before it changes anything and either succeeds or raises with nothing changed. Sizes are in
    tokens, block ids run from 1 to `num_blocks`. `tokens` arguments are (n,) int32 and stay the caller's.

    A request's life: `lookup`, `allocate` (room for its first step), then per step `extend` (room for what the step
    writes), `publish` (optional: what the step fills), the forward pass, `commit` (those tokens' KV is now written),
    `unref_leading` (optional, where every layer has a sliding window); `fork` between two steps; `free`.
    """

    num_blocks: int
    block_size: int
    takes_future: ClassVar[bool] = False
    """Whether `free` passes `next_use` on to an eviction policy."""
    max_request_tokens: int | None = None
    """The most tokens, those to come included, of a request that an otherwise empty pool holds; None: all its slots."""
    groups: Sequence[KVGroup] = ()
    """Groups of KV whose layers have block tables of their own. Empty: all layers share one, and nothing slides out of
    it but by `unref_leading`."""
    group_blocks: Sequence[int] = ()
    """The highest block id of each of the groups; empty: `num_blocks`."""

    hits_whole_blocks: bool = False
    """Whether a hit is whole blocks, named by the first of `Hit.hashes`, and nothing but the publication or the
    eviction of a block of these names changes it: who asks for it often asks again only then."""

    ends_steps: bool = False
    """Whether `step_end` has a say."""

    drops_tokens: ClassVar[bool] = False
    """Whether `drop` is there, and all other methods count on after it."""

    @abstractmethod
    def lookup(self, tokens: TokenArray, namespace: Namespace, previous: Hit | None = None) -> Hit:
        """How much of this prompt is cached. Pure: changes no order, no statistic.

        Never covers the whole prompt: at least one token is left to compute. `previous` is an earlier hit for a prefix
        of the same tokens and namespace, whose hashes may be reused.
        """

    @abstractmethod
    def fits(self, request: RequestInfo, tokens: TokenArray, hit: Hit) -> bool:
        """Whether `allocate` with these arguments would succeed now. Pure."""

    @abstractmethod
    def allocate(self, request: RequestInfo, tokens: TokenArray, hit: Hit, num_tokens: int | None = None) -> None:
        """Make a table with room for all `tokens`, sharing the hit's blocks.

        The hit's tokens count as committed. Hits are counted here, once. With `num_tokens`, which are more than the
        hit's, room for the first `num_tokens` is enough: the engine gives a prompt blocks as it computes it, with
        `extend`. An allocator may make room for all nonetheless.

        Raises:
            OutOfBlocks, DuplicateRequest, StaleHit: nothing changed.
        """

    @abstractmethod
    def extend(self, request: RequestId, num_tokens: int) -> TableChange:
        """Make room for `num_tokens` in all and make every slot from the committed length on safe to write.

        Copies each block from there on that another request refers to or that is published: what is being written.
        Idempotent: a second call with the same number changes nothing, nor does one with a smaller number. The engine
        calls it when a row crosses a block boundary or was forked, not once a token.

        Raises:
            OutOfBlocks, UnknownRequest: nothing changed.
        """

    def steady_tokens(self, request: RequestId) -> int:
        """Tokens up to which the request's tables stay as `extend` left them: no step up to there needs another call.

        Asked only of an allocator with `groups`, whose `extend` also lets go of what windows and states have passed.

        Raises:
            UnknownRequest.
        """
        return 0

    @abstractmethod
    def commit(self, request: RequestId, tokens: TokenArray) -> TableChange:
        """All KV of `tokens`, the request's first n tokens, has been written: publish the blocks it fills.

        n may not shrink and may not pass the room; tokens known before may not change. An allocator may swap a block
        for an equal published one: the change says from where. The engine may call it only when a block fills.

        Raises:
            UnknownRequest, InvalidArgument: nothing changed.
        """

    @abstractmethod
    def fork(self, parent: RequestId, child: RequestInfo, num_tokens: int) -> TableChange:
        """A table for `child` that holds the parent's first `num_tokens` tokens, all of whose KV is written.

        0 up to the parent's room; they count as committed for the child, whether or not the parent committed them. Both
        must `extend` before their next write. The child's namespace is its parent's.

        Returns the child's table change: copies to do at once, if blocks are not shared.

        Raises:
            OutOfBlocks, UnknownRequest, DuplicateRequest, InvalidArgument: nothing changed.
        """

    def step_end(self, request: RequestInfo, start: int, end: int, hit: Hit | None = None) -> int:
        """Where the request's next step ends, which goes on from `start` tokens and could compute up to `end`.

        From `start` to `end`; at `start` the request computes nothing in this step. A recurrent state can be kept only
        where a step ends. Asked only of an allocator that `ends_steps`. Pure.

        Args:
            hit: of a request that is about to be admitted; None: it runs.
        """
        return end

    def publish(self, request: RequestId, tokens: TokenArray) -> None:  # noqa: B027
        """The step being scheduled computes `tokens`, the request's first n: let lookups find the blocks they fill.

        Requests that are given blocks later in the same step then share those blocks. That is sound because a step
        writes all rows' K and V of a layer before any row attends. There is room for all of `tokens`, and
        generated ones may be among them. The request still writes the blocks in place; until its `commit` of these
        tokens no block may be copied from them.

        That commit follows before the request is forked. A step that was not computed is followed by `reset` instead,
        which forgets everything, and the requests that were in it are freed.

        Optional: an allocator that does nothing here shares between steps only. Content that another block holds is
        not published, nor anything after it.

        Raises:
            UnknownRequest, InvalidArgument: other tokens than those known, or more than there is room for. Nothing
                changed.
        """

    def unref_leading(self, request: RequestId, num_tokens: int) -> int:
        """No layer reads the KV of the request's first `num_tokens` tokens any more: a sliding window has passed them.

        Unreferences the leading full blocks within them, up to but not with the last full committed block; a block
        without other users becomes free, or cached if it is published. In `table` their entries are 0, the null block,
        from then on. Idempotent; a smaller number changes nothing. A later `fork` must keep more than
        what was unreferenced.

        Optional: an allocator that does nothing here keeps the blocks until `free`.

        Returns:
            How many leading entries of the table are 0 now.

        Raises:
            UnknownRequest, InvalidArgument: below 0. Nothing changed.
        """
        return 0

    def drop(
        self, request: RequestId, num_tokens: int, dropped: Sequence[int], rewritten: int | None = None
    ) -> TableChange:
        """Tokens of the request are given up: of its committed ones `num_tokens` stay.

        Its table loses the entries at the rising logical indexes `dropped`, what is behind them moves up, and they are
        unreferenced as by `free`. With `rewritten`, what stays is then written anew from that logical index of the
        shorter table on: a block there that others refer to is replaced, one of the request's own loses its hash.
        Nothing of the request is published from here on.

        Everywhere else tokens are counted as before: those dropped count as committed, and need no room.

        Asked only of an allocator that `drops_tokens`.

        Raises:
            OutOfBlocks: for the replaced blocks. UnknownRequest, InvalidArgument. Nothing changed.
        """
        raise NotImplementedError

    @abstractmethod
    def free(self, request: RequestId, next_use: Sequence[float] = ()) -> None:
        """Drop the request's table: blocks without other users become free, or cached if published and committed.

        `next_use`: when each leading block is requested next (`BlockView.next_use`), as a replay knows it. It is given
        only where the policy asks for it (`needs_future`), and ignored unless the allocator `takes_future`; entries
        past the published blocks mean nothing.

        Raises:
            UnknownRequest: never allocated, or freed before.
        """

    @abstractmethod
    def table(self, request: RequestId, group: int = 0) -> npt.NDArray[np.int32]:
        """The request's block ids in logical order: (m,) int32, a copy or a read-only view valid until the next call.

        An entry stands for `block_size` tokens: a larger block of a group is there once for each such part.
        Entries are 0, the null block, where `unref_leading` took the block away. Other groups of KV than the first are
        asked for only where `groups` says that there are some.

        Raises:
            UnknownRequest.
        """

    @abstractmethod
    def reset(self, request: RequestId | None = None) -> None:
        """Forget all cached content (weights changed): no lookup hits what came before; live requests keep theirs.

        With `request`: the KV that its table names is not sound, as the logits that followed from it are not finite.
        Called before it is freed, and once the step is committed. It is enough to forget what its table names; who else
        has one of these blocks in its table keeps it, and publishes nothing below it.

        Raises:
            UnknownRequest: nothing changed.
        """

    @abstractmethod
    def stats(self) -> AllocatorStats:
        """The counts now. O(1)."""

    @abstractmethod
    def check(self) -> None:
        """Recompute every invariant from nothing. O(num_blocks + tables).

        Raises:
            InvariantViolation: lists each broken one.
        """

    def advance(self, now: float) -> None:  # noqa: B027
        """The engine's logical time from here on; passed to the policy. Non-decreasing."""

    def listen(self, listener: Callable[[CacheEvent], Any] | None) -> None:  # noqa: B027
        """Send every CacheEvent to `listener`, in order; None stops. An allocator without a cache sends none.

        How many blocks are one event is the allocator's choice, at least one; all that a call does at once costs least.
        """

    def facts(self) -> dict[str, str | int | float]:
        """What the results should hold of this object beside `stats`. Default: nothing.

        Asked after the work; changes nothing. Kept as `allocator_<name>`.
        """
        return {}
