"""Error boundary around observers, and the list of those that listen to an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from framework.errors import FrameworkError
from framework.guard.boundary import Boundary
from framework.interfaces.allocator import CacheEvent
from framework.interfaces.observer import Call, Move, Note, Observed, Observer, RunView

Listener = Callable[[Call, Sequence[CacheEvent]], object]
"""(call, its cache events): a part of the framework that follows the cache; called where there are events."""


class GuardedObserver:
    """An observer whose every failure is an error of the framework that names distribution, class and method.

    Attributes:
        plugin: the observer itself.
    """

    def __init__(self, observer: Observer) -> None:
        self.plugin = observer
        self._boundary = Boundary("observer", type(observer), (FrameworkError,))

    def ask(self, hook: str, *given: Any) -> Any:
        """What its method answers.

        Raises:
            FrameworkError: it failed.
        """
        try:
            return getattr(self.plugin, hook)(*given)
        except BaseException as error:
            self.contain(hook, error)

    def contain(self, hook: str, error: BaseException) -> NoReturn:
        """Raise what its method raised as an error that names it."""
        self._boundary.contain(hook, error)

    def _mapping(self, hook: str, *given: Any) -> Mapping[str, Any]:
        found: Any = self.ask(hook, *given)
        if not isinstance(found, Mapping) or not all(type(key) is str for key in found):
            self._boundary.wrong(hook, "must return a mapping of texts", found)
        return found

    def start(self, run: RunView) -> None:
        self.ask("start", run)

    def row(self, request: int) -> Mapping[str, Any]:
        return self._mapping("row", request)

    def results(self) -> Mapping[str, Any]:
        return self._mapping("results")

    def close(self) -> None:
        self.ask("close")


class Observers:
    """Those that listen to one engine. What one of them raises is kept until `require`, and it is given no more.

    NOTE. It is called in the middle of a call of the allocator, whose caller knows what to do about an allocator that
    fails and nothing of observers: raised there, it would cost some request. The engine asks `require` after each step.

    Attributes:
        listeners: parts of the framework, which learn of each call before any observer.
        follows_calls: whether anybody wants to know of a call without events.
    """

    def __init__(self, observers: Sequence[Observer] = (), listeners: Sequence[Listener] = ()) -> None:
        self.listeners = [*listeners]
        self._observers = [GuardedObserver(observer) for observer in observers]
        self._hear = [(observer, observer.plugin.heard) for observer in self._observers]
        self.follows_calls = bool(self._observers)
        self._failure: FrameworkError | None = None

    def __bool__(self) -> bool:
        return bool(self.listeners or self._observers)

    def heard(self, call: Call, events: Sequence[CacheEvent]) -> None:
        """A call has ended."""
        if events:
            for listener in self.listeners:
                listener(call, events)
        for observer, hear in self._hear:
            try:
                hear(call, events)
            except BaseException as error:
                self._fail(observer, "heard", error)

    def begin(self, cache: Observed) -> None:
        self._tell("begin", cache)

    def noted(self, note: Note) -> None:
        self._tell("noted", note)

    def moved(self, move: Move) -> None:
        self._tell("moved", move)

    def _tell(self, hook: str, *given: Any) -> None:
        for observer in self._observers:
            try:
                getattr(observer.plugin, hook)(*given)
            except BaseException as error:
                self._fail(observer, hook, error)

    def _fail(self, observer: GuardedObserver, hook: str, error: BaseException) -> None:
        try:
            observer.contain(hook, error)
        except FrameworkError as named:
            self._failure = self._failure or named
        self._observers = [other for other in self._observers if other is not observer]
        self._hear = [(other, hear) for other, hear in self._hear if other is not observer]
        self.follows_calls = bool(self._observers)

    def require(self) -> None:
        """Raise what an observer raised since this was last asked."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
