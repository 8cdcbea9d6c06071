"""Every installed eviction policy and hash scheme, and the engine's own work a step.

pytest tests/bench/test_bench_hot_paths.py --benchmark-only --benchmark-group-by=group
"""

import sys
from collections import Counter
from types import FrameType

import numpy as np
import pytest
from fake_engines import make_engine, prompts

from framework import registry
from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.interfaces.eviction import BlockView
from framework.llm import LLM, CacheOptions
from framework.registry.components import build_allocator
from framework.sampling import Sampling
from framework.types import UNKNOWN_REQUEST, BlockId, Namespace

BLOCKS, GROUP, TOKENS = 4096, 16, 16


def view():
    """Facts of `BLOCKS` blocks in requests of `GROUP`."""
    columns = {name: [0] * (BLOCKS + 1) for name in BlockView.__dataclass_fields__}
    columns["key"] = [b"%d" % block for block in range(BLOCKS + 1)]
    columns["last_request"] = [UNKNOWN_REQUEST] * (BLOCKS + 1)
    columns["next_use"] = [float(block * 7 % 1009) for block in range(BLOCKS + 1)]
    for block in range(1, BLOCKS + 1):
        columns["depth"][block] = (block - 1) % GROUP
        columns["num_tokens"][block] = TOKENS * columns["depth"][block] + TOKENS
    return BlockView(**columns), columns


@pytest.mark.parametrize("name", registry.names("eviction"))
def test_eviction(benchmark, name):
    """Publish, release, hit a quarter again, and evict all: one life of every block."""
    benchmark.group = f"eviction: a life of {BLOCKS} blocks"

    def life():
        policy = registry.build("eviction", name, {}, {"seed": 0})
        facts, columns = view()
        policy.attach(facts)
        requests = [
            tuple(BlockId(block) for block in range(first + GROUP - 1, first - 1, -1))
            for first in range(1, BLOCKS + 1, GROUP)
        ]
        for access, blocks in enumerate(requests, start=1):
            for block in blocks:
                columns["admitted"][block] = columns["last_access"][block] = access
            policy.admit(blocks, float(access))
            policy.release(blocks, float(access))
        for access, blocks in enumerate(requests[::4], start=len(requests) + 1):
            policy.pin(blocks, float(access))
            for block in blocks:
                columns["last_access"][block] = access
                columns["hits"][block] += 1
            policy.hit(blocks, float(access))
            policy.release(blocks, float(access))
        victims = []
        for _ in range(BLOCKS):
            victims.append(policy.victim(1e6))
            policy.evicted(victims[-1], 1e6)
        return victims

    victims = benchmark(life)
    assert sorted(victims) == list(range(1, BLOCKS + 1))
    benchmark.extra_info["blocks"] = BLOCKS


@pytest.mark.parametrize("size", [16, 256])
@pytest.mark.parametrize("name", registry.names("hash"))
def test_hash(benchmark, name, size):
    benchmark.group = f"hash: 256 blocks of {size} tokens"
    scheme = registry.build("hash", name, {}, {"seed": 0})
    tokens = np.random.default_rng(0).integers(0, 100_000, 256 * size).astype(np.int32)
    root = scheme.root(Namespace(), size)
    names = benchmark(scheme.blocks, root, tokens, size)
    assert len(names) == 256


@pytest.mark.parametrize("name", registry.names("allocator"))
def test_engine_without_a_model(benchmark, name):
    """64 requests through the whole engine on the executor of a replay: scheduling and block management alone."""
    benchmark.group = "engine: 64 requests of 10 to 15 tokens, 32 new each"

    def serve():
        allocator = build_allocator(name, "lru", "xxh64", num_blocks=2048, block_size=4, max_model_len=128)
        engine = make_engine(allocator, ReplayExecutor(constant_step(0.025)), max_model_len=128, max_batch_requests=8)
        requests = [engine.submit(prompt, Sampling(max_tokens=32, ignore_eos=True)) for prompt in prompts(64)]
        engine.run()
        return engine, requests

    engine, requests = benchmark(serve)
    assert engine.metrics.num_output_tokens == 32 * len(requests)
    benchmark.extra_info["steps"] = engine.metrics.num_steps


def test_one_group_of_kv_pays_nothing_for_several() -> None:
    """Calls that serving windows added, of all calls of a run of one group: hits, prefill and decode; at most 2 %."""
    llm = LLM("tiny", cache=CacheOptions(block_size=16, num_blocks=128), backend="torch")
    prompts = [list(range(4 + row, 64 + row)) for row in range(4)]
    sampling, calls = Sampling(max_tokens=40, ignore_eos=True), Counter[bool]()
    llm.generate(prompts, sampling)

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            code = frame.f_code
            calls["framework/groups/" in code.co_filename or code.co_name == "_set_further"] += 1

    before = llm.stats()["hit_tokens"]
    sys.setprofile(count)
    try:
        llm.generate(prompts, sampling)
    finally:
        sys.setprofile(None)
    assert llm.groups == ()
    assert llm.stats()["hit_tokens"] > before, "the prompts were not found again: lookups are not counted"
    assert calls[False] > 5_000, calls
    assert calls[True] <= 0.02 * calls[False], calls
