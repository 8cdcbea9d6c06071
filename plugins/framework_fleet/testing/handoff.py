"""Conformance kit of handoffs: prefill and decode apart, with the faults that are known of it.

`handoff_checks` are plain functions `check(make)`; `make` is `Handoffs` or a subclass of it, whose `sender` and
`receiver` may be subclasses too. Each drives a small fleet without a model and raises Violation for what breaks:

* F1: no block that a link reads or writes is free;
* F2: what was kept for a reader is given back, whatever becomes of him;
* F3: full pools wait for no one for ever, and every request ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import numpy as np

from framework.config.check import parse
from framework.engine.engine import Trial
from framework.errors import FrameworkError
from framework.interfaces.workload import WorkloadRequest
from framework.registry.components import build_component
from framework.sampling import Sampling
from framework_fleet.fleet import Fleet, Sight
from framework_fleet.guard import GuardedRouter
from framework_fleet.handoff import Handoffs
from framework_fleet.loop import OpenLoop
from framework_fleet.replica import Replica, Sent
from framework_fleet.routers.plain import LeastLoad
from framework_testing.driver import Violation
from framework_testing.rules import checks_of

Make = Callable[[float, float, float], Handoffs]

_SIZE, _MOST_STEPS = 4, 20_000


def drive(
    make: Make, requests: Sequence[WorkloadRequest], *, prefills: int = 1, decodes: int = 1, num_blocks: int = 64,
    rows: int = 4, bytes_per_s: float = inf, lease_s: float = inf, patience_s: float = inf, prefill_blocks: int = 0,
    outages: Sequence[tuple[float, int, bool]] = (),
) -> tuple[list[Sent], list[Any]]:  # fmt: skip
    """The requests in order of ends, and what each was on the engine that it ended on.

    A step takes 0.1 s, a block of 4 tokens is one byte of `bytes_per_s`.

    Raises:
        Violation: an invariant is broken, or requests are left.
    """
    handoffs = make(bytes_per_s, 0.0, lease_s)
    config = parse({
        "mode": "replay", "executor": "none", "replay": {"step_s": 0.1}, "run": {"dir": "unused"},
        "cache": {"block_size": _SIZE, "num_blocks": num_blocks}, "engine": {"max_batch_requests": rows},
    })  # fmt: skip
    ends = list[Sent]()
    requests_sent = list[Any]()

    def ended(sent: Sent) -> None:
        ends.append(sent)
        requests_sent.append(sent.request)

    replicas = []
    for index in range(prefills + decodes):
        mine = config
        if index < prefills and prefill_blocks:
            mine = config.changed(cache=config.cache.changed(num_blocks=prefill_blocks))
        below = handoffs.below(index, decodes=index >= prefills)
        below.block_bytes = 1
        replicas.append(Replica(index, mine, Trial(), lambda sent, at_s: None, below))
    fleet = Fleet(
        replicas, OpenLoop(requests), GuardedRouter(LeastLoad()), build_component("hash", config.hash.plain(), {}),
        block_size=_SIZE, sight=Sight(), outages=outages, log_end=ended, handoffs=handoffs, patience_s=patience_s,
        decode_router=GuardedRouter(LeastLoad()),
    )  # fmt: skip
    name = getattr(make, "__name__", str(make))
    try:
        for steps, _ in enumerate(fleet.run()):
            if steps > _MOST_STEPS:
                raise Violation(f"{name}: F3: requests must end; after {_MOST_STEPS} steps some had not")
        for replica in replicas:
            replica.check()
    except FrameworkError as error:
        raise Violation(f"{name}: {error}") from error
    except (AssertionError, KeyError, ValueError) as error:
        raise Violation(f"{name} raised {type(error).__name__}: {error}") from error
    if sorted(one.number for one in ends) != list(range(len(requests))):
        raise Violation(f"{name}: F3: each request ends once; ended were {[one.number for one in ends]}")
    return ends, requests_sent


def prompts(count: int, tokens: int, every_s: float, *, output: int = 6, shared: int = 0) -> list[WorkloadRequest]:
    """Requests of so many tokens, the first `shared` of which are the same in all."""
    return [
        WorkloadRequest(
            prompt=np.array([*range(shared), *(1000 * (number + 1) + np.arange(tokens - shared))], dtype=np.int32),
            arrival_s=every_s * number, key=str(number), sampling=Sampling(max_tokens=output, ignore_eos=True),
        )
        for number in range(count)
    ]  # fmt: skip


def _finish(make: Make, requests: Sequence[WorkloadRequest], **options: Any) -> None:
    """They all finish."""
    _, sent = drive(make, requests, **options)
    others = [f"{one.number} {one.status.value}: {one.reason}" for one in sent if one.status.value != "finished"]
    if others:
        raise Violation(f"{getattr(make, '__name__', make)}: F3: requests must finish; {'; '.join(others[:3])}")


def check_every_prompt_is_decoded(make: Make) -> None:
    """Whatever is shared, however many replicas there are on either side; and where each is alone."""
    _finish(make, prompts(2, 18, 3.0), bytes_per_s=5)
    for prefills, decodes in ((1, 1), (2, 1), (1, 3)):
        _finish(make, prompts(12, 18, 0.05, shared=9), prefills=prefills, decodes=decodes, bytes_per_s=50)


def check_no_block_is_reused_while_a_link_writes(make: Make) -> None:
    """Clients give up while their KV is on its way; others want the blocks at once."""
    for patience_s in (0.35, 0.55, 0.85, 1.2):
        drive(make, prompts(16, 18, 0.1), num_blocks=12, bytes_per_s=8, patience_s=patience_s)


def check_no_lease_ends_under_a_read(make: Make) -> None:
    """A lease that ends while a link reads, or before: what was freed is not read."""
    for lease_s in (0.05, 0.3, 0.7):
        _finish(make, prompts(8, 18, 0.1), rows=2, bytes_per_s=8, lease_s=lease_s, prefill_blocks=16)
        _finish(make, prompts(8, 18, 0.1, output=12), rows=1, lease_s=lease_s)


def check_what_nobody_reads_is_given_back(make: Make) -> None:
    """Clients give up before the read, or the decoder has it all: no lease ends here."""
    drive(make, prompts(12, 18, 0.05), rows=1, bytes_per_s=20, patience_s=0.6)
    _finish(make, prompts(6, 18, 0.6, shared=17), bytes_per_s=1e6)


def check_full_pools_do_not_stand_still(make: Make) -> None:
    """Pools that hold two or three requests, of senders and of receivers."""
    for rows, num_blocks in ((1, 12), (2, 10), (3, 11), (4, 13)):
        _finish(make, prompts(10, 16, 0.02, output=12), num_blocks=num_blocks, rows=rows, bytes_per_s=100)
        _finish(make, prompts(10, 16, 0.02, output=12), prefill_blocks=9, rows=rows, bytes_per_s=10)


def check_it_goes_on_where_replicas_leave(make: Make) -> None:
    """Senders and receivers leave and return while links copy."""
    outages = [(0.6, 0, False), (1.1, 2, False), (1.4, 0, True), (1.9, 2, True), (2.2, 1, False), (2.8, 1, True)]
    for bytes_per_s in (10, 1e3):
        _finish(
            make, prompts(20, 18, 0.12, shared=8), prefills=2, decodes=2, bytes_per_s=bytes_per_s, outages=outages,
            num_blocks=24,
        )  # fmt: skip


handoff_checks: tuple[Callable[[Any], None], ...] = checks_of(globals())
