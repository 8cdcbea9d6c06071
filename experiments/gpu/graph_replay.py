"""A captured decode step replayed with other lengths, tables and queries, and judged against fp64.

    python experiments/gpu/graph_replay.py BACKEND [--dry-run] [--no-graph]

One JSON line a case. Exit status: 0 right, 1 wrong, 4 the backend cannot run here (or is not graph safe).
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from framework import registry
from framework.interfaces.backend import AttentionBackend, AttentionSpec
from framework.testing.attention_cases import Case, Problem, build_problem
from framework.testing.attention_runs import judge

LONGEST = (1500, 1500, 1500, 1500)
LENGTHS = (LONGEST, (1, 700, 1499, 256), (0, 16, 33, 1023), (1500, 0, 1, 512))


def main() -> int:
    """Capture at the longest lengths, replay at others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, calls in place of replays, small")
    parser.add_argument("--no-graph", action="store_true", help="calls in place of replays")
    options = parser.parse_args()
    device = "cpu" if options.dry_run else "cuda"
    made = _backend(options.backend, device)
    if isinstance(made, list):
        print("; ".join(made))
        return 4
    backend, spec = made
    if not (backend.capabilities.graph_safe or options.no_graph or options.dry_run):
        print(f"{options.backend} does not declare graph_safe")
        return 4
    scale = 30 if options.dry_run else 1
    problem = build_problem(Case(spec, tuple(-(-n // scale) for n in LONGEST), (1,) * len(LONGEST)), device)
    step = _Step(backend, problem, graph=device == "cuda" and not options.no_graph)
    wrong = 0
    for lengths in LENGTHS:
        wrong += not _case(step, problem, tuple(-(-n // scale) for n in lengths))
    return 1 if wrong else 0


class _Step:
    """plan and attend on persistent inputs: captured once and replayed, or called each time."""

    def __init__(self, backend: AttentionBackend, problem: Problem, *, graph: bool) -> None:
        self.backend, self.problem = backend, problem
        self.out = torch.zeros(problem.q.shape, dtype=problem.q.dtype, device=problem.q.device)
        self.graph: Any = None
        if graph:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._call()  # compiles and allocates before the capture
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self._call()

    def __call__(self) -> None:
        if self.graph is None:
            self._call()
        else:
            self.graph.replay()
            torch.cuda.synchronize()

    def _call(self) -> None:
        self.backend.plan(self.problem.batch)
        self.backend.attend(self.problem.q, self.problem.pool, self.problem.batch, self.out)


def _case(step: _Step, problem: Problem, lengths: tuple[int, ...]) -> bool:
    """Change lengths and queries in place, run, judge. Host copies change too, for backends that read them."""
    batch = problem.batch
    batch.context_lens.copy_(torch.tensor(lengths, dtype=torch.int32))
    batch.host_context_lens[:] = np.array(lengths, np.int32)
    problem.q.copy_(torch.randn(problem.q.shape, generator=torch.Generator().manual_seed(sum(lengths))).to(problem.q))
    step.out.fill_(float("nan"))
    step()
    case = replace(problem.case, contexts=lengths)
    verdict = judge(step.out, replace(problem, case=case))
    facts = {"lengths": lengths, "ok": verdict.ok, "error": verdict.error, "allowed": verdict.limit}
    print(json.dumps({**facts, "replayed": step.graph is not None}), flush=True)
    return verdict.ok


def _backend(name: str, device: str) -> tuple[AttentionBackend, AttentionSpec] | list[str]:
    """Set up on the first of these specs that it takes, or the reasons against the last."""
    reasons: list[str] = []
    for size in (16, 256):
        for dtype in ("bfloat16", "float32"):
            spec = AttentionSpec(num_heads=8, num_kv_heads=2, head_dim=128, dtype=dtype, block_size=size)
            backend: AttentionBackend = registry.build("backend", name, {}, {})
            reasons = backend.check(spec, device)
            if not reasons:
                backend.setup(spec, device)
                return backend, spec
    return reasons


if __name__ == "__main__":
    sys.exit(main())
