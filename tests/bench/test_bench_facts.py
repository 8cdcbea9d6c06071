"""What facts of requests cost: nothing for a policy that does not ask, one record a request for one that does.

The counts are asserts; only the time is measured. `pytest tests/bench/test_bench_facts.py --benchmark-only`
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from framework.engine.engine import Engine
from framework.engine.executors.replay import ReplayExecutor, constant_step
from framework.paged import last_requests
from framework.registry.components import build_allocator
from framework.replay.paths import RequestPaths, build_paths
from framework.replay.reference import replay
from framework.sampling import Sampling
from framework.testing.engines import prompts
from framework.types import RequestFacts
from framework.workload.traces import TraceRequest
from framework_builtin.eviction.lru import Lru

REQUESTS, BLOCKS = 400, 12


class Asks(Lru):
    """LRU that could read what is known of requests."""

    needs_requests = True


def paths() -> RequestPaths:
    return build_paths(
        TraceRequest(arrival_s=float(number), input_tokens=2 * BLOCKS, output_tokens=1, block_tokens=2,
                     block_ids=np.arange(BLOCKS) + 100 * (number % 60))
        for number in range(REQUESTS)
    )  # fmt: skip


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts records made, columns kept and blocks written to one."""
    counts: Counter[str] = Counter()

    def counted(owner: type, name: str, what: str) -> None:
        original = getattr(owner, name)

        def wrapper(*args: object, **kwargs: object) -> object:
            counts[what] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, wrapper)

    counted(RequestFacts, "__init__", "records")
    counted(last_requests.LastRequests, "__init__", "columns")
    counted(last_requests.LastRequests, "used", "updates")
    counted(last_requests.PromptEnds, "turn_of", "turns")
    return counts


def serve(policy: str) -> None:
    allocator = build_allocator("prefix", policy, "xxh64", num_blocks=256, block_size=4, max_model_len=64)
    engine = Engine(allocator, ReplayExecutor(constant_step(1.0)), max_model_len=64, max_batch_requests=4)
    for prompt in prompts(20):
        engine.submit(prompt, Sampling(max_tokens=2, ignore_eos=True))
    engine.run()


def test_in_a_replay_a_policy_that_asks_nothing_pays_nothing(benchmark, work) -> None:
    stream = paths()
    replay(stream, Lru(), 200)
    assert work == {}, work
    replay(stream, Asks(), 200)
    assert work["records"] == REQUESTS, work
    assert work["columns"] == 1, work
    benchmark.pedantic(replay, (stream, Lru(), 200), rounds=3)


def test_in_the_engine_a_policy_that_asks_nothing_pays_nothing(benchmark, work) -> None:
    serve("lru")
    assert work == {}, work
    serve("hazard")
    assert work["records"] == work["turns"] == 20, work
    benchmark.pedantic(serve, ("lru",), rounds=3)
