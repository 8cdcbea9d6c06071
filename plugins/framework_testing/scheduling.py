"""Conformance kit of scheduling plugins: every request runs, in the same order each time, whatever arrives.

`scheduling_checks` are plain functions `check(make)`; `make()` builds a fresh plugin. Each drives an engine without a
model over made-up arrivals: bursts, a long prompt among many short ones, shared prefixes, several tenants and sessions,
and a pool that is too small for all that run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from framework.config.sections import EngineOptions
from framework.engine.engine import Engine, ModelLimits, Trial
from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.engine.request import Request, Status
from framework.interfaces.scheduling import Scheduling
from framework.registry.components import build_allocator
from framework.sampling import Sampling
from framework.types import Hint
from framework_testing.rules import blamed, checks_of, need, require_plain_facts, require_same_elsewhere

Make = Callable[[], Scheduling]

_MOST_STEPS = 4000
_SEEDS = range(4)


class _Run:
    """One engine and what was asked of it.

    Attributes:
        admitted: numbers of the requests in order of their first admission, and when that was.
    """

    def __init__(self, plugin: Scheduling, *, num_blocks: int = 64, chunk_size: int | None = None) -> None:
        self.admitted: dict[int, float] = {}
        self.requests: list[Request] = []
        self.engine = Engine(
            build_allocator("prefix_cow", "lru", "xxh64", num_blocks=num_blocks, block_size=4, max_model_len=128),
            ReplayExecutor(constant_step(0.5)),
            limits=ModelLimits(max_model_len=128),
            options=EngineOptions(max_batch_tokens=32, max_batch_requests=4, chunk_size=chunk_size),
            virtual_clock=True,
            scheduling=plugin,
            trial=Trial(log=self._log),
        )
        self._plugin = plugin

    def _log(self, event: str, **facts: Any) -> None:
        if event == "admit" and facts["request"] not in self.admitted:
            self.admitted[facts["request"]] = self.engine.executor.now()

    def submit(self, tokens: Sequence[int], new: int, at_s: float, **says: Any) -> None:
        sampling = Sampling(max_tokens=new, ignore_eos=True)
        self.requests.append(self.engine.submit(list(tokens), sampling, arrival_s=at_s, **says))

    def finish(self) -> None:
        """Step until all have ended.

        Raises:
            Violation: they do not end, one fails, or the plugin's answer is refused.
        """
        with blamed(self._plugin):
            for _ in range(_MOST_STEPS):
                if self.engine.state.requests:
                    self.engine.step()
        left = [one.number for one in self.requests if not one.status.ended]
        need(self._plugin, not left,
             f"must let every request run; after {_MOST_STEPS} steps these have not ended", left)  # fmt: skip
        failed = [(one.number, one.reason) for one in self.requests if one.status is not Status.FINISHED]
        need(self._plugin, not failed, "must let every request finish; these failed", failed)
        self.engine.check()


def _mixed(run: _Run, seed: int) -> None:
    """Arrivals of several tenants and sessions that share prefixes, some of them long."""
    draw = random.Random(seed)
    prefixes = [[100 * at + token for token in range(16)] for at in range(4)]
    at_s = 0.0
    for number in range(40):
        at_s += draw.choice((0.0, 0.0, 0.5, 3.0))
        prompt = prefixes[draw.randrange(4)][: draw.choice((0, 8, 16))]
        prompt = [*prompt, *(1000 + 50 * number + token for token in range(draw.choice((1, 3, 9, 60))))]
        run.submit(
            prompt, draw.randrange(1, 12), at_s, priority=draw.choice((0, 0, 1)), tenant=f"t{draw.randrange(3)}",
            session=f"s{draw.randrange(5)}", turn=draw.randrange(3),
            hint=Hint(deadline_s=draw.choice((1.0, 20.0))) if draw.random() < 0.5 else None,
        )  # fmt: skip


def check_every_request_runs(make: Make) -> None:
    """Each request that waits is named once whenever it is asked, and all of them finish."""
    for seed in _SEEDS:
        run = _Run(make())
        _mixed(run, seed)
        run.finish()


def check_it_ends_where_blocks_run_out(make: Make) -> None:
    """With a pool that is too small for those that run, preempted requests come back and all finish."""
    for seed in _SEEDS:
        run = _Run(make(), num_blocks=24)
        _mixed(run, seed)
        run.finish()


def check_chunks_are_computed(make: Make) -> None:
    """Prompts longer than a step's share are computed in chunks, none of which is empty or above the budget."""
    for seed in _SEEDS:
        run = _Run(make(), chunk_size=8)
        _mixed(run, seed)
        run.finish()


def check_its_bound_is_kept(make: Make) -> None:
    """However many arrive, no more pass a request than its `max_passed`, and nobody after its `max_wait_s`: a long
    prompt, and short ones that share a prefix after it."""
    plugin = make()
    most, longest = plugin.max_passed, plugin.max_wait_s
    if most is None and longest is None:
        return
    run = _Run(plugin, num_blocks=200)
    prefix = list(range(8))
    for number in range(8):  # what fills all rows first
        run.submit([*prefix, 500 + number], 6, 0.0, tenant="a", session="a")
    run.submit(range(2000, 2100), 2, 0.0, tenant="b", session="b")
    for number in range(int(min(max(20 * (most or 0), 4 * (longest or 0.0) + 40), 400))):
        run.submit([*prefix, 600 + number], 2, 0.5 * number, tenant="a", session="a", hint=Hint(deadline_s=0.1))
    run.finish()
    order = [*run.admitted]
    later = [number for number in order[: order.index(8)] if number > 8]
    # Those of the step in which the bound is reached were ordered before.
    if most is not None:
        need(plugin, len(later) <= most + 4, f"states max_passed={most}, and so many passed one request", later)
    if longest is not None:
        late = [number for number in later if run.admitted[number] > longest + 0.5]
        need(plugin, not late, f"states max_wait_s={longest}, and these passed a request that had waited longer", late)


def check_its_facts_are_plain(make: Make) -> None:
    """`facts` are names to texts and finite numbers, and reading them changes nothing."""
    plugin = make()
    require_plain_facts("scheduling", plugin)
    run = _Run(plugin)
    _mixed(run, 0)
    run.finish()
    require_plain_facts("scheduling", plugin)


def check_the_same_arrivals_are_ordered_alike(make: Make) -> None:
    """Fresh plugins admit the same requests in the same order; needs a picklable `make`."""
    require_same_elsewhere(ordered, make, "must order the same arrivals the same way")


def ordered(make: Make) -> str:
    """The order in which the requests of several draws are admitted."""
    orders = []
    for seed in _SEEDS:
        run = _Run(make(), num_blocks=40)
        _mixed(run, seed)
        run.finish()
        orders.append([*run.admitted])
    return repr(orders)


scheduling_checks = checks_of(globals())
