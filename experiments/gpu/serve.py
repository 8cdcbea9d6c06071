"""Tokens per second end to end, after a warm-up pass of the same lengths.

    python experiments/gpu/serve.py BACKEND [--eager] [--dry-run]

Qwen3-0.6B's shape with random weights in bf16; ragged prompts. One JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import numpy as np
import torch

from framework.errors import BackendUnavailable
from framework.llm import LLM, CacheOptions, EngineOptions
from framework.model.loading import random_model
from framework.sampling import Sampling


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
    dry = options.dry_run
    num_requests, shortest, longest, new_tokens = (2, 8, 16, 4) if dry else (256, 128, 1024, 128)
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
    for seed, name in enumerate(("warm_up", "timed")):
        start = time.perf_counter()
        sampling = Sampling(max_tokens=new_tokens, ignore_eos=True)
        outputs = llm.generate(prompts(num_requests, shortest, longest, seed), [sampling] * num_requests)
        if not dry:
            torch.cuda.synchronize()
        facts[f"{name}_s"] = seconds = time.perf_counter() - start
        facts["output_tokens_per_s"] = sum(output.num_output_tokens for output in outputs) / seconds
    print(json.dumps({**facts, **llm.executor.summary()}), flush=True)
    llm.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
