"""Tokens per second end to end, after a warm-up pass; what each pass compiles, or finds in Triton's cache, is counted.

    python experiments/gpu/serve.py BACKEND [--eager] [--dry-run]

Qwen3-0.6B's shape with random weights in bf16; ragged prompts. One JSON line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from framework.errors import BackendUnavailable
from framework.llm import LLM, CacheOptions, EngineOptions
from framework.model.loading import random_model
from framework.sampling import Sampling


@contextlib.contextmanager
def watched() -> Iterator[Any]:
    """What Triton compiles and loads within the block; None where this version cannot be watched."""
    try:
        from framework_builtin.backend.triton_kernels.compiles import counted

        counting = counted()
        counts = counting.__enter__()
    except (ImportError, AttributeError):
        yield None
        return
    try:
        yield counts
    finally:
        counting.__exit__(None, None, None)


def prompts(num_requests: int, shortest: int, longest: int, seed: int) -> list[list[int]]:
    """Random tokens, unlike in every pass so that no prefix is shared; the lengths are the same."""
    lengths = np.random.default_rng(0).integers(shortest, longest + 1, num_requests)
    draw = np.random.default_rng(seed)
    return [draw.integers(0, 250, int(length)).tolist() for length in lengths]


def main() -> int:
    """Warm up, then measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend")
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    parser.add_argument("--dry-run", action="store_true", help="the tiny model, two requests, on the CPU")
    options = parser.parse_args()
    with watched() as compiles:
        return serve(options, compiles)


def serve(options: argparse.Namespace, compiles: Any) -> int:
    """Both passes; one JSON line."""
    dry = options.dry_run
    size = (2, 8, 16, 4) if dry else (256, 128, 1024, 128)
    num_requests, shortest, longest, new_tokens = size
    engine = EngineOptions(max_batch_requests=num_requests, max_batch_tokens=256 if dry else 16384,
                           cuda_graphs=False if options.eager else "auto")  # fmt: skip
    model = "tiny" if dry else random_model("qwen3-0.6b", dtype="bfloat16", device="cuda")
    page = 256 if options.backend in ("flash_attn", "varlen") else 16
    cache = CacheOptions(block_size=page, num_blocks=64 if dry else None, memory_fraction=None if dry else 0.6)
    try:
        llm = LLM(model, backend=options.backend, device="cpu" if dry else "cuda", cache=cache, engine=engine)
    except BackendUnavailable as error:
        print(error)
        return 4
    facts: dict[str, Any] = {"backend": options.backend, "eager": options.eager, "block_size": page}
    for name in ("warm_up", "timed"):
        before, start = _counts(compiles), time.perf_counter()
        sampling = Sampling(max_tokens=new_tokens, ignore_eos=True)
        outputs = llm.generate(prompts(num_requests, shortest, longest, len(facts)), [sampling] * num_requests)
        if not dry:
            torch.cuda.synchronize()
        facts[f"{name}_s"] = seconds = time.perf_counter() - start
        after = _counts(compiles)
        for what, was, now in zip(("compiles", "loads"), before, after, strict=True):
            facts[f"{name}_{what}"] = None if now is None or was is None else now - was
        facts["output_tokens_per_s"] = sum(output.num_output_tokens for output in outputs) / seconds
    print(json.dumps({**facts, **llm.executor.summary()}), flush=True)
    llm.close()
    return 0


def _counts(compiles: Any) -> tuple[int | None, int | None]:
    """Kernels compiled, and kernels that the cache had, so far."""
    return (None, None) if compiles is None else (len(compiles.compiled), len(compiles.found))


if __name__ == "__main__":
    sys.exit(main())
