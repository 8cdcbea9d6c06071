"""When each request of a workload is sent: at the trace's times, or after the answers that it waits for."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf

from framework.errors import ConfigError, WorkloadError
from framework.interfaces.workload import WorkloadRequest


class OpenLoop:
    """Requests leave at their times, whatever became of those before: the trace's own order. One is read ahead.

    Args:
        most: requests that may be under way at once; the others wait at their clients. None: no limit.
    """

    name = "open"

    def __init__(self, requests: Iterable[WorkloadRequest], most: int | None = None) -> None:
        self._slots = None if most is None else [0.0] * most  # a heap: since when each is free
        self._read(requests)

    def _read(self, requests: Iterable[WorkloadRequest]) -> None:
        self._source: Iterator[tuple[int, WorkloadRequest]] = iter(enumerate(requests))
        self._next = next(self._source, None)

    def _due_s(self) -> float:
        return inf if self._next is None else self._next[1].arrival_s

    def _take(self) -> tuple[int, WorkloadRequest]:
        assert self._next is not None
        taken, self._next = self._next, next(self._source, None)
        return taken

    @property
    def next_s(self) -> float:
        """When the next request leaves; infinite where none does before another answer, or at all."""
        if self._slots is None:
            return self._due_s()
        return max(self._due_s(), self._slots[0]) if self._slots else inf

    def pop(self) -> tuple[int, WorkloadRequest]:
        """The next request: its place in the workload, and itself with the time at which it is sent as its arrival."""
        at_s = self.next_s
        place, request = self._take()
        if self._slots is not None:
            heapq.heappop(self._slots)
        return place, request if request.arrival_s == at_s else replace(request, arrival_s=at_s)

    def ended(self, place: int, at_s: float) -> None:
        """The request of this place has ended at this time, in whatever way."""
        if self._slots is not None:
            heapq.heappush(self._slots, at_s)


class ClosedLoop(OpenLoop):
    """Requests leave `delay_s` after the last answer that they wait for; those that wait for none, at their times.

    One whose predecessor failed or was rejected is sent all the same, so that every run sends the same requests. Holds
    all requests.

    Raises:
        WorkloadError: a key twice, one waited for that no request has, or requests that wait for one another.
    """

    name = "closed"

    def _read(self, requests: Iterable[WorkloadRequest]) -> None:
        self._requests = list(requests)
        self._following: defaultdict[int, list[int]] = defaultdict(list)
        places = _places(self._requests)
        for place, request in enumerate(self._requests):
            for key in dict.fromkeys(request.after):
                if key not in places:
                    raise WorkloadError(
                        f"request {request.key or place!r} comes after {key!r}, which no request of the workload is; "
                        "a limit may have cut it off"
                    )
                self._following[places[key]].append(place)
        self._waits = [len(set(request.after)) for request in self._requests]  # answers that each still waits for
        self._ready_s = [0.0 if request.after else request.arrival_s for request in self._requests]
        _require_an_order(self._requests, self._waits, self._following)
        self._left = [(self._ready_s[place], place) for place, waits in enumerate(self._waits) if not waits]
        heapq.heapify(self._left)

    def _due_s(self) -> float:
        return self._left[0][0] if self._left else inf

    def _take(self) -> tuple[int, WorkloadRequest]:
        at_s, place = heapq.heappop(self._left)
        return place, replace(self._requests[place], arrival_s=at_s)

    def ended(self, place: int, at_s: float) -> None:
        super().ended(place, at_s)
        for later in self._following.pop(place, ()):
            self._ready_s[later] = max(self._ready_s[later], at_s)
            self._waits[later] -= 1
            if not self._waits[later]:
                waiting = self._requests[later]
                leaves_s = max(self._ready_s[later] + waiting.delay_s, waiting.not_before_s)
                heapq.heappush(self._left, (leaves_s, later))


def chained(requests: Iterable[WorkloadRequest], answer_s_per_token: float) -> Iterator[WorkloadRequest]:
    """Requests of a trace with times alone, each after the one before it in its session.

    The think time is the recorded gap between their arrivals, less the time that the recorded answer took: so many
    seconds a token of it; never below 0.

    Raises:
        ConfigError: a request without a session.
    """
    last: dict[str, WorkloadRequest] = {}
    for number, request in enumerate(requests):
        if request.session is None:
            raise ConfigError(
                "mode.loop=closed needs to know which request comes after which: this trace has neither `after` nor "
                "sessions; take mode.loop=open"
            )
        named = replace(request, key=request.key or f"{request.session}:{number}")
        before = last.get(request.session)
        last[request.session] = named
        if before is not None:
            gap_s = request.arrival_s - before.arrival_s
            answer_s = answer_s_per_token * (before.output_tokens or 0)
            named = replace(named, after=(before.key,), delay_s=max(0.0, gap_s - answer_s))
        yield named


def _places(requests: Sequence[WorkloadRequest]) -> dict[str, int]:
    places: dict[str, int] = {}
    for place, request in enumerate(requests):
        if request.key and places.setdefault(request.key, place) != place:
            raise WorkloadError(f"two requests have the key {request.key!r}; in a closed loop a key names one")
    return places


def _require_an_order(
    requests: Sequence[WorkloadRequest], waits: Sequence[int], following: dict[int, list[int]]
) -> None:
    """No request waits, over others, for itself."""
    left = list(waits)
    free = [place for place, count in enumerate(left) if not count]
    done = 0
    while free:
        done += 1
        for place in following.get(free.pop(), ()):
            left[place] -= 1
            if not left[place]:
                free.append(place)
    if done < len(requests):
        place = next(place for place, count in enumerate(left) if count)
        raise WorkloadError(f"request {requests[place].key or place!r} waits, over others, for itself; check `after`")
