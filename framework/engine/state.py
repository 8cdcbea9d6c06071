"""State of one engine: its requests, rows, queues and counts."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Any

from framework.engine.executors.base import Executor
from framework.engine.metrics import Metrics
from framework.engine.request import BeamGroup, Request, Sequence
from framework.engine.rows import Rows
from framework.engine.waiting import OrderedQueue, WaitingQueue
from framework.guard.allocator import GuardedAllocator
from framework.guard.observer import Listener, Observers
from framework.interfaces.allocator import CacheEvent
from framework.interfaces.below import EngineBelow
from framework.interfaces.compression import Compressor
from framework.interfaces.observer import Call, Note, Observer
from framework.types import PolicyTime, RequestId

Log = Callable[..., Any]
"""(event, **facts): receives scheduling and cache events."""

Foresee = Callable[[Sequence, bool], list[float]]
"""(sequence, returning): called as a sequence is about to free its blocks, and whether it will want them again."""


LOG_VERSION = 2
"""Version of the event log. 1 had no such line, and called a `publish` "admit", as it does a request's admission."""


@dataclass(slots=True, eq=False, kw_only=True)
class EngineState:
    """The requests of an engine, the rows and blocks they hold, and what was counted of them.

    A reset replaces it as a whole: work that was begun before and comes late changes a state that nobody reads.

    Attributes:
        guarded: the allocator, whose answers are checked.
        observers: hear what the engine does; None where nobody listens.
        foresee: when each leading block of a sequence is requested next, as a replay knows it; None without.
        on_end: called with each request as it ends, completions and status in place.
        requests: that have not ended, by number.
        arrivals: a heap of (arrival, number, request) that are not due yet.
        ordered: the same as `waiting` where a plugin orders it, else None.
        compressor: drops tokens of what runs; None: nothing is dropped.
        groups: of beam searches that have arrived.
        tiers: what lies below the pool.
        listeners: of the tiers, which hear the allocator's events.
        reserved_rows: kept free for samples that will be forked off.
        step_number: steps begun.
        now: of the step that began last, on the clock that policies see.
        last_id: of the sequence that arrived last.
    """

    guarded: GuardedAllocator
    executor: Executor
    rows: Rows
    metrics: Metrics
    observers: Observers | None = None
    foresee: Foresee | None = None
    on_end: Callable[[Request], object] | None = None
    tiers: EngineBelow = field(default_factory=EngineBelow)
    listeners: list[Listener] = field(default_factory=list)
    requests: dict[int, Request] = field(default_factory=dict)
    arrivals: list[tuple[float, int, Request]] = field(default_factory=list)
    waiting: WaitingQueue = field(default_factory=WaitingQueue)
    ordered: OrderedQueue | None = None
    compressor: Compressor | None = None
    groups: list[BeamGroup] = field(default_factory=list)
    reserved_rows: int = 0
    step_number: int = 0
    now: PolicyTime = 0.0
    last_id: int = 0

    def take_id(self) -> RequestId:
        """A sequence id nobody had before."""
        self.last_id += 1
        return RequestId(self.last_id)

    def summary(self, *, complete: bool = True) -> dict[str, Any]:
        """What was counted so far, as a run's result has it. `complete`: see `Metrics.summary`."""
        ordered = {} if self.ordered is None else self.ordered.facts()
        facts = {f"scheduling_{name}": value for name, value in ordered.items()}
        dropped = {} if self.compressor is None else self.compressor.summary()
        return self.metrics.summary(complete=complete) | self.tiers.summary() | facts | dropped

    def step_row(self) -> dict[str, Any]:
        """One line for a run's metrics file."""
        now = {"time_s": self.executor.now(), "waiting": len(self.waiting)}
        return now | self.metrics.step_row() | self.tiers.step_row()

    def holdings(self) -> dict[str, Any]:
        """Requests and blocks by what is done with them now."""
        stats = self.guarded.stats()
        blocks = {f"{kind}_blocks": getattr(stats, f"{kind}_blocks") for kind in ("num", "free", "cached", "used")}
        requests = {"running": self.rows.num_active, "waiting": len(self.waiting), "unfinished": len(self.requests)}
        return requests | blocks

    def note(self, event: str, seq: Sequence, **facts: Any) -> None:
        """Tell the observers what became of a sequence."""
        if self.observers is not None:
            self.observers.noted(Note(event, self.step_number, seq.request.number, seq, facts))


class EventLog(Observer):
    """The log of scheduling and cache events: no wall clock, no object ids."""

    _OTHERS = ("ask", "computed", "queue")

    def __init__(self, log: Log, step: Callable[[], int]) -> None:
        self._log, self._step = log, step
        log("log", version=LOG_VERSION)

    def heard(self, call: Call, events: SequenceOf[CacheEvent]) -> None:
        for event in events:
            kind = "publish" if event.kind == "admit" else event.kind
            facts = {"group": event.group} if event.group else {}
            for block, key in zip(event.blocks, event.hashes, strict=True):
                self._log(kind, step=self._step(), block=int(block), key=bytes(key).hex(), **facts)

    def noted(self, note: Note) -> None:
        if note.subject is not None and note.event not in self._OTHERS:
            self._log(note.event, step=note.step, request=note.request, sequence=note.subject.id, **note.facts)
        elif note.event == "step":
            self._log("step", step=note.step, **note.facts)
