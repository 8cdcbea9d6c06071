"""Streams, and replays of them through the engine with an order, a policy, a capacity and a load; each is kept."""

from __future__ import annotations

import csv
import functools
import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.shared import AGENTIC, AGENTIC_B, CONVERSATION, ROOT, in_processes, kept, trace_path
from framework import registry, workload
from framework.config.sections import EngineOptions
from framework.engine.engine import Engine, ModelLimits, Trial
from framework.engine.executors.replay import ReplayExecutor, StepCosts
from framework.engine.request import Request
from framework.interfaces.workload import WorkloadRequest
from framework.registry.components import build_allocator
from framework.replay.items import feed, trace_items
from framework.types import Hint
from framework_scheduling.observer import CAUSES, Queue
from framework_workloads.trace import open_trace
from framework_workloads.trace.own_format import as_trace

BLOCK, ROWS, STEP_TOKENS = 512, 16, 2048
QUICK = "drawn conversations"
TRACES = {"conversation": CONVERSATION, "agentic coding": AGENTIC, "agentic coding b": AGENTIC_B}
KEEP_ONE_IN, DRAWS, FIRST_TURNS, LONGEST, ANSWER = 48, 3, 4, 65_536, 64
"""The conversation trace gives one session in so many, whole, so many times, no session twice; each agentic session
its first requests of at most so many tokens; tokens of an answer at most, since a replay takes a step for each."""
MOST_GAPS = 10
"""Mean gaps between arrivals to which a longer one is cut: the agentic traces have nights in them."""
CAPACITIES = {
    "conversation": (256, 512, 1024), "agentic coding": (256, 512, 1024), "agentic coding b": (256, 512, 1024),
    QUICK: (64, 96, 192),
}  # fmt: skip
"""Small, middle and large, in blocks of 512 tokens."""
LOADS = (0.7, 0.9, 1.1)
JUDGED = (0.9, 1.1)
"""Loads at which, with the middle capacity, all streams of a trace are replayed and differences are judged."""
RECORDED = "as recorded"
EVICTIONS = ("lru", "hazard")
TENANTS = 8
REFERENCE_RATE = 10.0
"""Requests a second of the engine for which constants in seconds are meant: here they are longer by as much as the
fitted engine is slower."""
DEADLINES_S = (1.0, 10.0)
"""To the first token, on that engine: of one session in two, of the others."""

