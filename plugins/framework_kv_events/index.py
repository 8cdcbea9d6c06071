"""Index of the blocks that a cache holds, from its KV events alone, also where batches of them are lost or repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from framework_kv_events.schema import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch, Hash, Numbered

Place = tuple[str | None, int | None]
"""(medium, KV cache group) of an event."""

Replay = Callable[[int], Iterable[Numbered]]
"""Asks the publisher for its batches from a number on, in order; raises or yields nothing where it cannot."""


@dataclass(slots=True)
class BlockIndex:
    """The blocks that can be found, by place: what a router keeps of each engine.

    An engine may hold several blocks of one content, publish each and remove each (vLLM does): a content is there until
    as many were removed as were stored. Where an engine also reports hits, such a report stores nothing.

    Args:
        report_hits: the stream says what requests found (option report_hits; kv_cache_report_mode "full" in vLLM): a
            BlockStored without a parent all of whose blocks are there is such a report. Where an engine computes one
            content twice from the root, as vLLM may within a step, that store looks alike and is taken for a report.

    Attributes:
        copies: by place, how many blocks hold each content.
        num_unknown_removals: blocks removed that were not known to be there.
    """

    report_hits: bool = False
    copies: dict[Place, dict[Hash, int]] = field(default_factory=dict)
    num_unknown_removals: int = 0

    def apply(self, events: Iterable[Event]) -> None:
        """Bring the index up to date with these events, in order."""
        for event in events:
            if isinstance(event, BlockStored):
                if not self.is_report(event):
                    copies = self.copies.setdefault((event.medium, event.group_idx), {})
                    for name in event.block_hashes:
                        copies[name] = copies.get(name, 0) + 1
            elif isinstance(event, BlockRemoved):
                self._remove(event)
            else:
                self.copies.clear()

    def is_report(self, event: BlockStored) -> bool:
        """Whether this event says what a request found, and stores nothing."""
        if not self.report_hits or event.parent_block_hash is not None:
            return False
        copies = self.copies.get((event.medium, event.group_idx), {})
        return all(name in copies for name in event.block_hashes)

    def _remove(self, event: BlockRemoved) -> None:
        copies = self.copies.get((event.medium, event.group_idx), {})
        for name in event.block_hashes:
            count = copies.get(name, 0)
            if count > 1:
                copies[name] = count - 1
            elif count:
                del copies[name]
            else:
                self.num_unknown_removals += 1

    def blocks(self, medium: str | None = None) -> set[Hash]:
        """The contents that are there, in `medium` or anywhere."""
        return {name for place, copies in self.copies.items() if medium in (None, place[0]) for name in copies}

    def find(self, hashes: Sequence[Hash], medium: str | None = None) -> int:
        """How many leading blocks of a prompt are there, all in `medium` or each anywhere."""
        places = [copies for place, copies in self.copies.items() if medium in (None, place[0])]
        for number, name in enumerate(hashes):
            if not any(name in copies for copies in places):
                return number
        return len(hashes)


@dataclass(slots=True)
class Follower:
    """Takes numbered batches as they come and says whether the index is what the cache holds.

    NOTE. A batch whose number is past the next one is a gap. What is missing is asked for again; where the publisher
    has it no longer, the index is unknown and empty until an AllBlocksCleared: a lost removal would leave blocks in it
    that are gone. A number before the next one repeats what is known already and changes nothing, unless its time
    is later than the last batch's: then the publisher began anew, with an empty cache.

    Args:
        index: starts empty, as a cache does.
        replay: how to ask for what was missed; None: it cannot be.
        on_batch: called with every batch, in order and once, as it takes effect; also while the index is unknown.

    Attributes:
        next: number of the batch that comes next: the index is of the moment before it.
        known: whether the index is the cache.
        num_gaps: gaps seen. num_recovered, num_lost: batches in them that were had again, and that were not.
    """

    index: BlockIndex = field(default_factory=BlockIndex)
    replay: Replay | None = None
    on_batch: Callable[[int, EventBatch], object] | None = None
    next: int = 0
    known: bool = True
    last_ts: float = float("-inf")
    num_gaps: int = 0
    num_recovered: int = 0
    num_lost: int = 0

    def take(self, number: int, batch: EventBatch) -> bool:
        """One batch as it came; returns `known`."""
        if number < self.next:
            if batch.ts <= self.last_ts:
                return self.known
            self.next, self.known = 0, True
            self.index.copies.clear()
        if number > self.next:
            self._recover(number)
        if number == self.next:
            self._apply(number, batch)
        return self.known

    def _recover(self, number: int) -> None:
        """Have the batches from `next` to before `number` again, or lose them."""
        self.num_gaps += 1
        for again, batch in self._again():
            if again == self.next and again < number:
                self.num_recovered += 1
                self._apply(again, batch)
            elif again > self.next:
                break
        if self.next < number:
            self.num_lost += number - self.next
            self.next, self.known = number, False
            self.index.copies.clear()

    def _again(self) -> Iterable[Numbered]:
        if self.replay is None:
            return ()
        try:
            return [*self.replay(self.next)]
        except (OSError, TimeoutError):
            return ()

    def _apply(self, number: int, batch: EventBatch) -> None:
        self.next, self.last_ts = number + 1, batch.ts
        events = batch.events if self.known else _from_the_clear(batch.events)
        self.known = self.known or bool(events)
        self.index.apply(events)
        if self.on_batch is not None:
            self.on_batch(number, batch)


def _from_the_clear(events: Sequence[Event]) -> Sequence[Event]:
    """The events from the last AllBlocksCleared on; none where there is none."""
    last = max(
        (index for index, event in enumerate(events) if isinstance(event, AllBlocksCleared)), default=len(events)
    )
    return events[last:]
