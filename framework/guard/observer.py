"""Checks of what observers answer, and the list of those that listen to an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from framework.guard.boundary import Guard
from framework.interfaces.allocator import CacheEvent
from framework.interfaces.observer import Call, Move, Note, Observed, Observer

Listener = Callable[[Call, Sequence[CacheEvent]], object]
"""(call, its cache events): a part of the framework that follows the cache; called where there are events."""


class GuardedObserver(Guard):
    """An observer whose answers are what they must be; else a PluginError names it. All else is asked of `plugin`."""

    def __init__(self, observer: Observer) -> None:
        super().__init__("observer", observer)

    def _mapping(self, hook: str, answer: Any) -> Mapping[str, Any]:
        if not isinstance(answer, Mapping) or not all(type(key) is str for key in answer):
            self.wrong(hook, "must return a mapping of texts", answer)
        return answer

    def row(self, request: int) -> Mapping[str, Any]:
        return self._mapping("row", self.plugin.row(request))

    def results(self) -> Mapping[str, Any]:
        return self._mapping("results", self.plugin.results())


class Observers:
    """Those that listen to one engine.

    Attributes:
        listeners: parts of the framework, which learn of each call before any observer.
        follows_calls: whether anybody wants to know of a call without events.
    """

    def __init__(self, observers: Sequence[Observer] = (), listeners: Sequence[Listener] = ()) -> None:
        self.listeners, self._observers = [*listeners], [*observers]
        self.follows_calls = bool(observers)

    def __bool__(self) -> bool:
        return bool(self.listeners or self._observers)

    def heard(self, call: Call, events: Sequence[CacheEvent]) -> None:
        """A call has ended."""
        if events:
            for listener in self.listeners:
                listener(call, events)
        for observer in self._observers:
            observer.heard(call, events)

    def begin(self, cache: Observed) -> None:
        for observer in self._observers:
            observer.begin(cache)

    def noted(self, note: Note) -> None:
        for observer in self._observers:
            observer.noted(note)

    def moved(self, move: Move) -> None:
        for observer in self._observers:
            observer.moved(move)
