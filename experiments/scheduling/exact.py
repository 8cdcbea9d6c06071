"""Orders beside the best one, found by search: small streams cut from the traces, all there at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.scheduling import cells
from experiments.shared import kept
from framework import registry
from framework.config.sections import EngineOptions
from framework.engine.engine import Engine, ModelLimits
from framework.engine.executors.replay import ReplayExecutor
from framework.interfaces.scheduling import Scheduling
from framework.interfaces.workload import WorkloadRequest
from framework.registry.components import build_allocator
from framework.replay.items import submit, trace_items
from framework.sampling import Sampling
from framework_scheduling.bounds import OF, best_order, most_hits

REQUESTS, STREAMS, QUICK_STREAMS, ROWS = 5, 12, 4, 2


def streams(trace: str, count: int) -> list[list[WorkloadRequest]]:
    """`REQUESTS` requests each: two of each of two sessions and one of another, in the order of the trace."""
    by_session: dict[str, list[int]] = {}
    for place, request in enumerate(cells.stream(trace)):
        by_session.setdefault(str(request.session), []).append(place)
    draw, found = random.Random(0), list[list[WorkloadRequest]]()
    pairs, others = [places for places in by_session.values() if len(places) > 1], list(by_session.values())
    while len(found) < count:
        places = {*draw.choice(pairs)[:2], *draw.choice(pairs)[:2], draw.choice(others)[0]}
        if len(places) == REQUESTS:
            chosen = [cells.stream(trace)[place] for place in sorted(places)]
            short = [replace(one, arrival_s=0.0, output_tokens=2, sampling=Sampling(max_tokens=2)) for one in chosen]
            found.append(list(trace_items(short)))
    return found


def engine_for(requests: Sequence[WorkloadRequest], size: int) -> Callable[[Scheduling], Engine]:
    """Two rows, over a pool that holds the longest prompt and half of the next."""
    longest = sorted(-(-(request.input_tokens + 2) // size) for request in requests)
    num_blocks = longest[-1] + longest[-2] // 2 + 2

    def make(order: Scheduling) -> Engine:
        limits = {"max_model_len": num_blocks * size}
        return Engine(
            build_allocator("prefix", "lru", "xxh64", num_blocks=num_blocks, block_size=size, **limits),
            ReplayExecutor(cells.costs()), limits=ModelLimits(**limits), virtual_clock=True, scheduling=order,
            options=EngineOptions(max_batch_tokens=8 * cells.STEP_TOKENS, max_batch_requests=ROWS),
        )  # fmt: skip

    return make


def regrets(trace: str, count: int, folder: Path, jobs: int) -> list[dict[str, Any]]:
    """A row an order: how far it is from the best order of each stream, in hit tokens and mean time to first token."""
    with ProcessPoolExecutor(jobs) as pool:
        rows = list(pool.map(_of_stream, [trace] * count, range(count), [count] * count, [folder] * count))
    by_order: list[dict[str, Any]] = []
    for name in cells.ORDERS:
        missed = np.array([row[name][0] - row["best"][0] for row in rows])
        late = np.array([row[name][1] / row["best"][1] - 1 for row in rows])
        by_order.append({
            "trace": trace, "order": name, "streams": count,
            "best_hit_tokens": sum(row["prompts"] - row["best"][0] for row in rows),
            "bound_tokens": sum(row["bound"] for row in rows),
            "regret_hit_tokens": int(missed.sum()), "best_in": int((missed == 0).sum()),
            "regret_ttft_mean": float(late.mean()), "regret_ttft_worst": float(late.max()),
            "runs": sum(row["runs"] for row in rows),
        })  # fmt: skip
    return by_order


def _of_stream(trace: str, place: int, count: int, folder: Path) -> dict[str, Any]:
    def made() -> dict[str, Any]:
        requests, size = streams(trace, count)[place], cells.block_size(trace)
        make = engine_for(requests, size)
        found = [best_order(make, requests, of, statistic) for of, statistic in zip(OF, (np.sum, np.mean), strict=True)]
        row: dict[str, Any] = {
            "best": [one.value for one in found], "runs": sum(one.num_runs for one in found),
            "prompts": sum(one.input_tokens for one in requests), "bound": most_hits(requests, size).together,
        }  # fmt: skip
        for name in cells.ORDERS:
            engine = make(registry.build("scheduling", name))
            asked = [submit(engine, one) for one in requests]
            engine.run()
            missed = sum(len(one.prompt) - one.num_cached_tokens for one in asked)
            row[name] = [missed, float(np.mean([one.first_token_s or 0.0 for one in asked]))]
        return row

    return kept(folder / f"{trace}-exact-{place}.json".replace(" ", "_"), cells.key(trace, __file__), made)
