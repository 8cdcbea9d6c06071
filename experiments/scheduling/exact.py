"""Orders beside the best one, found by search: small cases cut from the traces, all there at once."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

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
from framework_report.statistics import mean_of
from framework_scheduling.bounds import best_order, most_hits

REQUESTS, CASES, QUICK_CASES, ROWS = 5, 12, 4, 2
STATISTICS: dict[str, Callable[[npt.NDArray[np.float64]], float]] = {
    "mean": np.mean, "p50": functools.partial(np.percentile, q=50), "slowest": np.max,
}  # fmt: skip
"""Statistics of times to first token, each searched for itself. Of five requests the slowest is the 99th percentile and
the slowest tenth."""


def cases(trace: str, count: int) -> list[list[WorkloadRequest]]:
    """`REQUESTS` requests each: two of each of two sessions and one of another, in the order of the trace.

    No session is in two cases.
    """
    requests, by_session = cells.requests_of(trace), dict[str, list[int]]()
    for place, request in enumerate(requests):
        by_session.setdefault(str(request.session), []).append(place)
    draw = random.Random(0)
    sessions = draw.sample(list(by_session.values()), len(by_session))
    pairs, found = [places for places in sessions if len(places) > 1][: 2 * count], list[list[WorkloadRequest]]()
    others = [places for places in sessions if places not in pairs]
    for one, two, other in zip(pairs[::2], pairs[1::2], others[:count], strict=True):
        chosen = [requests[place] for place in sorted([*one[:2], *two[:2], other[0]])]
        short = [replace(each, arrival_s=0.0, output_tokens=2, sampling=Sampling(max_tokens=2)) for each in chosen]
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
    """A row an order: how far it is from the best order of each case, in hit tokens and times to first token."""
    with ProcessPoolExecutor(jobs) as pool:
        rows = list(pool.map(_of_case, [trace] * count, range(count), [count] * count, [folder] * count))
    return [
        {
            "trace": trace, "order": name, "cases": count, "runs": sum(row["runs"] for row in rows),
            "best_hit_tokens": sum(row["prompts"] - row["best"]["missed"] for row in rows),
            "bound_tokens": sum(row["bound"] for row in rows), **regret([(row[name], row["best"]) for row in rows]),
        }
        for name in cells.ORDERS
    ]  # fmt: skip


def regret(pairs: Sequence[tuple[Mapping[str, float], Mapping[str, float]]]) -> dict[str, Any]:
    """Means over cases of what an order and the best one reached, with 95 % intervals where cases differ.

    Hit tokens: how many more the best hits. Times: by what share of the best one's the order's is longer.
    """
    lost = [one["missed"] - best["missed"] for one, best in pairs]
    found: dict[str, Any] = {"best_in": sum(not tokens for tokens in lost)}
    measures = {"hit_tokens": lost} | {
        f"ttft_{name}": [one[name] / best[name] - 1 for one, best in pairs] for name in STATISTICS
    }
    for name, values in measures.items():
        made = mean_of(values)
        low, high = made.interval or (made.value, made.value)
        found |= {f"regret_{name}": made.value, f"regret_{name}_low": low, f"regret_{name}_high": high}
        found[f"regret_{name}_worst"] = max(values)
    return found


def _of_case(trace: str, place: int, count: int, folder: Path) -> dict[str, Any]:
    def made() -> dict[str, Any]:
        requests, size = cases(trace, count)[place], cells.block_size(trace)
        make = engine_for(requests, size)
        found = {"missed": best_order(make, requests, "missed_tokens")}
        found |= {name: best_order(make, requests, "ttft_s", of) for name, of in STATISTICS.items()}
        row: dict[str, Any] = {
            "best": {name: one.value for name, one in found.items()},
            "runs": sum(one.num_runs for one in found.values()),
            "prompts": sum(one.input_tokens for one in requests), "bound": most_hits(requests, size).together,
        }  # fmt: skip
        for name in cells.ORDERS:
            engine = make(registry.build("scheduling", name))
            asked = [submit(engine, one) for one in requests]
            engine.run()
            times = np.array([one.first_token_s for one in asked], dtype=np.float64)
            row[name] = {"missed": sum(len(one.prompt) - one.num_cached_tokens for one in asked)}
            row[name] |= {key: float(of(times)) for key, of in STATISTICS.items()}
        return row

    return kept(folder, (trace, "exact", place), made, [Path(__file__), *cells.files_of(trace)])
