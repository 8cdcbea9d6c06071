"""An index kept in step with a stream of numbered batches, some of which are lost, repeated or late."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from framework.kv_events.index import BlockIndex, after_clear, clears
from framework.kv_events.schema import EventBatch

Numbered = tuple[int, EventBatch]
Replay = Callable[[int], Iterable[Numbered]]
"""Asks the publisher for its batches from a number on, in order; raises or yields nothing where it cannot."""


@dataclass(slots=True)
class Follower:
    """Takes batches as they come and says whether the index is what the cache holds.

    NOTE. A batch whose number is past the next one is a gap. What is missing is asked for again; where the publisher
    has it no longer, the index is unknown and empty until an AllBlocksCleared: a lost removal would leave blocks in it
    that are gone. A number before the next one repeats what is known already and changes nothing, unless its time
    is later than the last batch's: then the publisher began anew, with an empty cache.

    Args:
        index: starts empty, as a cache does.
        replay: how to ask for what was missed; None: it cannot be.

    Attributes:
        next: number of the batch that comes next: the index is of the moment before it.
        known: whether the index is the cache.
        num_gaps: gaps seen. num_recovered, num_lost: batches in them that were had again, and that were not.
        num_repeated: batches ignored because they were known. num_restarts: of the publisher.
    """

    index: BlockIndex = field(default_factory=BlockIndex)
    replay: Replay | None = None
    next: int = 0
    known: bool = True
    last_ts: float = float("-inf")
    num_gaps: int = 0
    num_recovered: int = 0
    num_lost: int = 0
    num_repeated: int = 0
    num_restarts: int = 0
    on_batch: Callable[[int, EventBatch], object] | None = None
    """Called with every batch, in order and once, as it takes effect; also while the index is unknown."""

    def take(self, number: int, batch: EventBatch) -> bool:
        """One batch as it came; returns `known`."""
        if number < self.next:
            if batch.ts <= self.last_ts:
                self.num_repeated += 1
                return self.known
            self._restart()
        if number > self.next:
            self._recover(number)
        if number == self.next:
            self._apply(number, batch)
        return self.known

    def _restart(self) -> None:
        self.num_restarts += 1
        self.next, self.known = 0, True
        self.index.copies.clear()

    def _recover(self, number: int) -> None:
        """Have the batches from `next` to before `number` again, or lose them."""
        self.num_gaps += 1
        for found, batch in self._again():
            if found == self.next and found < number:
                self.num_recovered += 1
                self._apply(found, batch)
            elif found > self.next:
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
        if self.known:
            self.index.apply(batch.events)
        elif clears(batch):
            self.known = True
            self.index.apply(after_clear(batch))
        if self.on_batch is not None:
            self.on_batch(number, batch)
