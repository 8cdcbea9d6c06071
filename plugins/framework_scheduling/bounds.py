"""Bounds of what an order of the waiting queue can reach: most hits, and the best order of a few requests by search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from framework.engine.engine import Engine
from framework.engine.request import Request
from framework.errors import InvalidArgument
from framework.interfaces.scheduling import QueueView, Scheduling, WaitingRequest
from framework.interfaces.workload import WorkloadRequest
from framework.replay.items import submit
from framework.types import Contents, Namespace

Floats = npt.NDArray[np.float64]
Make = Callable[[Scheduling], Engine]
"""An order -> an engine that has it, empty."""
Statistic = Callable[[Floats], float]
"""(R,) of each request what is to be small -> one number, which may not fall where one of them rises."""
OF = ("missed_tokens", "ttft_s")
"""What is to be small of each request: prompt tokens that it computes, or the time to its first token."""


@dataclass(frozen=True, slots=True)
class MostHits:
    """Upper bounds of hit tokens over all orders of admission, all policies and all sizes of the cache.

    Attributes:
        each: of each request the most that it could hit: the full blocks of its prompt that some other request has
            too, whoever comes first.
        together: of all requests. Of those that have a block, one computes it.
    """

    each: tuple[int, ...]
    together: int


def most_hits(requests: Sequence[WorkloadRequest], block_size: int) -> MostHits:
    """The most tokens that requests could hit if nothing were evicted, in whatever order they were admitted.

    A hit is of full blocks, and leaves one token of the prompt to compute.

    Args:
        requests: of token ids; those that are rejected left out. A recorded output can be hit as well.
        block_size: 1 bounds allocators that share single tokens.
    """
    names: dict[tuple[int, bytes, Contents], int] = {}
    roots: dict[Namespace, int] = {}
    paths, usable = list[list[int]](), list[int]()
    for request in requests:
        if request.tokens is None:
            raise InvalidArgument("bounds need prompts of token ids; hand a trace's requests through trace_items")
        whole = request.tokens if request.output is None else np.concatenate([request.tokens, request.output])
        space = request.namespace
        node, path = roots.setdefault(space.root, -1 - len(roots)), list[int]()
        for start in range(0, len(whole) - block_size + 1, block_size):
            end = start + block_size
            node = names.setdefault((node, whole[start:end].tobytes(), space.within(start, end)), len(names))
            path.append(node)
        paths.append(path)
        usable.append((len(request.tokens) - 1) // block_size)
    holders = Counter(node for path in paths for node in path)
    users = Counter(node for path, count in zip(paths, usable, strict=True) for node in path[:count])
    # One that holds a block without hitting it, at the end of its prompt or in its output, may come first.
    together = sum(count - (count == holders[node]) for node, count in users.items())
    each = [sum(holders[node] > 1 for node in path[:count]) for path, count in zip(paths, usable, strict=True)]
    return MostHits(tuple(block_size * count for count in each), block_size * together)


@dataclass(frozen=True, slots=True)
class BestOrder:
    """The best of all orders of admission.

    Attributes:
        value: the statistic's least value.
        admitted: numbers of requests, from 0, as this order admits them.
        num_runs: of the engine, to find it.
    """

    value: float
    admitted: tuple[int, ...]
    num_runs: int


def best_order(
    make: Make, requests: Sequence[WorkloadRequest], of: str, statistic: Statistic = np.sum, most_runs: int = 20_000
) -> BestOrder:
    """Try every order of admission of a few requests in the engine, but for those that cannot be better.

    An order chooses, whenever the engine asks, who is admitted next, and may choose one that has no room, so that
    nobody is. Chunks and who is preempted are the engine's. Branch and bound: depth first, by runs from the beginning.
    A branch is left where the statistic, of what is known and the least that is left to the others, is no better than
    the best, or where another branch has admitted the same requests at the same times.

    Args:
        make: called for each run; deterministic.
        requests: of token ids and one sample each, in order of arrival.
        of: one of `OF`.

    Raises:
        InvalidArgument: more than `most_runs` runs, several samples, or a request that does not finish.
    """
    if of not in OF or any(request.sampling.n > 1 or request.sampling.beam_width > 1 for request in requests):
        raise InvalidArgument(f"a search takes one of {', '.join(OF)} and requests of one sample, found {of!r}")
    block_size = 1 if not requests else make(Scheduling()).allocator.block_size
    most = most_hits(requests, block_size).each
    least = [one.input_tokens - hits for one, hits in zip(requests, most, strict=True)]
    best, seen, stack, num_runs = BestOrder(np.inf, (), 0), set[object](), [_Branch((), -np.inf)], 0
    while stack:
        branch = stack.pop()
        if branch.bound >= best.value:
            continue
        if num_runs == most_runs:
            raise InvalidArgument(
                f"a search over {len(requests)} requests takes more than {most_runs} runs; give fewer"
            )
        num_runs += 1
        run = _Run(branch.script, seen)
        value = run.through(make, requests, least if of == "missed_tokens" else None, statistic, best.value)
        if value is not None and value < best.value:
            best = BestOrder(value, tuple(number for ask in run.asks for number in ask.admitted), 0)
        stack += [further for further in run.further() if further.bound < best.value]
    return BestOrder(best.value, best.admitted, num_runs)


@dataclass(frozen=True, slots=True)
class _Branch:
    """Orders to give at the first asks, and what no run that begins so comes below."""

    script: tuple[tuple[int, ...], ...]
    bound: float


@dataclass(slots=True)
class _Ask:
    """An answer of `order`: all that waited, in the order given; how many of these could be admitted."""

    order: tuple[int, ...]
    num_rows: int
    bound: float
    admitted: list[int] = field(default_factory=list)


class _Run(Scheduling):
    """Gives the orders of a script, then most hits first, and keeps what was asked."""

    needs_hits = True

    def __init__(self, script: Sequence[tuple[int, ...]], seen: set[object]) -> None:
        self.asks: list[_Ask] = []
        self._script, self._seen, self._left = script, seen, False

    def through(
        self,
        make: Make,
        requests: Sequence[WorkloadRequest],
        least: Sequence[int] | None,
        statistic: Statistic,
        best: float,
    ) -> float | None:
        """The statistic of a whole run; None where it was left."""
        engine = make(self)
        self._most_rows = engine.state.rows.max_rows
        asked = [submit(engine, request) for request in requests]

        def bound() -> float:
            return float(statistic(np.array([*_costs(asked, least, engine.executor.now())])))

        self._bound, self._best = bound, best
        while engine.num_unfinished and not self._left:
            engine.step()
        if self._left:
            return None
        if unfinished := [one.number for one in asked if one.first_token_s is None]:
            raise InvalidArgument(f"requests {unfinished} got no token: {asked[unfinished[0]].reason}")
        return bound()

    def order(self, waiting: Sequence[WaitingRequest], view: QueueView) -> Sequence[WaitingRequest] | None:
        place, bound = len(self.asks), self._bound()
        if place >= len(self._script):
            state = tuple(tuple(ask.admitted) for ask in self.asks)
            self._left = self._left or state in self._seen or bound >= self._best
            self._seen.add(state)
        first = self._script[place] if place < len(self._script) else ()
        by_number = {request.number: request for request in waiting}
        rest = sorted(by_number.keys() - set(first), key=lambda number: (-by_number[number].hit_tokens, number))
        numbers = (*first, *rest)
        self.asks.append(_Ask(numbers, 0 if self._left else self._most_rows - len(view.running), bound))
        return [by_number[number] for number in numbers]

    def admitted(self, request: WaitingRequest, view: QueueView) -> None:
        self.asks[-1].admitted.append(request.number)

    def further(self) -> Iterator[_Branch]:
        """Every other choice that could have been made after the script's last, the earliest first."""
        begun = max(0, len(self._script) - 1)
        orders = tuple(ask.order for ask in self.asks)
        for place, ask in enumerate(self.asks[begun:], begun):
            fixed = len(self._script[place]) if place < len(self._script) else 0
            for at in range(fixed, min(len(ask.admitted) + 1, ask.num_rows)):
                for other in ask.order[at + 1 :]:
                    yield _Branch((*orders[:place], (*ask.order[:at], other)), ask.bound)


def _costs(asked: Sequence[Request], least: Sequence[int] | None, now_s: float) -> Iterator[float]:
    """What each request cost, or the least that it can still cost. `least`: of tokens; None: it is time."""
    for number, one in enumerate(asked):
        if least is None:
            yield max(0.0, (now_s if one.first_token_s is None else one.first_token_s) - one.arrival_s)
        else:
            yield float(least[number] if one.first_scheduled_s is None else len(one.prompt) - one.num_cached_tokens)
