"""Part of a GPU run: decode attention behind a prefix in the same blocks, read once and row by row. A JSON line a case.

    python experiments/gpu/shared_prefix.py [--dry-run]

Qwen3-8B's heads (32/8/128) in bf16, pages of 16, Triton with `shared_tokens` and without, in turn; each round is timed
from an idle device to an idle device, plan included. `gain` is the time row by row over the time with the prefix read
once; the case without a shared prefix shows what looking for one costs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import numpy as np
import torch

from framework.interfaces.backend import AttentionSpec
from framework.testing.attention_cases import Case, build_problem
from framework_builtin.backend.triton import TritonBackend

CASES = ((32, 0), (32, 512), (32, 2048), (128, 2048), (128, 8192))
OWN, LEAST = 96, 256
"""Tokens of each row behind the prefix; of a prefix that is worth it."""


def main() -> int:
    """Time the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="small shapes in the interpreter, on the CPU")
    dry = parser.parse_args().dry_run
    device, calls, rounds = ("cpu", 1, 2) if dry else ("cuda", 20, 30)
    spec = AttentionSpec(num_heads=4 if dry else 32, num_kv_heads=2 if dry else 8, head_dim=32 if dry else 128,
                         dtype="float32" if dry else "bfloat16", block_size=16)  # fmt: skip
    for rows, shared in ((4, 0), (4, 512)) if dry else CASES:
        print(json.dumps({"rows": rows, "shared": shared, **compared(spec, rows, shared, device, calls, rounds)}))
    return 0


def compared(
    spec: AttentionSpec, rows: int, shared: int, device: str, calls: int, rounds: int
) -> dict[str, float | list[float]]:
    """Median seconds of a layer's attention both ways, and the gain with its quartiles."""
    problem = build_problem(Case(spec, (shared + OWN,) * rows, (1,) * rows), device)
    tables = problem.batch.block_tables
    tables[:, : shared // spec.block_size] = tables[0, : shared // spec.block_size].clone()
    out, taken = torch.empty_like(problem.q), ([], [])  # type: ignore[var-annotated]
    backends = TritonBackend(shared_tokens=LEAST), TritonBackend()
    for backend in backends:
        backend.setup(spec, device)
    for _ in range(rounds + 2):
        for backend, seconds in zip(backends, taken, strict=True):
            synchronize(device)
            start = time.perf_counter()
            for _ in range(calls):
                backend.plan(problem.batch)
                backend.attend(problem.q, problem.pool, problem.batch, out)
            synchronize(device)
            seconds.append((time.perf_counter() - start) / calls)
    once, each = (np.array(seconds[2:]) for seconds in taken)  # the first rounds compile
    return {
        "once_s": float(np.median(once)),
        "row_by_row_s": float(np.median(each)),
        "gain": float(np.median(each / once)),
        "gain_quartiles": [float(value) for value in np.quantile(each / once, (0.25, 0.75))],
    }


def synchronize(device: str) -> None:
    """Wait for an idle device."""
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
