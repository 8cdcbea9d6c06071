"""What the gap experiment replays beside installed policies: in-sample bounds, labels of a known error, variants."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from framework.interfaces.eviction import BlockView, EvictionPolicy
from framework.registry.components import build_component
from framework.replay.paths import KnownRequests, RequestPaths
from framework.replay.reference import replay
from framework.types import Hint
from framework_builtin.eviction import _returns
from framework_builtin.eviction.hazard import Hazard


class Fitted(Hazard):
    """Hazard with the estimates of a whole trace known from the start: a bound for its features, not a result."""

    def __init__(self, estimate: Any) -> None:
        super().__init__(tolerance=1.0, window=1 << 20)
        self._estimate = estimate

    def attach(self, blocks: BlockView) -> None:
        super().attach(blocks)
        self._returns = copy.deepcopy(self._estimate)
        self._as_lru = False

    def release(self, blocks: Sequence[Any], now: float) -> None:
        super().release(blocks, now)
        if self._as_lru:
            self._as_lru = False
            self.rescore()

    def refresh(self) -> None:
        """Nothing is learnt any more."""


def fitted(paths: RequestPaths, capacity: int) -> EvictionPolicy:
    """Hazard fitted on the trace that it is then replayed on."""
    first = Hazard(tolerance=1.0, window=1 << 20)
    replay(paths, first, capacity)
    first._returns.learn(first._clock)
    return Fitted(first._returns)


class FreeShapes(_returns.Returns):
    """Hazards by age as they were counted, not made to fall with it."""

    def learn(self, now: float) -> None:
        falling = _returns._falling
        _returns._falling = lambda values, weights: values  # type: ignore[assignment]
        try:
            super().learn(now)
        finally:
            _returns._falling = falling


class Variant(Hazard):
    """Hazard with one of its choices undone."""

    def __init__(self, without: str) -> None:
        super().__init__(**({"tolerance": 1.0} if without == "guard" else {}))
        self._without = without

    def attach(self, blocks: BlockView) -> None:
        super().attach(blocks)
        if self._without == "falling shapes":
            self._returns = FreeShapes(4, self.window)
        if self._without == "memory of the evicted":
            self._most_ghosts = 0

    def features(self, facts: Any, num_blocks: int, gap: float | None) -> tuple[int, ...]:
        found = super().features(facts, num_blocks, gap)
        return (0, 0, 0, 0, 0, 0) if self._without == "features" else found

    def _bodies(self, blocks: Sequence[Any], num_new: int, *others: Any) -> None:
        super()._bodies(blocks, 0 if self._without == "parts" else num_new, *others)

    def _moved_on(self) -> bool:
        return self._without != "parts" and super()._moved_on()

    def _forget(self) -> None:
        if self._without == "memory of the evicted":
            self._ghosts.clear()
        super()._forget()


VARIANTS = ("features", "parts", "falling shapes", "memory of the evicted", "guard")


def build(name: str, paths: RequestPaths, capacity: int) -> EvictionPolicy:
    """A policy of the experiment: an installed one, "fitted", or "without X"."""
    if name == "fitted":
        return fitted(paths, capacity)
    if name.startswith("without "):
        return Variant(name.removeprefix("without "))
    policy, _, options = name.partition(" ")
    given = dict(part.split("=") for part in options.split()) if options else {}
    chosen = {"name": policy, **{key: float(value) if "." in value else int(value) for key, value in given.items()}}
    built: EvictionPolicy = build_component("eviction", chosen, {"num_blocks": capacity, "seed": 0, "block_size": 512})
    return built


def continuations(paths: RequestPaths) -> tuple[list[bool], list[float]]:
    """(R,) whether a later prompt extends each request's, and (R,) seconds until the first such arrives."""
    last: dict[int, int] = {}
    known = paths.known
    times = known.arrival if known is not None else [float(i) for i in range(paths.num_requests)]
    extended, gaps = [False] * paths.num_requests, [0.0] * paths.num_requests
    for request, (start, full) in enumerate(zip(paths.starts.tolist(), paths.full_blocks.tolist(), strict=False)):
        path = paths.nodes[start : start + full].tolist()
        for node in path:
            before = last.get(node)
            if before is not None and not extended[before]:
                extended[before], gaps[before] = True, (times[request] or 0.0) - (times[before] or 0.0)
        if path:
            last[path[-1]] = request
    return extended, gaps


def with_labels(paths: RequestPaths, error: float, seed: int = 0) -> RequestPaths:
    """The trace whose clients say whether they will continue, wrong with this probability."""
    extended, _ = continuations(paths)
    wrong = np.random.default_rng(seed).random(len(extended)) < error
    hints = [Hint(continues=float(truth != lie)) for truth, lie in zip(extended, wrong.tolist(), strict=True)]
    return _with_hints(paths, hints)


def with_times(paths: RequestPaths, sigma: float, seed: int = 0) -> RequestPaths:
    """The trace whose clients say when they come back, with a log-normal error; who does not come back says nothing."""
    extended, gaps = continuations(paths)
    noise = np.exp(np.random.default_rng(seed).normal(0.0, sigma, len(gaps)))
    hints = [
        Hint(returns_s=gap * factor) if truth else None
        for truth, gap, factor in zip(extended, gaps, noise.tolist(), strict=True)
    ]
    return _with_hints(paths, hints)


def _with_hints(paths: RequestPaths, hints: Sequence[Hint | None]) -> RequestPaths:
    foretold = copy.copy(paths)
    known = paths.known or KnownRequests.empty()
    object.__setattr__(foretold, "known", KnownRequests(**{**_columns(known), "hint": list(hints)}))
    return foretold


def _columns(known: KnownRequests) -> dict[str, Any]:
    return {name: getattr(known, name) for name in KnownRequests.__dataclass_fields__}