SECONDS: dict[str, dict[str, float]] = {
    "shortest_job": {"max_wait_s": 10.0},
    "shortest_rest": {"max_wait_s": 10.0},
    "session_affinity": {"max_wait_s": 5.0, "ttl_s": 300.0},
}
"""Options in seconds of each order, as its source has them."""
ORDERS = (
    "fcfs", "longest_prefix", "dfs_weight", "windowed_lookahead", "session_affinity", "shortest_job", "shortest_rest",
    "ewsjf", "fair", "edf",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """One replay. `load`: a share of what the engine does, or as recorded."""

    trace: str
    order: str
    eviction: str
    num_blocks: int
    load: float | str


def cells_of(trace: str, orders: Sequence[str], *, quick: bool) -> list[Cell]:
    """Each load, capacity, policy and order with each other; quick: at a load of 0.9 and the middle capacity."""
    loads, sizes = ((0.9,), CAPACITIES[trace][1:2]) if quick else ((*LOADS, RECORDED), CAPACITIES[trace])
    return [Cell(trace, order, *place) for *place, order in itertools.product(EVICTIONS, sizes, loads, orders)]


def streams_of(cell: Cell) -> tuple[tuple[WorkloadRequest, ...], ...]:
    """All streams of the trace where differences are judged, elsewhere the first."""
    judged = cell.num_blocks == CAPACITIES[cell.trace][1] and cell.load in JUDGED
    return streams(cell.trace) if judged else streams(cell.trace)[:1]


def requests_of(trace: str) -> tuple[WorkloadRequest, ...]:
    """The requests of a trace, stream by stream."""
    return tuple(itertools.chain.from_iterable(streams(trace)))


@functools.cache
def streams(trace: str) -> tuple[tuple[WorkloadRequest, ...], ...]:
    """Requests that are replayed together, in order of arrival, each with its session and tenant.

    Several streams of the conversation trace, which share no session.
    """
    if trace == QUICK:
        options = {"num_sessions": 60, "rate_per_s": 1.0, "think_s": 5.0, "turns": 3.0}
        found = list(as_trace(workload.build("conversations", options, seed=0), 16))
        return (tuple(_with_clients(found, [str(request.session) for request in found])),)
    found = list(open_trace(trace_path(TRACES[trace]), block_tokens=BLOCK))
    if trace == "conversation":  # all prompts share their first block; those that share two are one session
        names = [
            "/".join(map(str, (request.block_ids if request.block_ids is not None else ())[:2])) for request in found
        ]
        drawn = [_draw(name) % KEEP_ONE_IN for name in names]
    else:
        names, seen = [str(request.session) for request in found], dict[str, int]()
        drawn = []
        for request, name in zip(found, names, strict=True):
            fits = request.input_tokens <= LONGEST
            seen[name] = seen.get(name, 0) + fits
            drawn.append(0 if fits and seen[name] <= FIRST_TURNS else -1)
    made = []
    for draw in range(DRAWS if trace == "conversation" else 1):
        chosen = [(request, name) for request, name, place in zip(found, names, drawn, strict=True) if place == draw]
        made.append(tuple(_with_clients([request for request, _ in chosen], [name for _, name in chosen])))
    return tuple(made)


def _with_clients(requests: Sequence[WorkloadRequest], sessions: Sequence[str]) -> Iterator[WorkloadRequest]:
    """Sessions belong to tenants, to the first of which most; each session has its deadline."""
    weights = [1 / (1 + tenant) for tenant in range(TENANTS)]
    for request, session in zip(requests, sessions, strict=True):
        place = _draw(session) / 2**32 * sum(weights)
        tenant = next((t for t in range(TENANTS) if place < sum(weights[: t + 1])), TENANTS - 1)
        hint = Hint(deadline_s=DEADLINES_S[_draw(session + "/deadline") % 2])
        length = min(ANSWER, request.output_tokens or 0)
        yield replace(request, session=session, tenant=f"tenant {tenant}", hint=hint, output=None, output_tokens=length)


def _draw(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")


def costs() -> StepCosts:
    """The costs of vLLM on a CPU, as fitted in experiments/live."""
    path = ROOT / "experiments/live/results/clock/costs.csv"
    with path.open(encoding="utf-8") as file:
        row = next(row for row in csv.DictReader(file) if row["engine"] == "vLLM")
    return StepCosts(
        **{f"{name}_s": 1e-6 * float(row[f"{name}_us"]) for name in ("step", "row", "token", "context", "pair")}
    )


def replayed(
    requests: Sequence[WorkloadRequest],
    order: Any,
    eviction: str,
    num_blocks: int,
    queue: Queue | None = None,
    block_size: int = BLOCK,
) -> tuple[Engine, list[Request]]:
    """The engine at the end, and its requests in order of submission."""
    sizes = {"num_blocks": num_blocks, "block_size": block_size, "max_model_len": min(262_144, num_blocks * block_size)}
    engine = Engine(
        build_allocator("prefix", eviction, "xxh64", **sizes),
        ReplayExecutor(costs()), limits=ModelLimits(max_model_len=sizes["max_model_len"]),
        options=EngineOptions(max_batch_tokens=STEP_TOKENS, max_batch_requests=ROWS), virtual_clock=True,
        scheduling=order, trial=Trial(observers=(queue,) if queue is not None else ()),
    )  # fmt: skip
    ended: dict[int, Request] = {}
    engine.state.on_end = lambda request: ended.__setitem__(request.number, request)
    for _ in feed(engine, trace_items(requests)):
        pass
    engine.check()
    return engine, [ended[number] for number in range(len(requests))]


def capacity(trace: str, folder: Path) -> float:
    """Requests a second of the engine when all are there at once: first come, first served, lru, the middle pool."""

    def measured() -> dict[str, Any]:
        spent_s = 0.0
        for requests in streams(trace):
            engine, _ = replayed(
                _at(requests, [0.0] * len(requests)), None, "lru", CAPACITIES[trace][1], None, block_size(trace)
            )
            spent_s += engine.executor.now()
        return {"rate": len(requests_of(trace)) / spent_s}

    return float(kept(folder, (trace, "capacity"), measured, files_of(trace))["rate"])


def _arrivals(requests: Sequence[WorkloadRequest]) -> list[float]:
    """Times of arrival in mean gaps, from 0, no gap longer than `MOST_GAPS`."""
    gaps = np.diff([request.arrival_s for request in requests])
    for _ in range(50):  # cutting gaps shortens their mean
        gaps = np.minimum(gaps, MOST_GAPS * gaps.mean())
    return [0.0, *np.cumsum(gaps / gaps.mean()).tolist()]


def _at(
    requests: Sequence[WorkloadRequest], arrivals_s: Sequence[float], stretch: float = 1.0
) -> list[WorkloadRequest]:
    """The requests with these arrivals, and deadlines so much later."""
    return [
        replace(request, arrival_s=at_s, hint=Hint(deadline_s=stretch * (request.hint.deadline_s or 0.0)))
        for request, at_s in zip(requests, arrivals_s, strict=True)
        if request.hint is not None
    ]


def block_size(trace: str) -> int:
    """Tokens a block of the pool that a trace is replayed over."""
    return 16 if trace == QUICK else BLOCK


def run(cell: Cell, folder: Path) -> dict[str, Any]:
    """What each request of a trace met, stream by stream, and sums; of an earlier run where nothing has changed."""
    return kept(folder, astuple(cell), lambda: _run(cell, capacity(cell.trace, folder)), files_of(cell.trace))


def _run(cell: Cell, rate: float) -> dict[str, Any]:
    parts = [_run_stream(cell, requests, rate) for requests in streams_of(cell)]
    found = {name: sum((part[name] for part in parts[1:]), parts[0][name]) for name in parts[0] if name != "bound"}
    return {**found, "bound": parts[0]["bound"], "stretch": REFERENCE_RATE / rate}


def _run_stream(cell: Cell, requests: Sequence[WorkloadRequest], rate: float) -> dict[str, Any]:
    """Lists with an entry a request, and numbers that can be added."""
    stretch = REFERENCE_RATE / rate
    options = {key: seconds * stretch for key, seconds in SECONDS.get(cell.order, {}).items()}
    order, queue = registry.build("scheduling", cell.order, options), Queue(most_named=0)
    if cell.load == RECORDED:
        at_s = [request.arrival_s - requests[0].arrival_s for request in requests]
    else:
        at_s = [at / (float(cell.load) * rate) for at in _arrivals(requests)]
    engine, ended = replayed(
        _at(requests, at_s, stretch), order, cell.eviction, cell.num_blocks, queue, block_size(cell.trace)
    )
    summary = engine.state.summary()
    rows = [queue.row(number) for number in range(len(ended))]
    return {
        "bound": summary.get("scheduling_bound", ""), "overdue": summary.get("scheduling_overdue", 0),
        "preemptions": summary["num_preemptions"], "evictions": summary["num_evictions"],
        "arrivals_s": at_s[-1], "duration_s": engine.executor.now(),
        "reasons": [request.reason for request in ended],
        "prompt_tokens": [len(request.prompt) for request in ended],
        "hit_tokens": [request.num_cached_tokens for request in ended],
        "ttft_s": [None if one.first_token_s is None else one.first_token_s - one.arrival_s for one in ended],
        "deadline_s": [one.hint.deadline_s for one in ended if one.hint is not None],
        "passed_by": [row.get("passed_by", 0) for row in rows],
        **{f"wait_{cause}_s": [row.get(f"wait_{cause}_s", 0.0) for row in rows] for cause in CAUSES},
    }  # fmt: skip


def files_of(trace: str) -> list[Path]:
    """What a result depends on: this file, the orders, the engine that is fitted, and the trace."""
    orders = (
        ROOT / "plugins/framework_scheduling" / f"{name}.py" for name in ("cached", "clients", "length", "observer")
    )
    files = [*orders, Path(__file__), ROOT / "experiments/live/results/clock/costs.csv"]
    return files if trace == QUICK else [*files, trace_path(TRACES[trace])]


def run_all(cells: Sequence[Cell], folder: Path, jobs: int) -> dict[Cell, dict[str, Any]]:
    """The results of the cells; those of earlier runs are read, not replayed."""
    for trace in dict.fromkeys(cell.trace for cell in cells):
        print(
            f"{trace}: {json.dumps({'requests': len(requests_of(trace)), 'rate_per_s': capacity(trace, folder)})}",
            flush=True,
        )
    return in_processes(functools.partial(run, folder=folder), cells, jobs)
