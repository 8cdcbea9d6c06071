"""An allocator for models whose layers partly attend to all tokens, partly to a sliding window or keep a state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from framework.engine.pool import block_bytes
from framework.errors import InvalidArgument, InvariantViolation, OutOfBlocks, StaleHit
from framework.groups.checkpoints import Asked, Retention
from framework.groups.kinds import GroupHit, Kind, KVGroup, find_hit
from framework.interfaces.allocator import Allocator, AllocatorStats, CacheEvent, Hit
from framework.interfaces.attention import AttentionSpec
from framework.model.config import ModelConfig
from framework.paged.allocator import PagedAllocator
from framework.types import BlockCopy, BlockHash, BlockId, Namespace, RequestId, RequestInfo, TableChange, TokenArray


@dataclass(frozen=True, slots=True)
class WindowedHit(Hit):
    """A Hit, and what the blocks of the window or state made of it.

    Attributes:
        full_blocks: all leading blocks that the full group holds.
        reach: tokens up to which blocks will be loaded; 0 for none. The window's table begins where it is needed there.
    """

    found: GroupHit | None = None
    full_blocks: tuple[BlockId, ...] = ()
    reach: int = 0


class GroupedAllocator(Allocator):
    """Full attention and a sliding window, or recurrent states, side by side: a table a request in each, of two pools.

    A state lies in the block of the last token that went into it, so a request needs the blocks that a window of two
    tokens needs, and everything below says window for both. The state at the end of a full block is kept where vLLM
    keeps it by default (`Retention(0)`: at the prompt's last full block, and where prefixes part), at the last full
    block of all, and where one was loaded; one that no request keeps is free again once the last has passed it.

    To the engine it is the full group's allocator, with the window's table as the further one. The window's table
    holds null blocks where the window has passed, and room for what a step writes, not for a whole prompt: `extend`
    gives it. A hit is one that both can go on from, by `find_hit`; a window's blocks are found by the names of their
    contents, which stand for the whole prefix, though the blocks before them are gone.

    Each call first asks both whether they can, then changes both: one that is refused changed neither. Where a policy
    fails in the second, an `allocate` or `fork` is taken back; other calls leave a request that can only be freed.

    Not shared within a step: see docs/hybrid.md.

    Args:
        groups: full attention and a window or state, of equal `block_tokens`.
        parts: their allocators, made alike, each with a policy of its own; theirs are the blocks.

    Raises:
        InvalidArgument: other kinds or more groups, block sizes that differ, or what `why_no_group` says.

    Attributes:
        peak_used_blocks: most blocks in use at once, by group.
    """

    num_groups = 2

    def __init__(self, groups: Sequence[KVGroup], parts: Sequence[Allocator]) -> None:
        self.groups, kinds = tuple(groups), [group.kind for group in groups]
        if kinds not in (["full", "window"], ["full", "state"]) or len(parts) != 2:
            raise InvalidArgument(
                f"two groups are served, of kinds full, and window or state, with an allocator each; found "
                f"{len(parts)} allocators and groups of kinds {', '.join(kinds) or 'none'}"
            )
        self.parts = tuple(part for part in parts if isinstance(part, PagedAllocator))
        for part in parts:
            if reason := why_no_group(part):
                raise InvalidArgument(reason)
        (full, window), (self.full, self.window) = self.groups, self.parts
        sizes = {full.block_tokens, window.block_tokens, *(part.block_size for part in self.parts)}
        if len(sizes) > 1:
            raise InvalidArgument(f"groups that are served have blocks of one size, found {sorted(sizes)} tokens")
        self.num_blocks, self.block_size = self.full.num_blocks, self.full.block_size
        self.peak_used_blocks = [0, 0]
        self._named: dict[BlockHash, BlockId] = {}  # published blocks of the window
        self._found_tokens = self._lost_tokens = 0
        self._places: dict[RequestId, frozenset[int]] = {}  # tokens after which a request's states are kept
        self._kept: set[BlockId] = set()  # published states that some request keeps
        self._loading: dict[RequestId, int] = {}  # tokens up to which blocks are on their way, nothing committed yet
        self._listener: Callable[[CacheEvent], Any] | None = None
        self.window.listen(self._note)

    def _note(self, event: CacheEvent) -> None:
        if self._listener is not None:
            self._listener(event._replace(group=1))
        if event.kind == "admit":
            self._named.update(zip(event.hashes, event.blocks, strict=True))
        else:
            for name in event.hashes:
                del self._named[name]
            self._kept.difference_update(event.blocks)

    @property
    def _version(self) -> int:
        return self.full.version + self.window.version  # neither ever shrinks

    def lookup(self, tokens: TokenArray, namespace: Namespace, previous: Hit | None = None) -> Hit:
        hit = self.full.lookup(tokens, namespace, previous)
        names, named = hit.hashes, self._named
        found = find_hit(self.groups[1:], lambda _, block: names[block] in named, hit.num_tokens)
        blocks = hit.blocks[: found.tokens // self.block_size]
        return WindowedHit(found.tokens, blocks, names, self._version, found=found, full_blocks=tuple(hit.blocks))

    def reaching(self, hit: WindowedHit, num_tokens: int) -> WindowedHit:
        """`hit` for a request that then loads what it lacks up to `num_tokens`: of the window, it gets fresh blocks."""
        blocks = hit.full_blocks[: num_tokens // self.block_size]
        return replace(hit, num_tokens=len(blocks) * self.block_size, blocks=blocks, reach=num_tokens)

    def _hits(self, hit: Hit) -> tuple[Hit, Hit]:
        """The hit in each group.

        Raises:
            StaleHit, InvalidArgument: of another version, or not of this allocator.
        """
        if hit.version != self._version:
            raise StaleHit(f"the hit is of version {hit.version}, the groups are at {self._version}; look it up again")
        whole = Hit(hit.num_tokens, hit.blocks, hit.hashes, self.full.version)
        if isinstance(hit, WindowedHit) and hit.reach:
            null = self.groups[1].needs(hit.reach).start
            return whole, Hit(null * self.block_size, (BlockId(0),) * null, hit.hashes, self.window.version, null)
        needed = self.groups[1].needs(hit.num_tokens)
        names = hit.hashes[needed.start : needed.stop]
        known = len(names) == len(needed) and all(map(self._named.__contains__, names))
        if hit.num_tokens % self.block_size or not known:
            raise InvalidArgument(f"a hit of {hit.num_tokens} tokens is not one of the window's")
        blocks = (BlockId(0),) * needed.start + tuple(map(self._named.__getitem__, names))
        return whole, Hit(hit.num_tokens, blocks, hit.hashes, self.window.version, needed.start)

    def _window_fits(self, request: RequestInfo, tokens: TokenArray, hit: Hit, room: int) -> bool:
        return self.window.fits(request, tokens[:room], replace(hit, hashes=()))

    def fits(self, request: RequestInfo, tokens: TokenArray, hit: Hit) -> bool:
        whole, window_hit = self._hits(hit)
        return self.full.fits(request, tokens, whole) and self._window_fits(request, tokens, window_hit, _room(hit))

    def allocate(self, request: RequestInfo, tokens: TokenArray, hit: Hit, num_tokens: int | None = None) -> None:
        whole, window_hit = self._hits(hit)
        known = request.id in self.full.tables() or not len(tokens)  # which the full group refuses by name
        if not known and not self._window_fits(request, tokens, window_hit, _room(hit)):
            raise OutOfBlocks(
                f"the {self.groups[1].kind}'s group has no room beside {self.window.pool.used} used of "
                f"{self.window.num_blocks} blocks; preempt a request"
            )
        self.full.allocate(request, tokens, whole, num_tokens)
        self.window.allocate(request, tokens, window_hit, _room(hit))
        found, reach = (hit.found, hit.reach) if isinstance(hit, WindowedHit) else (None, 0)
        if reach:
            self._loading[request.id] = reach
        if found is not None:
            self._lost_tokens += sum(found.lost)
        if self.groups[1].kind == "state":
            junction = 0 if found is None or not any(found.lost) else found.tokens + sum(found.lost)
            asked = Asked(prompt=len(tokens), total=request.max_total_tokens, hit=hit.num_tokens, junction=junction,
                          step=self.block_size)  # fmt: skip
            self._places[request.id] = frozenset((*Retention(0).places(asked), reach))
        self._found_tokens += window_hit.num_tokens if found is None else found.tokens
        self._note_peak()

    def _note_peak(self) -> None:
        self.peak_used_blocks = [
            max(most, part.pool.used) for most, part in zip(self.peak_used_blocks, self.parts, strict=True)
        ]

    def extend(self, request: RequestId, num_tokens: int) -> TableChange:
        for part in self.parts:
            part.plan_extend(request, num_tokens)
        change, window_change = (part.extend(request, num_tokens) for part in self.parts)
        self._note_peak()
        return _both(change, window_change)

    def commit(self, request: RequestId, tokens: TokenArray) -> TableChange:
        table = self.window.tables().get(request)
        before = 0 if table is None else table.published
        window_change = self.window.commit(request, tokens)  # first: it has less room
        if self.groups[1].kind == "state" and table is not None:
            self._kept.update(
                BlockId(table.blocks[index]) for index in range(before, table.published) if self.keeps(request, index)
            )
        self._loading.pop(request, None)
        return _both(self.full.commit(request, tokens), window_change)

    def fork(self, parent: RequestId, child: RequestInfo, num_tokens: int) -> TableChange:
        for part in self.parts:
            part.plan_fork(parent, child, num_tokens)
        if self.groups[1].kind == "state" and num_tokens < (done := self.window.tables()[parent].committed):
            raise InvalidArgument(f"fork of {num_tokens} tokens from request {parent}, whose state is after {done}")
        change, window_change = (part.fork(parent, child, num_tokens) for part in self.parts)
        self._places[child.id] = self._places.get(parent, frozenset())
        self._note_peak()
        return _both(change, window_change)

    def unref_leading(self, request: RequestId, num_tokens: int) -> int:
        """The window has passed these; `table`, the full group's, keeps all its entries."""
        table = self.window.tables().get(request)
        passed = [] if table is None else table.blocks[table.num_null : num_tokens // self.block_size].tolist()
        self.window.unref_leading(request, num_tokens)
        self._thin(passed)
        return 0

    def _thin(self, blocks: Sequence[int]) -> None:
        """Of `blocks`, which a request has passed, those go that nobody uses and whose states no request keeps."""
        if self.groups[1].kind == "state":
            self.window.forget([block for block in blocks if block not in self._kept])

    def keeps(self, request: RequestId, index: int) -> bool:
        """Whether the request keeps the window's block at this index of its table once it has passed it."""
        return self.groups[1].kind != "state" or (index + 1) * self.block_size in self._places.get(request, ())

    def free(self, request: RequestId, next_use: Sequence[float] = ()) -> None:
        self.full.free(request)
        table = self.window.tables()[request]
        passed = [*map(BlockId, table.blocks[table.num_null : table.published])]
        if self.groups[1].kind == "state":
            self._kept.update(passed[-1:])
        self.window.free(request)
        self._thin(passed)
        self._places.pop(request, None)
        self._loading.pop(request, None)

    def table(self, request: RequestId, group: int = 0) -> npt.NDArray[np.int32]:
        return (self.window if group else self.full).table(request)

    def reset(self, request: RequestId | None = None) -> None:
        self.full.reset(request)
        self.window.reset()  # of one request too: what the window has passed may be cached, and no table names it

    def stats(self) -> AllocatorStats:
        whole = self.full.stats()
        return replace(whole, copied_blocks=whole.copied_blocks + self.window.stats().copied_blocks)

    def results(self) -> dict[str, int]:
        """Of each group its capacity, the most in use and what is cached, in bytes, and evictions; tokens found and
        lost, summed over admissions."""
        found: dict[str, int] = {}
        for group, part, peak in zip(self.groups, self.parts, self.peak_used_blocks, strict=True):
            blocks = {"bytes": part.num_blocks, "peak_used_bytes": peak, "cached_bytes": part.pool.cached}
            found |= {f"{group.kind}_{name}": count * group.block_bytes for name, count in blocks.items()}
            found[f"{group.kind}_evictions"] = part.cache.evictions
        found["full_hit_tokens"] = self._found_tokens + self._lost_tokens
        found[f"{self.groups[1].kind}_lost_tokens"] = self._lost_tokens
        return found

    def check(self) -> None:
        faults = []
        for part in self.parts:
            part.check()
        tables, window_tables = (part.tables() for part in self.parts)
        if tables.keys() != window_tables.keys():
            faults.append(f"groups hold tables of {[sorted(tables), sorted(window_tables)]}")
        for request, window in window_tables.items():
            whole, done, gone = tables.get(request), window.committed, window.num_null
            loading, size = self._loading.get(request, 0), self.block_size
            if whole is not None and (whole.num_null or (not loading and whole.committed != done)):
                faults.append(f"request {request}: {whole.committed} and {done} committed, null {whole.num_null}")
            most = loading or (done // size + 1) * size - 1  # computed; it is committed as blocks fill
            if gone > self.groups[1].first(most):
                faults.append(f"request {request}: {gone} blocks gone of a window at {most} tokens")
        names = self.window.pool.block_hash
        if self._named != {names[block]: block for block in range(1, len(names)) if names[block] is not None}:
            faults.append("the window's names are not those of its published blocks")
        if unknown := [block for block in self._kept if names[block] is None]:
            faults.append(f"blocks {unknown[:9]} are kept and not published")
        if faults:
            raise InvariantViolation("GroupedAllocator: " + "; ".join(faults))

    def advance(self, now: float) -> None:
        for part in self.parts:
            part.advance(now)

    def listen(self, listener: Callable[[CacheEvent], Any] | None) -> None:
        """Events of both groups: those of the window or state are of group 1."""
        self.full.listen(listener)
        self._listener = listener


def _room(hit: Hit) -> int:
    """Tokens that the window's table has room for at first."""
    return ((isinstance(hit, WindowedHit) and hit.reach) or hit.num_tokens) + 1


def groups_of_model(config: ModelConfig, spec: AttentionSpec) -> tuple[KVGroup, ...]:
    """Full attention, and the sliding window or recurrent state of a model that has layers of both; empty of any other.

    States are counted in the model's dtype, that of `spec`.
    """

    def attention(kind: Kind, num_layers: int, length: int = 0) -> KVGroup:
        size = block_bytes(spec, num_layers)
        return KVGroup(name=kind, kind=kind, block_tokens=spec.block_size, block_bytes=size, length=length)

    if (states := config.recurrent) is not None:
        size = sum(states.layers) * states.state_bytes(getattr(torch, spec.dtype).itemsize)
        state = KVGroup(name="state", kind="state", block_tokens=spec.block_size, block_bytes=size)
        return attention("full", len(config.attention_layers)), state
    slides, window = sum(map(config.slides, range(config.num_layers))), config.sliding_window
    if window is None or window < 2 or slides in (0, config.num_layers):
        return ()
    return attention("full", config.num_layers - slides), attention("window", slides, window)


def why_no_group(allocator: Allocator) -> str:
    """Why this allocator can be no group's, in a sentence; empty if it can."""
    if not isinstance(allocator, PagedAllocator) or type(allocator).lookup is not PagedAllocator.lookup:
        return f"{type(allocator).__name__} finds no blocks by chained hash alone; prefix and prefix_cow do"
    index = allocator.cache.index
    if index.compares_tokens or index.keeps_duplicates:
        return "a window's blocks are found by name alone; take a collision-resistant hash, and duplicates=merge"
    if allocator.cache.leaf_only:
        return "a window's blocks outlive those below and above them; set leaf_only=false"
    return ""


def running_blocks(group: KVGroup, num_blocks: int, rows: int, step_tokens: int) -> int:
    """Blocks that running requests can need in a group of windows or states, no more than `num_blocks`, the other's.

    A row reads `window - 1` tokens back from the one that it computes, which touch one block more than they fill, and
    is admitted with one; a step writes `step_tokens`.
    """
    size = group.block_tokens
    return min(num_blocks, rows * (-(-(reach(group) - 1) // size) + 2) + -(-step_tokens // size))


def reach(group: KVGroup) -> int:
    """Tokens back, the one to be computed included, of which a row needs the blocks: a state is in that of the last."""
    return group.length or 2


def _both(change: TableChange, window_change: TableChange) -> TableChange:
    """The full group's change, with the window's copies."""
    if not window_change.copies:
        return change
    copies = tuple(BlockCopy(copy.source, copy.destination, 1) for copy in window_change.copies)
    return TableChange(change.start, change.copies + copies)
