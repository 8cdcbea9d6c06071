"""What observers=[explain] costs a Python replay, cache-only and in an engine without a model.

pytest plugins/framework_explain/tests/test_bench_explain.py --benchmark-only -s

Rounds are interleaved and in CPU seconds, so that what else runs on the machine disturbs both alike.
"""

import time
from statistics import median

import pytest
from fake_engines import make_engine

from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.registry.components import build_allocator
from framework.replay.items import feed, trace_items
from framework_builtin.eviction.lru import Lru
from framework_cache_only.paths import build_paths
from framework_cache_only.reference import replay
from framework_explain.observer import Explain
from framework_explain.replayed_misses import LossLog
from framework_workloads.trace import open_trace
from framework_workloads.trace_file import TraceFile

ROUNDS = 11


def interleaved(benchmark, plain, explained):
    times = {"off": [], "on": []}

    def both():
        for name, work in (("off", plain), ("on", explained)):
            start = time.process_time()
            work()
            times[name].append(time.process_time() - start)

    benchmark.pedantic(both, rounds=ROUNDS, warmup_rounds=1)
    more = sorted(100 * (on / off - 1) for off, on in zip(times["off"][1:], times["on"][1:], strict=True))
    least = 100 * (min(times["on"]) / min(times["off"]) - 1)
    benchmark.extra_info["more"] = median(more)
    print(
        f"\noff {median(times['off'][1:]):.3f} s, on {median(times['on'][1:]):.3f} s of CPU: {median(more):.0f} % more "
        f"(rounds {more[0]:.0f} to {more[-1]:.0f} %; of the fastest {least:.0f} %)"
    )


@pytest.mark.benchmark(group="explain")
def test_cache_only(benchmark, traces):
    paths = build_paths(open_trace(traces / "mooncake_conversation_trace.jsonl.gz"))

    interleaved(benchmark, lambda: replay(paths, Lru(), 10_000), lambda: replay(paths, Lru(), 10_000, losses=LossLog()))


@pytest.mark.benchmark(group="explain")
def test_an_engine_without_a_model(benchmark, traces):
    source = TraceFile(path=str(traces / "mooncake_conversation_trace.jsonl.gz"), limit=600)
    items = list(trace_items(source.requests()))

    def run(*observers):
        allocator = build_allocator(
            "prefix", "lru", "xxh64", num_blocks=3000, block_size=64, max_model_len=192_000, seed=0
        )
        executor = ReplayExecutor(constant_step(0.05))
        engine = make_engine(allocator, executor, max_model_len=192_000, max_batch_tokens=8192, observers=observers)
        for _ in feed(engine, iter(items)):
            pass

    interleaved(benchmark, run, lambda: run(Explain()))
