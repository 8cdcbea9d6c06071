"""What a step does about requests that have not begun: those due are let in, and with none to compute it waits."""

from __future__ import annotations

import heapq

from framework.engine.lifecycle import Lifecycle
from framework.engine.request import Request, Status
from framework.engine.state import EngineState
from framework.errors import FrameworkError


def let_in(state: EngineState, now: float, *, virtual_clock: bool) -> None:
    """Move the requests that are due at `now` to the waiting queue; policies see `Request.arrival` from here on.

    Args:
        virtual_clock: policies see arrivals in the executor's seconds, else in steps: see PolicyTime.
    """
    arrivals = state.arrivals
    while arrivals and (arrivals[0][0] <= now or arrivals[0][2].status.ended):
        request: Request = heapq.heappop(arrivals)[2]
        if request.status.ended:
            continue
        request.arrival_step = state.step_number
        request.arrival = request.arrival_s if virtual_clock else float(request.arrival_step)
        # Numbered on arrival, so that a trace fed as it goes and one queued at once count alike.
        request.sequences[0].id = state.take_id()
        if request.group is not None:
            state.groups.append(request.group)
        state.waiting.push(request.sequences[0])
        state.note("arrive", request.sequences[0])


def idle(state: EngineState, life: Lifecycle) -> None:
    """Nothing to compute: wait for the next arrival, or end what can never go on."""
    stuck = state.waiting.peek()
    active = state.rows.active()
    next_s = state.arrivals[0][0] if state.arrivals else None
    if state.tiers is not None and state.tiers.busy:
        state.tiers.wait(next_s)
        return
    if stuck is None and not len(active):
        if next_s is not None:
            state.executor.wait_until(next_s)
        return
    last = state.rows.sequence(int(active[-1])) if len(active) else None
    if last is not None and stuck is not None and stuck.request is not last.request:
        life.preempt(last)
        return
    seq = stuck if stuck is not None else last
    if seq is not None:
        try:
            stats = state.guarded.stats()
        except FrameworkError as error:
            life.fail(seq, error)
            return
        life.drop(seq.request)
        life.end(
            seq.request,
            Status.FAILED,
            f"needs room for {len(seq.tokens)} tokens, has {stats.free_blocks} free + {stats.cached_blocks} "
            f"evictable of {stats.num_blocks} blocks and nothing else runs; raise cache.num_blocks",
        )
