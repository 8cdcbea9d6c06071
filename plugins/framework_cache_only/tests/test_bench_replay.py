"""Block references a second of cache-only replay against others' simulators and a plain loop, in one run.

pytest plugins/framework_cache_only/tests/test_bench_replay.py --benchmark-only -s

LRU. Rounds are interleaved, so that a machine whose speed drifts slows all alike; ratios are of one round's pair.
A rate is that of the replay alone, of paths built beforehand (kvcache-simulator's plan too), from arrays to counts; in
brackets with the time that building the paths takes, and with reading the trace on top: both are Python for everybody.
`framework` is the reference in Python, `native` (any installed replay core) the one in C++.
`plain` is an OrderedDict loop with prefix semantics; kvcache-simulator is theirs in Python, `C++` their C++ program;
libcachesim is a C core without prefix semantics, fed one object at a time from Python. KVLAB_BENCH_ROUNDS=3 by default.
`file_to_hits` alone (-k) is this package from the trace file to LRU's hits, which are asserted: `read` is opening,
parsing and numbering blocks, `count` the replay by the fastest installed core, else in Python.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plain_caches import plain_lru

from framework import registry
from framework_builtin.eviction.lru import Lru
from framework_cache_only.paths import RequestPaths, build_paths
from framework_cache_only.reference import core_of, count, replay
from framework_cache_only.replay_core import PYTHON
from framework_workloads.trace import open_trace

ROUNDS = int(os.environ.get("KVLAB_BENCH_ROUNDS", "3"))
CONVERSATION, AGENTIC = ("mooncake_conversation_trace.jsonl.gz", None), ("agentic_coding_100_sessions.jsonl.gz", 512)


def read(traces: Path, file: str, block_tokens: int | None) -> RequestPaths:
    if not (traces / file).exists():
        pytest.skip(f"no {file} among the traces")
    return build_paths(open_trace(traces / file, block_tokens=block_tokens))


def libcachesim_lru(paths: RequestPaths, size: int) -> int:
    """Hits of the flat stream."""
    library = pytest.importorskip("libcachesim", reason="libcachesim is not installed")
    cache, request = library.LRU(size), library.Request()
    request.obj_size, hits, get = 1, 0, cache.get
    for node in paths.nodes.tolist():
        request.obj_id = node
        hits += get(request)
    return hits


def kvcache_simulator_lru(paths: RequestPaths, size: int) -> Callable[[], int]:
    """Their plan is made beforehand; the call is their simulation alone."""
    policies = pytest.importorskip("kvcache_sim.policies", reason="kvcache-simulator is not installed")
    from test_prefix_hits_equal_kvcache_simulator import their_plan

    plan = their_plan(paths)
    return lambda: int(policies.simulate_policy(plan, "lru", size).hitTokens)


def kvcache_simulator_cpp_seconds(paths: RequestPaths, size: int) -> float:
    """CPU time of one simulation by their C++ program: what eight more capacities add to one.

    Reading the trace and building the trie, which it does once, are left out so. nan where it is not to be had.
    """
    try:
        from kvcache_sim.cpp_backend import ensure_cpp_simulator, run_cpp_sweep
        from test_prefix_hits_equal_kvcache_simulator import their_data
    except ImportError:
        return float("nan")
    ensure_cpp_simulator()  # compiles it the first time
    data, spent = their_data(paths), []
    for more in (0, 8):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run_cpp_sweep(
            data,
            capacities=list(range(size, size + more + 1)),
            policies=["lru"],
            warmup_requests=data.request_count - 1,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return (spent[1] - spent[0]) / 8


def core_lru(name: str, paths: RequestPaths, size: int) -> int:
    """As `mode=cache_only mode.replay_core=...` does."""
    native, counts = count(core_of(name), paths, Lru(), size)
    assert native, f"{name} has no version of lru"
    return counts.hit_blocks


@pytest.mark.timeout(0)
@pytest.mark.parametrize(("file", "block_tokens"), [CONVERSATION, AGENTIC], ids=["conversation", "agentic"])
def test_cache_only_replay(benchmark, traces: Path, file: str, block_tokens: int | None) -> None:
    paths, size = read(traces, file, block_tokens), 10_000
    lists = list(paths.walk())
    subjects: dict[str, Callable[[], object]] = {
        "framework": lambda: replay(paths, Lru(), size).hit_blocks,
        **{name: partial(core_lru, name, paths, size) for name in registry.names("replay_core")},
        "plain": lambda: plain_lru(lists, size),
        "kvcache-simulator": kvcache_simulator_lru(paths, size),
        "libcachesim": lambda: libcachesim_lru(paths, size),
    }
    theirs = "kvcache-sim. C++"
    seconds: dict[str, list[float]] = {name: [] for name in [*subjects, theirs, "read", "paths"]}
    answers: dict[str, object] = {}

    def timed(name: str, call: Callable[[], object]) -> object:
        start = time.process_time()
        answer = call()
        seconds[name].append(time.process_time() - start)
        return answer

    def one_round() -> None:
        for name, call in subjects.items():
            answers[name] = timed(name, call)
        seconds[theirs].append(kvcache_simulator_cpp_seconds(paths, size))
        requests: Any = timed("read", lambda: list(open_trace(traces / file, block_tokens=block_tokens)))
        timed("paths", lambda: build_paths(requests))

    benchmark.pedantic(one_round, rounds=ROUNDS, iterations=1)
    prefix = {
        name: hits for name, hits in answers.items() if name in ("framework", "plain", *registry.names("replay_core"))
    }
    assert len(set(prefix.values())) == 1, answers
    before = {"paths": min(seconds["paths"]), "read and paths": min(seconds["read"]) + min(seconds["paths"])}
    million = paths.num_references / 1e6
    for name in [*subjects, theirs]:
        least, ratio = min(seconds[name]), float(np.median(np.array(seconds["framework"]) / np.array(seconds[name])))
        benchmark.extra_info[f"{name} M references/s"] = round(million / least, 3)
        with_them = ", ".join(f"{million / (least + more):5.2f} with {what}" for what, more in before.items())
        print(
            f"\n{name:18} {million / least:7.2f} M references/s of CPU ({with_them}), {ratio:6.2f} x framework's",
            end="",
        )
    for name in ("read", "paths"):
        print(f"\n{name:18} {million / min(seconds[name]):7.2f} M references/s of CPU", end="")


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("file", "block_tokens", "references", "hits"),
    [(*CONVERSATION, 288_500, 61_046), (*AGENTIC, 1_327_320, 1_261_002)],
    ids=["conversation", "agentic"],
)
def test_file_to_hits(benchmark, traces: Path, file: str, block_tokens: int | None, references: int, hits: int) -> None:
    core, spent = next(iter(registry.names("replay_core")), PYTHON), []

    def one_round() -> None:
        start = time.process_time()
        paths = read(traces, file, block_tokens)
        between = time.process_time()
        _, found = count(core_of(core), paths, Lru(), 10_000)
        spent.append((between - start, time.process_time() - between))
        assert (paths.num_references, found.hit_blocks) == (references, hits)

    benchmark.pedantic(one_round, rounds=ROUNDS, iterations=1)
    reading, counting = (min(column) for column in zip(*spent, strict=True))
    rate = references / (reading + counting) / 1e6
    benchmark.extra_info["M references/s"] = round(rate, 2)
    print(f"\n{rate:6.2f} M references/s of CPU (read {reading:.4f} s, count {counting:.4f} s, {core})", end="")
