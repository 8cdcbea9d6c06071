"""Index of the blocks that a cache holds, from its KV events alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from framework.kv_events.schema import AllBlocksCleared, BlockRemoved, BlockStored, Event, EventBatch, Hash

Place = tuple[str | None, int | None]
"""(medium, KV cache group) of an event."""


@dataclass(slots=True)
class BlockIndex:
    """The blocks that can be found, by place: what a router keeps of each engine.

    An engine may hold several blocks of one content, publish each and remove each (vLLM does): a content is there until
    as many were removed as were stored. Where an engine also reports hits, such a report stores nothing.

    Args:
        report_hits: the stream says what requests found (kv_events.report_hits; kv_cache_report_mode "full" in vLLM): a
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
                    held = self.copies.setdefault((event.medium, event.group_idx), {})
                    for name in event.block_hashes:
                        held[name] = held.get(name, 0) + 1
            elif isinstance(event, BlockRemoved):
                self._remove(event)
            else:
                self.copies.clear()

    def is_report(self, event: BlockStored) -> bool:
        """Whether this event says what a request found, and stores nothing."""
        if not self.report_hits or event.parent_block_hash is not None:
            return False
        held = self.copies.get((event.medium, event.group_idx), {})
        return all(name in held for name in event.block_hashes)

    def _remove(self, event: BlockRemoved) -> None:
        held = self.copies.get((event.medium, event.group_idx), {})
        for name in event.block_hashes:
            count = held.get(name, 0)
            if count > 1:
                held[name] = count - 1
            elif count:
                del held[name]
            else:
                self.num_unknown_removals += 1

    def blocks(self, medium: str | None = None) -> set[Hash]:
        """The contents that are there, in `medium` or anywhere."""
        return {name for place, held in self.copies.items() if medium in (None, place[0]) for name in held}

    def find(self, hashes: Sequence[Hash], medium: str | None = None) -> int:
        """How many leading blocks of a prompt are there, all in `medium` or each anywhere."""
        places = [held for place, held in self.copies.items() if medium in (None, place[0])]
        for number, name in enumerate(hashes):
            if not any(name in held for held in places):
                return number
        return len(hashes)


def clears(batch: EventBatch) -> bool:
    """Whether nothing of before the batch is there after it."""
    return any(isinstance(event, AllBlocksCleared) for event in batch.events)


def after_clear(batch: EventBatch) -> Sequence[Event]:
    """The events of a batch from its last AllBlocksCleared on; all, where there is none."""
    last = max((at for at, event in enumerate(batch.events) if isinstance(event, AllBlocksCleared)), default=0)
    return batch.events[last:]
