"""Conformance kit of routers: every request is sent once, to a replica that is there, and the same way each time.

`router_checks` are plain functions `check(make)`; `make()` builds a fresh plugin. Each drives a small fleet without a
model over drawn agents, whose prompts share beginnings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from framework import workload
from framework.config.check import parse
from framework.engine.engine import Trial
from framework.errors import FrameworkError
from framework.registry.components import build_component
from framework_fleet.fleet import Fleet, Sight
from framework_fleet.guard import GuardedRouter
from framework_fleet.loop import ClosedLoop, OpenLoop
from framework_fleet.replica import Replica, Sent
from framework_fleet.router import Router
from framework_testing.driver import Violation
from framework_testing.rules import checks_of, need, require_plain_facts, require_same_elsewhere

Make = Callable[[], Router]

_SIZE, _MOST_STEPS = 8, 20_000


def _chosen(
    plugin: Router, *, replicas: int = 3, seed: int = 0, closed: bool = False, sight: Sight | None = None,
    outages: Sequence[tuple[float, int, bool]] = (),
) -> list[tuple[int, float, int]]:  # fmt: skip
    """(request, when it was routed last, where) of each request, in the order of ends.

    Raises:
        Violation: the plugin's answer is refused, it raises, or requests are left.
    """
    config = parse({
        "mode": "replay", "executor": "none", "replay": {"step_s": 0.05}, "run": {"dir": "unused"},
        "cache": {"block_size": _SIZE, "num_blocks": 64}, "engine": {"max_batch_requests": 4},
    })  # fmt: skip
    options = {
        "num_sessions": 6, "agent_tokens": 24, "task_tokens": 8, "tool_tokens": 12, "output_tokens": 6,
        "max_context_tokens": 160, "rate_per_s": 6.0, "tool_s": 0.2, "spread": 0.3,
    }  # fmt: skip
    requests = workload.build("agents", options, seed)
    ends: list[tuple[int, float, int]] = []

    def ended(sent: Sent) -> None:
        ends.append((sent.number, sent.item.arrival_s, sent.replica))

    fleet = Fleet(
        [Replica(index, config, Trial(seed=seed), lambda sent, at_s: None) for index in range(replicas)],
        ClosedLoop(requests) if closed else OpenLoop(requests),
        GuardedRouter(plugin),
        build_component("hash", config.hash.plain(), {"seed": seed}),
        block_size=_SIZE,
        sight=sight or Sight(),
        outages=outages,
        log_end=ended,
    )
    name = type(plugin).__name__
    try:
        for steps, _ in enumerate(fleet.run()):
            if steps > _MOST_STEPS:
                raise Violation(f"{name}: requests must end; after {_MOST_STEPS} steps some had not")
    except FrameworkError as error:
        raise Violation(f"{name}: {error}") from error
    except Violation:
        raise
    except Exception as error:
        raise Violation(f"{name} raised {type(error).__name__}: {error}") from error
    counts = sorted(number for number, _, _ in ends)
    need(plugin, counts == list(range(len(requests))), "must let each request end once; ended were", counts)
    return ends


def check_every_request_ends(make: Make) -> None:
    """Behind one replica and several, in an open and in a closed loop, each request is sent and ends."""
    for replicas in (1, 2, 5):
        for closed in (False, True):
            _chosen(make(), replicas=replicas, seed=replicas, closed=closed)


def check_it_goes_on_where_replicas_leave_and_return(make: Make) -> None:
    """Whatever it remembers, it names replicas that are there: as one leaves, comes back, and another leaves."""
    for seed in range(2):
        outages = [(0.4, 1, False), (0.9, 1, True), (1.0, 0, False), (1.6, 0, True), (1.7, 2, False), (2.4, 2, True)]
        _chosen(make(), seed=seed, closed=bool(seed), outages=outages)


def check_it_bears_what_it_sees_late_and_in_part(make: Make) -> None:
    """Loads that are old and an index that is late, lossy or guessed change where requests go, not whether."""
    for sight in (Sight(report_s=5.0, lag_s=1.0), Sight(loss=0.5, lag_s=0.3), Sight(sent=True, ttl_s=0.5)):
        _chosen(make(), sight=sight)


def check_its_facts_are_plain(make: Make) -> None:
    """`facts` are names to texts and finite numbers, and asking changes nothing."""
    plugin = make()
    _chosen(plugin)
    require_plain_facts("router", plugin)


def check_the_same_requests_are_routed_alike(make: Make) -> None:
    """Fresh plugins send the same requests to the same replicas; needs a picklable `make`."""
    require_same_elsewhere(routed, make, "must route the same requests the same way")


def routed(make: Make) -> str:
    """Where the requests of three draws go."""
    return repr([_chosen(make(), seed=seed) for seed in range(3)])


router_checks: tuple[Callable[[Any], None], ...] = checks_of(globals())
