"""The requests behind a stream of KV events, as far as the events show them, and what became of their blocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from framework_kv_events.index import BlockIndex
from framework_kv_events.schema import GPU, BlockRemoved, BlockStored, EventBatch, Hash

_IDLE_S, _IDLE_BLOCKS = 2.0, 4


@dataclass(slots=True, eq=False)
class SeenRequest:
    """One request, in full blocks.

    Attributes:
        ts: when its first event came.
        prompt, output: names of its blocks; `hits` leading ones of the prompt were there.
        ends_full: whether its prompt ends with its last block: that block was computed though it was there.
        last_ts: when its last event came.
    """

    ts: float
    prompt: list[Hash]
    hits: int
    session: str | None
    block_size: int
    output: list[Hash] = field(default_factory=list)
    ends_full: bool = False
    last_ts: float = 0.0


@dataclass(slots=True)
class StreamCounts:
    """What happened to the blocks of one medium.

    Attributes:
        prompt_blocks, hit_blocks: of all requests seen: full blocks of prompts, and those that were there.
        stored_blocks: stored in all, in order of `first_blocks` (never seen before), `lost_blocks` (there once, removed
            since: computed again) and `duplicate_blocks` (there already: another block holds the same content).
        removed_blocks: removed, clears not counted. peak_blocks: contents there at the end of a batch, at most.
        stored_by_medium: of every medium, this one included.
    """

    num_requests: int = 0
    prompt_blocks: int = 0
    hit_blocks: int = 0
    first_blocks: int = 0
    lost_blocks: int = 0
    duplicate_blocks: int = 0
    removed_blocks: int = 0
    peak_blocks: int = 0
    stored_by_medium: dict[str, int] = field(default_factory=dict)

    @property
    def stored_blocks(self) -> int:
        """In all."""
        return self.first_blocks + self.lost_blocks + self.duplicate_blocks


class RequestFinder:
    """Finds requests in batches of KV events: a pool is rebuilt, and each store read as part of a request.

    NOTE 1. A store without a parent, or below a block at which no request ends, begins a request: it hit all above. A
    store below a request's last block goes on with it, unless that request has been idle for 2 s (or, where times are
    steps, for those in which four blocks fill): then it is another request that extends it.
    NOTE 2. Blocks that come together, or several at a time, are the prompt's; those that come one at a time afterwards
    were generated.
    NOTE 3. What events do not show is not found: a prompt below one full block; where hits are not reported, a request
    whose full blocks were all there; a prompt's tokens after its last full block.

    Args:
        report_hits: see BlockIndex.
        clock: "seconds" or "steps".
        medium: of the events that count; None in an event counts as well. Only KV cache group 0 is read.

    Attributes:
        counts: so far. index: the pool.
    """

    def __init__(self, *, report_hits: bool = False, clock: str = "seconds", medium: str = GPU) -> None:
        self.index, self.counts = BlockIndex(report_hits=report_hits), StreamCounts()
        self._medium, self._clock = medium, clock
        self._above: dict[Hash, Hash | None] = {}
        self._open: dict[Hash, list[SeenRequest]] = {}  # by the last block
        self._order: deque[SeenRequest] = deque()
        self._block_size = 1

    def take(self, batch: EventBatch) -> Iterator[SeenRequest]:
        """Requests that are over by the time of this batch, in order of their first event."""
        started: set[int] = set()
        for event in batch.events:
            if isinstance(event, BlockStored):
                medium = event.medium or self._medium
                mine = medium == self._medium and event.group_idx in (None, 0)
                if mine and event.block_hashes:
                    self._stored(event, batch.ts, started)
                if not self.index.is_report(event):
                    by_medium = self.counts.stored_by_medium
                    by_medium[medium] = by_medium.get(medium, 0) + len(event.block_hashes)
            elif (
                isinstance(event, BlockRemoved)
                and event.medium in (None, self._medium)
                and event.group_idx in (None, 0)
            ):
                self.counts.removed_blocks += len(event.block_hashes)
            self.index.apply((event,))
        self.counts.peak_blocks = max(self.counts.peak_blocks, self.num_blocks)
        while self._order and self._is_over(self._order[0], batch.ts):
            yield self._end(self._order.popleft())

    @property
    def num_blocks(self) -> int:
        """Contents that are there now, in the medium and group that count."""
        places = ((self._medium, 0), (self._medium, None), (None, 0), (None, None))
        return sum(len(self.index.copies.get(place, ())) for place in places)

    def finish(self) -> Iterator[SeenRequest]:
        """The stream is over, and so are all requests."""
        while self._order:
            yield self._end(self._order.popleft())

    def facts(self) -> dict[str, Any]:
        """What a run's result says of a recorded stream that is over."""
        counts = asdict(self.counts)
        hits, blocks = counts["hit_blocks"], counts["prompt_blocks"]
        counts |= {
            "hit_rate": hits / blocks if blocks else None,
            "stored_blocks": self.counts.stored_blocks,
            "final_blocks": self.num_blocks,
            "stored_by_medium": dict(sorted(self.counts.stored_by_medium.items())),
        }
        del counts["first_blocks"], counts["num_requests"]
        return {f"recorded_{name}": value for name, value in counts.items()}

    def _is_over(self, request: SeenRequest, now: float) -> bool:
        idle = _IDLE_S if self._clock == "seconds" else float(_IDLE_BLOCKS * self._block_size)
        return now - request.last_ts > idle

    def _end(self, request: SeenRequest) -> SeenRequest:
        self._close(request)
        self.counts.num_requests += 1
        self.counts.prompt_blocks += len(request.prompt)
        self.counts.hit_blocks += request.hits
        return request

    def _close(self, request: SeenRequest) -> None:
        """It does not end at its last block any more."""
        tail = (request.output or request.prompt)[-1]
        self._open[tail].remove(request)
        if not self._open[tail]:
            del self._open[tail]

    def _stored(self, event: BlockStored, now: float, started: set[int]) -> None:
        names, self._block_size = [*event.block_hashes], event.block_size
        if self.index.is_report(event):
            self._begin(SeenRequest(now, names, len(names), event.session_id, event.block_size, last_ts=now), started)
            return
        copies = self.index.copies.get((event.medium, event.group_idx), {})
        there = [name in copies for name in names]
        self._count(names, there)
        request = self._continued(event, now)
        if request is None:
            path = self._path(event.parent_block_hash)
            request = SeenRequest(now, path + names, len(path), event.session_id, event.block_size, last_ts=now)
            request.ends_full = there[-1]
            self._begin(request, started)
        else:
            self._extend(request, names, ends_full=there[-1], at_once=id(request) in started)
            request.last_ts = now
        above = event.parent_block_hash
        for name in names:
            self._above[name], above = above, name

    def _count(self, names: list[Hash], there: list[bool]) -> None:
        for name, present in zip(names, there, strict=True):
            if present:
                self.counts.duplicate_blocks += 1
            elif name in self._above:
                self.counts.lost_blocks += 1
            else:
                self.counts.first_blocks += 1

    def _continued(self, event: BlockStored, now: float) -> SeenRequest | None:
        """The request that goes on with this store: the latest that ends at its parent, of its session if one is."""
        if event.parent_block_hash is None:
            return None
        ending = [one for one in self._open.get(event.parent_block_hash, ()) if not self._is_over(one, now)]
        same = [one for one in ending if one.session == event.session_id]
        return next(reversed(same or ending), None)

    def _path(self, name: Hash | None) -> list[Hash]:
        """The blocks from the root to this one, as far as they were seen; of a damaged stream that leads in circles,
        once around.
        """
        path: dict[Hash, None] = {}
        while name is not None and name not in path:
            path[name] = None
            name = self._above.get(name)
        return [*reversed(path)]

    def _begin(self, request: SeenRequest, started: set[int]) -> None:
        started.add(id(request))
        self._order.append(request)
        self._open.setdefault(request.prompt[-1], []).append(request)

    def _extend(self, request: SeenRequest, names: list[Hash], *, ends_full: bool, at_once: bool) -> None:
        self._close(request)
        if not request.output and (at_once or len(names) > 1):
            request.prompt += names
            request.ends_full = ends_full
        else:
            request.output += names
        self._open.setdefault(names[-1], []).append(request)
