"""Sequences that wait for a row, and which of them is next."""

from __future__ import annotations

import heapq
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING, Any

from framework.engine.request import Request, Sequence
from framework.guard.allocator import GuardedAllocator
from framework.guard.facts import checked_facts
from framework.guard.scheduling import GuardedScheduling
from framework.interfaces.allocator import CacheEvent, Hit
from framework.interfaces.observer import Call
from framework.interfaces.scheduling import QueueView, RunningRequest, Scheduling, WaitingRequest
from framework.types import BlockHash

if TYPE_CHECKING:
    from framework.engine.state import EngineState


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


class OrderedQueue(WaitingQueue):
    """The queue as a plugin orders it, and what else the plugin decides.

    Sequences that ran before come first, as without a plugin: each is the recomputation of one that was preempted, or
    one of several samples or beams. The plugin orders those that have not run.

    Args:
        state: of the engine, with its allocator, rows and listeners.

    Attributes:
        num_overdue: requests that were passed over too often or waited too long, and were admitted before their place
            in the plugin's order for it.
    """

    def __init__(self, plugin: Scheduling, state: EngineState) -> None:
        super().__init__()
        self._plugin, self._state = GuardedScheduling(plugin), state
        guarded = state.guarded
        self._view = QueueView(guarded.num_blocks, guarded.block_size, self._blocks, self._all_running)
        self._hits = Hits(guarded) if plugin.needs_hits else None
        if self._hits is not None:
            state.listeners.append(self._hits.heard)
        self._requests: dict[Sequence, WaitingRequest] = {}
        self._next: list[Sequence] = []  # the next one last
        self._overdue: set[Sequence] = set()
        self._asked_in = -1
        self.num_overdue = 0

    def push(self, seq: Sequence) -> None:
        if seq.was_admitted:
            super().push(seq)
            return
        request = seq.request
        self._requests[seq] = WaitingRequest(
            seq.info, request.number, len(seq.tokens), request.arrival_s, lambda: self._found(seq)
        )

    def peek(self) -> Sequence | None:
        restored = super().peek()
        if restored is not None:
            return restored
        if self._asked_in != self._state.step_number:
            self._asked_in = self._state.step_number
            self._ask()
        while self._next and (self._next[-1].done or self._next[-1] not in self._requests):
            self._next.pop()
        return self._next[-1] if self._next else None

    def pop(self) -> Sequence:
        if super().peek() is not None:
            return super().pop()
        seq = self._next.pop()
        request = self._forget(seq)
        self.num_overdue += seq in self._overdue
        for other in self._requests.values():
            if other.number < request.number:
                other.passed += 1
        self._plugin.plugin.admitted(request, self._seen())
        return seq

    def __len__(self) -> int:
        return super().__len__() + sum(not seq.done for seq in self._requests)

    def __bool__(self) -> bool:
        return len(self) > 0

    def _ask(self) -> None:
        """Have the plugin put those that wait in order, and those whose bound is reached before them."""
        for seq in [seq for seq in self._requests if seq.done]:
            self._forget(seq)
        arrived = sorted(self._requests.items(), key=lambda entry: entry[1].number)
        sequences = {request.number: seq for seq, request in arrived}
        waiting = [request for _, request in arrived]
        chosen = self._plugin.order(waiting, self._seen()) if waiting else ()
        late = [request for request in waiting if self._is_late(request)]
        self._overdue = set()
        if late:
            places = {request.number: place for place, request in enumerate(chosen)}
            numbers = {request.number for request in late}
            chosen = [*late, *(request for request in chosen if request.number not in numbers)]
            self._overdue = {
                sequences[request.number] for place, request in enumerate(late) if place < places[request.number]
            }
        self._next = [sequences[request.number] for request in reversed(chosen)]

    def _is_late(self, request: WaitingRequest) -> bool:
        most, longest = self._plugin.max_passed, self._plugin.max_wait_s
        return (most is not None and request.passed >= most) or (
            longest is not None and self._view.now_s - request.arrival_s >= longest
        )

    def _forget(self, seq: Sequence) -> WaitingRequest:
        if self._hits is not None:
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
        """For the run's result: the plugin's bound, how often it was reached, and what the plugin itself says."""
        most, longest = self._plugin.max_passed, self._plugin.max_wait_s
        bounds = [f"passed over {most} times"] if most is not None else []
        bounds += [f"waited {longest:g} s"] if longest is not None else []
        own = checked_facts(self._plugin, self._plugin.plugin.facts())
        return {**own, "bound": " or ".join(bounds) or "none: a request may starve", "overdue": self.num_overdue}

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

    def _found(self, seq: Sequence) -> tuple[int, SequenceOf[BlockHash]]:
        if self._hits is None:
            raise self._plugin.fault("order", "reads what is cached, and its needs_hits is False")
        if seq not in self._requests:
            raise self._plugin.fault(
                "order", f"reads what is cached of request {seq.request.number}, which waits no more"
            )
        hit = self._hits.of(seq)
        return hit.num_tokens, hit.hashes


class Hits:
    """How much of each waiting prompt is cached: looked up once, then again only where the cache changed under it.

    A hit of whole blocks changes when one of them is evicted, or when the block after them is published. Others (see
    `Allocator.hits_whole_blocks`) are looked up whenever they are asked for.
    """

    def __init__(self, guarded: GuardedAllocator) -> None:
        self._guarded, self._follows = guarded, guarded.hits_whole_blocks
        self._hits: dict[Sequence, Hit] = {}
        self._watching: dict[BlockHash, set[Sequence]] = {}
        self._watched: dict[Sequence, SequenceOf[BlockHash]] = {}

    def of(self, seq: Sequence) -> Hit:
        """What is cached of the prompt of `seq` now."""
        hit = self._hits.get(seq)
        if hit is None:
            hit = seq.hit = self._guarded.lookup(seq.tokens, seq.request.namespace, seq.hit)
            if self._follows:
                self._hits[seq] = hit
                before, watched = self._watched.get(seq, ()), hit.hashes[: len(hit.blocks) + 1]
                for key in watched[len(before) :]:
                    self._watching.setdefault(key, set()).add(seq)
                self._watched[seq] = max(before, watched, key=len)
        return hit

    def heard(self, call: Call, events: SequenceOf[CacheEvent]) -> None:
        """The cache changed."""
        for event in events:
            for key in event.hashes:
                for seq in self._watching.get(key, ()):
                    self._hits.pop(seq, None)

    def forget(self, seq: Sequence) -> None:
        """`seq` waits no more."""
        for key in self._watched.pop(seq, ()):
            watching = self._watching[key]
            watching.discard(seq)
            if not watching:
                del self._watching[key]
        self._hits.pop(seq, None)
