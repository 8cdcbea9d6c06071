"""The extension point for scheduling: who of those that wait is next, who is preempted, how long a chunk is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from framework.types import BlockHash, PolicyTime, RequestInfo

__all__ = ["QueueView", "RunningRequest", "Scheduling", "ScoredScheduling", "WaitingRequest"]

FindHit = Callable[[], "tuple[int, Sequence[BlockHash]]"]
"""(cached leading tokens, chained hashes of the full blocks) of a request that waits, as the cache is now."""


class WaitingRequest:
    """What an order may know of a request that waits and has not run yet.

    Attributes:
        info: who sent it and what it says of itself.
        num_tokens: length of its prompt.
        max_new_tokens: the most it may generate; in a replay, what it will generate.
        arrival_s: when it arrived, seconds on the engine's clock.
        passed: requests that arrived later and were admitted before it.
    """

    __slots__ = ("_find", "arrival_s", "info", "max_new_tokens", "num_tokens", "number", "passed")

    def __init__(self, info: RequestInfo, number: int, num_tokens: int, arrival_s: float, find: FindHit) -> None:
        self.info, self.number, self.num_tokens, self.arrival_s = info, number, num_tokens, arrival_s
        self.max_new_tokens, self.passed, self._find = info.max_total_tokens - num_tokens, 0, find

    @property
    def hit_tokens(self) -> int:
        """Leading tokens that are cached now. Looked up once, then again only when the cache changed under it."""
        return self._find()[0]

    @property
    def rest_tokens(self) -> int:
        """Tokens that would be computed if it were admitted now."""
        return self.num_tokens - self._find()[0]

    @property
    def hashes(self) -> Sequence[BlockHash]:
        """Chained hashes of the prompt's full blocks, in order: equal ones name equal prefixes. Empty where the
        allocator names none."""
        return self._find()[1]

    def __repr__(self) -> str:
        return f"<WaitingRequest {self.number}: {self.num_tokens} tokens, passed over {self.passed} times>"


@dataclass(frozen=True, slots=True)
class RunningRequest:
    """What an order may know of a request that runs, or has just ended. Each sample and each beam runs by itself.

    Attributes:
        info: who sent it and what it says of itself.
        number: counts requests in order of submission.
        num_tokens: prompt and generated tokens.
        num_computed: of those, the ones whose KV is written.
        num_generated: tokens that it has generated.
    """

    info: RequestInfo
    number: int
    num_tokens: int
    num_computed: int
    num_generated: int


class QueueView:
    """What an order may read of the engine: at the moment that it is asked, and only then.

    Attributes:
        now: on the clock that policies see; `info.arrival` is in the same unit.
        now_s: seconds on the engine's clock; `arrival_s` is in the same unit.
        block_size: tokens a block.
        num_blocks: the pool's.
    """

    __slots__ = ("_blocks", "_running", "block_size", "now", "now_s", "num_blocks")

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        blocks: Callable[[], tuple[int, int, int]],
        running: Callable[[], Sequence[RunningRequest]],
    ) -> None:
        self.num_blocks, self.block_size, self._blocks, self._running = num_blocks, block_size, blocks, running
        self.now: PolicyTime = 0.0
        self.now_s = 0.0

    @property
    def free_blocks(self) -> int:
        """Blocks that hold nothing."""
        return self._blocks()[0]

    @property
    def cached_blocks(self) -> int:
        """Blocks that hold content which no request uses."""
        return self._blocks()[1]

    @property
    def used_blocks(self) -> int:
        """Blocks that requests use."""
        return self._blocks()[2]

    @property
    def running(self) -> Sequence[RunningRequest]:
        """Requests that run, the most important first, then in order of admission."""
        return self._running()


class Scheduling:
    """First come, first served within a priority; the base class of every order, with full control.

    Chosen by `scheduling=NAME`; constructor keywords are its options. It must be deterministic given its constructor's
    seed, and may not keep or change the sequences it is handed. Requests that ran before and were preempted are not
    asked about: they come back first, the last of them before the others, as in vLLM. Admission stops at the first
    request that has no room, as in vLLM: an order decides who that is.

    An order that lets requests be passed over says for how long: with `max_passed`, `max_wait_s` or both, the engine
    admits a request first that was passed over so often or has waited so long, oldest first, and counts how often that
    was not its place in the order (`scheduling_overdue`). Without a bound a request may starve, which every report then
    says.

    Attributes:
        max_passed: most requests that may pass a waiting one; None: no bound.
        max_wait_s: longest wait, seconds on the engine's clock, after which nobody passes it; None: no bound.
        needs_hits: whether `hit_tokens`, `rest_tokens` or `hashes` are read: the engine then follows the cache's
            events for it. Raises PluginError where they are read without.
    """

    max_passed: int | None = None
    max_wait_s: float | None = None
    needs_hits: ClassVar[bool] = False

    def order(self, waiting: Sequence[WaitingRequest], view: QueueView) -> Sequence[WaitingRequest] | None:
        """Those who wait, in the order in which to admit them, each once. None: in order of arrival.

        Asked before the first admission of a step, and no more often; where no row is free, not at all, as in vLLM.

        Args:
            waiting: in order of arrival.
        """
        return None

    def victim(self, running: Sequence[RunningRequest], view: QueueView) -> RunningRequest | None:
        """Whom to preempt where blocks ran out. None: the last of `running`.

        Args:
            running: those that may be preempted, at least one.
        """
        return None

    def share(self, request: RequestInfo, num_tokens: int, budget: int) -> int:
        """How many of the `num_tokens` that a prompt still lacks this step computes, 1 to `budget`.

        Args:
            budget: the least of what it lacks, of the step's tokens that are left, and of `engine.chunk_size`.
        """
        return budget

    def admitted(self, request: WaitingRequest, view: QueueView) -> None:
        """`request` waits no more: it runs from this step on, or loads blocks from below the pool first."""

    def ended(self, request: RunningRequest, view: QueueView) -> None:
        """`request` has ended, in whatever way, admitted or not; `num_generated` is of all its samples or beams."""

    def facts(self) -> dict[str, Any]:
        """What it measured, for the run's result: names to texts and finite numbers."""
        return {}


class ScoredScheduling(Scheduling):
    """An order by one number: the request with the smallest score is next, the older one among equals."""

    def score(self, request: WaitingRequest, view: QueueView) -> float:
        """Smallest first. Asked of every request that waits, before the first admission of a step."""
        raise NotImplementedError(f"{type(self).__name__} has no score(request, view)")

    def order(self, waiting: Sequence[WaitingRequest], view: QueueView) -> Sequence[WaitingRequest] | None:
        return sorted(waiting, key=lambda request: self.score(request, view))
