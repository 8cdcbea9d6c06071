"""Traces, policies and replays of the gap and of the leaderboard; each replay is kept, so that none runs twice."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.gap.scoring import Field, field_of
from experiments.shared import (
    AGENT_TEXT,
    AGENTIC,
    AGENTIC_B,
    CONVERSATION,
    SYNTHETIC_MIX,
    MissingTrace,
    in_processes,
    kept,
    trace_path,
)
from framework import registry, workload
from framework.interfaces import eviction
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.workload import WorkloadRequest, name_blocks
from framework.registry.components import build_component
from framework.types import Hint
from framework_cache_only import paths, reference
from framework_cache_only.paths import RequestPaths, build_paths
from framework_cache_only.reference import core_of, count
from framework_cache_only.replay_core import ReplayCore
from framework_workloads.prompts import AgentText
from framework_workloads.trace import open_trace
from framework_workloads.trace.own_format import as_trace

TRACES = {
    "conversation": CONVERSATION,
    "synthetic mix": SYNTHETIC_MIX,
    "agentic coding": AGENTIC,
    "agentic coding b": AGENTIC_B,
    "agent text": AGENT_TEXT,
}
SYNTHETIC = "synthetic"
"""Drawn, for --quick: conversations over popular system prompts."""
RUN_OF_REQUESTS = 50
AGENT_TEXT_BLOCK = 64
_SEED = 0


@dataclass(frozen=True, slots=True)
class Cell:
    """One replay: `policy` as `build` takes it, at a share of the trace's distinct blocks.

    Attributes:
        folder: where its result is kept.
        foretold: what the clients foretell: "labels E" or "times S"; "" for nothing.
    """

    trace: str
    policy: str
    fraction: float
    folder: Path
    foretold: str = ""


@dataclass(frozen=True, slots=True)
class Stream:
    """A trace as paths, and which resampling unit each request belongs to, (R,) from 0."""

    paths: RequestPaths
    units: npt.NDArray[np.int64]
    unit_name: str


def file_of(name: str) -> Path | None:
    """The file of a trace, whatever its blocks' size; None for the drawn one."""
    return None if name == SYNTHETIC else trace_path(TRACES[name.partition(" by ")[0]])


@functools.cache
def stream(name: str) -> Stream:
    """The trace, once a process; "NAME by 2048": in blocks of so many tokens instead of 512."""
    if name == SYNTHETIC:
        options = {"num_sessions": 150, "rate_per_s": 1.0, "think_s": 20.0, "num_prompts": 12}
        requests = list(as_trace(workload.build("conversations", options, seed=_SEED), 16))
    elif name == "agent text":
        requests = list(agent_text())
    else:
        requests = list(open_trace(file_of(name), block_tokens=int(name.partition(" by ")[2] or 512)))
    sessions: dict[str, int] = {}
    labels = [request.session or request.namespace.salt for request in requests]
    if all(labels):
        units = [sessions.setdefault(label, len(sessions)) for label in labels]
        return Stream(build_paths(requests), np.array(units), "session")
    runs = np.arange(len(requests)) // RUN_OF_REQUESTS
    return Stream(build_paths(requests), runs, f"run of {RUN_OF_REQUESTS} requests")


def agent_text() -> Iterator[WorkloadRequest]:
    """Recorded prompts, a byte a token, in blocks of 64."""
    for request in AgentText(path=trace_path(AGENT_TEXT), skip_empty=True, use_times=True).requests():
        tokens = np.frombuffer(str(request.prompt).encode(), dtype=np.uint8).astype(np.int32)
        yield WorkloadRequest(
            arrival_s=request.arrival_s,
            input_tokens=len(tokens),
            output_tokens=1,
            block_ids=name_blocks(tokens, AGENT_TEXT_BLOCK),
            block_tokens=AGENT_TEXT_BLOCK,
            session=request.session,
        )


def at_hand() -> list[str]:
    """Names of the traces that are there; the others are said on stderr."""
    found = []
    for name, file in TRACES.items():
        try:
            trace_path(file)
        except MissingTrace as missing:
            print(f"left out: {missing}", file=sys.stderr)
        else:
            found.append(name)
    return found


@functools.cache
def bounds(trace: str, fractions: tuple[float, ...]) -> Field:
    """LRU and the optima on a trace, once a process."""
    source = stream(trace)
    return field_of(source.paths, source.units, fractions)


@functools.cache
def _paths(trace: str, foretold: str) -> RequestPaths:
    kind, _, value = foretold.partition(" ")
    found = stream(trace).paths
    if kind == "labels":
        return with_labels(found, float(value))
    return with_times(found, float(value)) if kind == "times" else found


@functools.cache
def _core() -> ReplayCore | None:
    """The native replay core where it is installed: the same integers, sooner."""
    return core_of("native") if "native" in registry.names("replay_core") else None


