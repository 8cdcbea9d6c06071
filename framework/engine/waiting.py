"""Sequences that wait for a row, and which of them is next."""

from __future__ import annotations

import heapq
from collections.abc import Sequence as SequenceOf
from typing import Any, Protocol

from framework.engine.executors.base import Executor
from framework.engine.request import Request, Sequence
from framework.engine.rows import Rows
from framework.guard.allocator import GuardedAllocator
from framework.guard.observer import Listener
from framework.guard.scheduling import Found, GuardedScheduling, WaitingHits
from framework.interfaces.allocator import CacheEvent
from framework.interfaces.observer import Call
from framework.interfaces.scheduling import QueueView, RunningRequest, Scheduling, WaitingRequest
from framework.types import PolicyTime


class WaitingQueue:
    """Sequences without a row: higher priority first, then preempted ones, then oldest."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, int, Sequence]] = []

    def push(self, seq: Sequence) -> None:
        """Enter, or re-enter after a preemption."""
        restored = 0 if seq.was_admitted else 1
        heapq.heappush(self._heap, (-seq.request.priority, restored, seq.request.number, seq.id, seq))

    def peek(self) -> Sequence | None:
        """The next to admit; drops those that were ended meanwhile."""
        while self._heap and self._heap[0][-1].done:
            heapq.heappop(self._heap)
        return self._heap[0][-1] if self._heap else None

    def pop(self) -> Sequence:
        """Remove and return what `peek` shows."""
        return heapq.heappop(self._heap)[-1]

    def __len__(self) -> int:
        return sum(not entry[-1].done for entry in self._heap)

    def __bool__(self) -> bool:
        return self.peek() is not None


class Engine(Protocol):
    """What an ordered queue reads of its engine's state."""

    guarded: GuardedAllocator
    executor: Executor
    rows: Rows
    listeners: list[Listener]
    step_number: int
    now: PolicyTime


class OrderedQueue(WaitingQueue):
    """The queue as a plugin orders it, and what else the plugin decides.

    Sequences that ran before come first, the one that was preempted last before the others, as in vLLM: each is the
    recomputation of one that was preempted, or one of several samples or beams. The plugin orders those that have not
    run. Rows are served, and preempted from the last, in order of admission.

    Args:
        state: of the engine.
    """

    def __init__(self, plugin: Scheduling, state: Engine) -> None:
        super().__init__()
        self._plugin, self._state = GuardedScheduling(plugin), state
        guarded = state.guarded
        self._view = QueueView(guarded.num_blocks, guarded.block_size, self._blocks, self._all_running)
        self._hits = WaitingHits(guarded.block_size if guarded.hits_whole_blocks else None)
        if plugin.needs_hits:
            state.listeners.append(self._heard)
        self._requests: dict[Sequence, WaitingRequest] = {}
        self._next: list[Sequence] = []  # the next one last
        self._asked_in, self._num_looks, self._num_returned = -1, 0, 0

    def push(self, seq: Sequence) -> None:
        request = seq.request
        if seq.was_admitted:
            self._num_returned += 1
            heapq.heappush(self._heap, (-request.priority, 0, -self._num_returned, seq.id, seq))
            return
        self._requests[seq] = WaitingRequest(
            seq.info, request.number, len(seq.tokens), request.arrival_s, lambda: self._found(seq)
        )

    def peek(self) -> Sequence | None:
        if self._asked_in != self._state.step_number:
            self._asked_in = self._state.step_number
            self._ask()
        while self._next and (self._next[-1].done or self._next[-1] not in self._requests):
            self._next.pop()
        seq = super().peek() or (self._next[-1] if self._next else None)
        if seq is not None:
            self._num_looks += 1
            seq.request.order = self._num_looks
        return seq

    def pop(self) -> Sequence:
        if super().peek() is not None:
            return super().pop()
        seq = self._next.pop()
        request = self._forget(seq)
        self._plugin.admitted(request, self._requests.values(), self._seen())
        return seq

    def __len__(self) -> int:
        return super().__len__() + sum(not seq.done for seq in self._requests)

    def __bool__(self) -> bool:
        return len(self) > 0

    def _ask(self) -> None:
        """Have the plugin put those that wait in order."""
        for seq in [seq for seq in self._requests if seq.done]:
            self._forget(seq)
        arrived = sorted(self._requests.items(), key=lambda entry: entry[1].number)
        sequences = {request.number: seq for seq, request in arrived}
        chosen = self._plugin.order([request for _, request in arrived], self._seen())
        self._next = [sequences[request.number] for request in reversed(chosen)]

    def _forget(self, seq: Sequence) -> WaitingRequest:
        self._hits.forget(seq)
        return self._requests.pop(seq)

    # What else the plugin decides

    def victim(self, running: SequenceOf[Sequence]) -> Sequence:
        """Which of these sequences, most important first, is preempted."""
        seen = [self._running(seq) for seq in running]
        chosen = self._plugin.victim(seen, self._seen())
        return running[-1] if chosen is None else running[next(at for at, one in enumerate(seen) if one is chosen)]

    def share(self, seq: Sequence, num_tokens: int, budget: int) -> int:
        """How many of the `num_tokens` that `seq` lacks this step computes, at most `budget`."""
        return self._plugin.share(seq.info, num_tokens, budget)

    def ended(self, request: Request) -> None:
        """`request` has ended."""
        if request.sequences:
            generated = request.num_output_tokens
            length = len(request.prompt) + generated
            one = RunningRequest(request.sequences[0].info, request.number, length, length, generated)
            self._plugin.plugin.ended(one, self._seen())

    def facts(self) -> dict[str, Any]:
        """As `GuardedScheduling.facts`."""
        return self._plugin.facts()

    # What it sees

    def _seen(self) -> QueueView:
        self._view.now, self._view.now_s = self._state.now, self._state.executor.now()
        return self._view

    def _blocks(self) -> tuple[int, int, int]:
        stats = self._state.guarded.stats()
        return stats.free_blocks, stats.cached_blocks, stats.used_blocks

    def _all_running(self) -> list[RunningRequest]:
        rows = self._state.rows
        return [self._running(rows.sequence(row)) for row in rows.active().tolist()]

    def _running(self, seq: Sequence) -> RunningRequest:
        rows, row = self._state.rows, seq.row
        length = int(rows.length[row])
        return RunningRequest(
            seq.info, seq.request.number, length, int(rows.computed[row]), length - len(seq.request.prompt)
        )

    def _found(self, seq: Sequence) -> Found:
        self._plugin.reads_hit(seq.request.number, waits=seq in self._requests)
        return self._hits.of(seq, lambda: self._find(seq))

    def _find(self, seq: Sequence) -> Found:
        hit = seq.hit = self._state.guarded.lookup(seq.tokens, seq.request.namespace, seq.hit)
        return hit.num_tokens, hit.hashes

    def _heard(self, call: Call, events: SequenceOf[CacheEvent]) -> None:
        for event in events:
            self._hits.changed(event.hashes)
