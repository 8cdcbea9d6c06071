"""One cell of the tournament: one policy on one trace at one capacity, kept as a file so that no cell runs twice."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.shared import AGENT_TEXT, AGENTIC, CONVERSATION, digest, kept, trace_path
from framework import registry
from framework.registry.components import build_component
from framework.replay import optimum, paths, reference
from framework.replay.optimum import replay_optimum
from framework.replay.paths import RequestPaths, build_paths
from framework.replay.reference import replay
from framework.workload.agent_text import AgentText
from framework.workload.to_trace import synthetic_trace
from framework.workload.traces import TraceRequest, open_trace
from framework.workload.traces.own_format import name_blocks

OPTIMUM = "optimum"
TRACES = {"conversation": CONVERSATION, "agentic coding": AGENTIC, "agent text": AGENT_TEXT}
SYNTHETIC = "synthetic"
"""Drawn, for --quick: conversations over popular system prompts."""
RUN_OF_REQUESTS = 50
AGENT_TEXT_BLOCK = 64
_SEED = 0


@dataclass(frozen=True, slots=True)
class Cell:
    """What is replayed. `fraction` is of the trace's distinct blocks; `folder` keeps the results."""

    trace: str
    policy: str
    fraction: float
    folder: Path

    @property
    def file(self) -> Path:
        name = f"{self.trace}-{self.policy}-{self.fraction:g}".replace(" ", "_")
        return self.folder / f"{name}.json"


@dataclass(frozen=True, slots=True)
class Stream:
    """A trace as paths, and which resampling unit each request belongs to, (R,) from 0."""

    paths: RequestPaths
    units: npt.NDArray[np.int64]
    unit_name: str

    @property
    def unit_references(self) -> npt.NDArray[np.int64]:
        """(U,) block references of each unit."""
        return np.bincount(self.units, weights=np.diff(self.paths.starts)).astype(np.int64)


@functools.cache
def stream(name: str) -> Stream:
    """The trace, once a process."""
    if name == SYNTHETIC:
        options = {"num_sessions": 150, "rate_per_s": 1.0, "think_s": 20.0, "num_prompts": 12}
        requests = list(synthetic_trace("conversations", options, seed=_SEED, block_tokens=16))
    elif name == "agent text":
        requests = list(_agent_text())
    else:
        requests = list(open_trace(trace_path(TRACES[name]), block_tokens=512))
    sessions: dict[str, int] = {}
    labels = [request.session or request.namespace.salt for request in requests]
    if all(labels):
        units = [sessions.setdefault(label, len(sessions)) for label in labels]
        return Stream(build_paths(requests), np.array(units), "session")
    runs = np.arange(len(requests)) // RUN_OF_REQUESTS
    return Stream(build_paths(requests), runs, f"run of {RUN_OF_REQUESTS} requests")


def _agent_text() -> Iterator[TraceRequest]:
    """Recorded prompts, a byte a token, in blocks of 64."""
    for request in AgentText(path=trace_path(AGENT_TEXT), skip_empty=True, use_times=True).requests():
        tokens = np.frombuffer(str(request.prompt).encode(), dtype=np.uint8).astype(np.int32)
        yield TraceRequest(
            arrival_s=request.arrival_s,
            input_tokens=len(tokens),
            output_tokens=1,
            block_ids=name_blocks(tokens, AGENT_TEXT_BLOCK),
            block_tokens=AGENT_TEXT_BLOCK,
            session=request.session,
        )


def run(cell: Cell) -> dict[str, Any]:
    """The cell's result, from its file where that is of the same code and trace."""
    return kept(cell.file, _key(cell), lambda: _replayed(cell))


def _replayed(cell: Cell) -> dict[str, Any]:
    source, start = stream(cell.trace), time.process_time()
    capacity = max(1, round(cell.fraction * source.paths.num_nodes))
    if cell.policy == OPTIMUM:
        found = replay_optimum(source.paths, capacity)
    else:
        shared = {"num_blocks": capacity, "block_size": source.paths.block_tokens, "seed": _SEED}
        policy = build_component("eviction", cell.policy, shared)
        found = replay(source.paths, policy, capacity, bypass=policy.bypass)
    return {
        "trace": cell.trace,
        "policy": cell.policy,
        "fraction": cell.fraction,
        "capacity_blocks": capacity,
        "hit_blocks": found.hit_blocks,
        "prompt_blocks": found.prompt_blocks,
        "hit_tokens": found.hit_tokens,
        "prompt_tokens": found.prompt_tokens,
        "evictions": found.evictions,
        "cpu_s": round(time.process_time() - start, 3),
        "unit_hits": np.bincount(source.units, weights=found.request_hits).astype(int).tolist(),
    }


def _key(cell: Cell) -> str:
    """Changes with the trace, the replay and the policy's own module: a stale cell is run again."""
    modules = [sys.modules[__name__], reference, paths, optimum]
    if cell.policy != OPTIMUM:
        modules.append(sys.modules[registry.load("eviction", cell.policy).__module__])
    files = [Path(str(module.__file__)) for module in modules]
    if cell.trace != SYNTHETIC:
        files.append(trace_path(TRACES[cell.trace]))
    return digest(cell.trace, cell.policy, cell.fraction, _SEED, files=files)
