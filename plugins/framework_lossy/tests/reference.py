"""The model and the requests of these tests, and what a compression of them kept."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from framework.llm import LLM, CacheOptions, EngineOptions
from framework.model.loading import LoadedModel, load_model
from framework.registry.components import build_component
from framework.sampling import Sampling
from framework_recall.model import CHECKPOINT
from framework_testing.compression import differences, recorded

METHODS = ("streaming", "knorm", "keydiff", "snapkv", "expected_attention", "adakv", "paged_eviction", "openvino")
GREEDY = Sampling(max_tokens=12, ignore_eos=True, logprobs=0)


@cache
def recall_model() -> LoadedModel:
    return load_model(str(CHECKPOINT), device="cpu")


def llm_of(compression: Any, *, block_size: int = 16, num_blocks: int = 200, **options: Any) -> LLM:
    engine = EngineOptions(**{"max_batch_tokens": 512, "max_batch_requests": 8} | options.pop("engine", {}))
    cache_options = CacheOptions(num_blocks=num_blocks, block_size=block_size, **options.pop("cache", {}))
    return LLM(recall_model(), compression=compression, cache=cache_options, engine=engine, device="cpu", **options)


def served(
    name: str,
    prompts: list[list[int]],
    sampling: Sampling = GREEDY,
    own: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[LLM, Any, list[Any]]:
    """(LLM, requests, differences from what follows from the kept tokens) of these prompts; the pool is checked."""
    compression = build_component("compression", {"name": name, "ratio": 0.5, "question_tokens": 7, **(own or {})}, {})
    kept = recorded(compression)
    llm = llm_of(compression, **options)
    requests = llm.generate(prompts, sampling)
    llm.engine.check()
    return llm, requests, differences(recall_model().decoder, requests, kept)


def prompts_of(count: int, length: int = 150, seed: int = 0) -> list[list[int]]:
    """Prompts of words in no order."""
    rng = np.random.default_rng(seed)
    return [rng.integers(5, 2048, length + 3 * i).tolist() for i in range(count)]
