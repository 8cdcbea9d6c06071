"""The numbered KV events of one cache, handed to every output, a batch a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from framework_kv_events.schema import AllBlocksCleared, BlockRemoved, Event


class Sink(ABC):
    """Where batches go."""

    @abstractmethod
    def put(self, sequence: int, step: float, events: Sequence[Event]) -> None:
        """Take one batch. Batches come in order, numbered from 0."""

    def close(self) -> None:  # noqa: B027
        """No batch comes any more. Idempotent."""

    def facts(self) -> dict[str, Any]:
        """What the run's result says of it."""
        return {}


class EventStream:
    """Collects what happens to a cache and passes it on at the end of each step.

    NOTE. A step publishes prompt blocks before it computes them, so that its later rows share them. Their events wait
    until the step has computed them: who follows the stream never asks for a block that is not there yet.

    Args:
        report_hits: also say which blocks a request found, as a BlockStored without a parent whose blocks are all known
            (vLLM's `kv_cache_report_mode` "full").

    Attributes:
        num_batches: passed on so far: the next batch's number.
    """

    def __init__(self, sinks: Iterable[Sink], *, report_hits: bool = False) -> None:
        self.sinks, self.report_hits = tuple(sinks), report_hits
        self.num_batches = self.num_removed = 0
        self._pending: list[Event] = []
        self._step = 0.0

    def add(self, event: Event) -> None:
        """One event, in the order in which things happened."""
        self._pending.append(event)

    def cleared(self) -> None:
        """Nothing of before can be found any more."""
        self._pending.append(AllBlocksCleared())

    def flush(self, step: float) -> None:
        """Pass on what was added since, if anything was, as one batch of this step."""
        events, self._pending, self._step = self._pending, [], step
        if not events:
            return
        self.num_removed += sum(len(event.block_hashes) for event in events if isinstance(event, BlockRemoved))
        number = self.num_batches
        self.num_batches += 1
        for sink in self.sinks:
            sink.put(number, step, events)

    def close(self) -> None:
        """Pass on what is left and end every sink. Idempotent."""
        self.flush(self._step)
        for sink in self.sinks:
            sink.close()

    def facts(self) -> dict[str, Any]:
        """What the run's result says of its events, those that are left passed on first."""
        self.flush(self._step)
        counted: dict[str, Any] = {
            "kv_event_batches": self.num_batches,
            "kv_event_removed_blocks": self.num_removed,
        }
        for sink in self.sinks:
            counted |= sink.facts()
        return counted