def run(cell: Cell) -> dict[str, Any]:
    """The cell's result, of an earlier run where trace, replay and policy are the same."""
    modules, trace = (sys.modules[__name__], reference, paths, eviction), file_of(cell.trace)
    files = [Path(str(module.__file__)) for module in modules] + sources(kind_of(cell.policy)) + [trace] * bool(trace)
    what = cell.trace, cell.policy, cell.fraction, cell.foretold, _SEED
    return kept(cell.folder, what, lambda: _replayed(cell), files)


def run_all(cells: Sequence[Cell], jobs: int) -> dict[Cell, dict[str, Any]]:
    """The results of the cells; those of earlier runs are read, not replayed."""
    return in_processes(run, cells, jobs)


def _replayed(cell: Cell) -> dict[str, Any]:
    requests, start = _paths(cell.trace, cell.foretold), time.process_time()
    capacity = max(1, round(cell.fraction * requests.num_nodes))
    policy = build(cell.policy, capacity, requests.block_tokens)
    with contextlib.redirect_stderr(io.StringIO()):  # which says what the core has no version of
        by_core, found = count(_core(), requests, policy, capacity)
    spent = time.process_time() - start
    return {
        "capacity_blocks": capacity,
        "hit_blocks": found.hit_blocks,
        "cpu_s": round(spent, 3),
        "us_per_block": None if by_core else round(1e6 * spent / requests.num_references, 3),
        "unit_hits": np.bincount(stream(cell.trace).units, weights=found.request_hits).astype(int).tolist(),
    }


def sources(kind: type) -> list[Path]:
    """Files of a class and of what they import of its own package and of the built-in policies."""
    found: dict[str, Path] = {}
    roots, names = {kind.__module__.partition(".")[0], "framework_builtin"}, [kind.__module__]
    while names:
        name = names.pop()
        if name in sys.modules and name not in found and name.partition(".")[0] in roots:
            found[name] = Path(str(sys.modules[name].__file__))
            values = vars(sys.modules[name]).values()
            names += [str(getattr(value, "__module__", None) or getattr(value, "__name__", "")) for value in values]
    return [found[name] for name in sorted(found)]


def kind_of(name: str) -> type[EvictionPolicy]:
    """The class of what `build` makes."""
    found: type[EvictionPolicy] = registry.load("eviction", name.split(" ")[0])
    return found


def build(name: str, capacity: int, block_tokens: int) -> EvictionPolicy:
    """An installed policy: "NAME OPTION=JSON ..."."""
    policy, *options = name.split(" ")
    chosen = {"name": policy, **{key: json.loads(value) for key, value in (part.split("=", 1) for part in options)}}
    shared = {"num_blocks": capacity, "seed": 0, "block_size": block_tokens}
    built: EvictionPolicy = build_component("eviction", chosen, shared)
    return built


def continuations(paths: RequestPaths) -> tuple[list[bool], list[float]]:
    """(R,) whether a later prompt extends each request's, and (R,) seconds until the first such arrives."""
    last: dict[int, int] = {}
    times = paths.times
    extended, gaps = [False] * paths.num_requests, [0.0] * paths.num_requests
    for request, (start, full) in enumerate(zip(paths.starts.tolist(), paths.full_blocks.tolist(), strict=False)):
        path = paths.nodes[start : start + full].tolist()
        for node in path:
            before = last.get(node)
            if before is not None and not extended[before]:
                extended[before], gaps[before] = True, times[request] - times[before]
        if path:
            last[path[-1]] = request
    return extended, gaps


def with_labels(paths: RequestPaths, error: float) -> RequestPaths:
    """The trace whose clients say whether they will continue, wrong with this probability."""
    extended, _ = continuations(paths)
    wrong = np.random.default_rng(0).random(len(extended)) < error
    hints = [Hint(continues=float(truth != lie)) for truth, lie in zip(extended, wrong.tolist(), strict=True)]
    return _with_hints(paths, hints)


def with_times(paths: RequestPaths, sigma: float) -> RequestPaths:
    """The trace whose clients say when they come back, with a log-normal error; who does not come back says nothing."""
    extended, gaps = continuations(paths)
    noise = np.exp(np.random.default_rng(0).normal(0.0, sigma, len(gaps)))
    hints = [
        Hint(returns_s=gap * factor) if truth else None
        for truth, gap, factor in zip(extended, gaps, noise.tolist(), strict=True)
    ]
    return _with_hints(paths, hints)


def _with_hints(paths: RequestPaths, hints: Sequence[Hint | None]) -> RequestPaths:
    assert paths.known is not None
    known = [replace(facts, hint=hint) for facts, hint in zip(paths.known, hints, strict=True)]
    return replace(paths, known=known)
