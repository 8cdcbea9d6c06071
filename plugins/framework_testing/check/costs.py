"""The cost of a plugin's calls, beside the baselines.

Each contender is measured in turn, several rounds, and the least of each number counts: what else runs on the machine
only ever adds. How far the rounds lie apart, and whether the machine was busy, says how much a number is worth.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from framework import registry
from framework.interfaces.allocator import Allocator
from framework.interfaces.backend import AttentionBackend
from framework.interfaces.eviction import EvictionPolicy
from framework.interfaces.hash import HashScheme
from framework.types import BlockId, Namespace, RequestId, RequestInfo, as_tokens
from framework_testing.allocator import fresh
from framework_testing.check.verdicts import Subject
from framework_testing.eviction import attached

Numbers = dict[str, float]

BASELINES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "allocator": ("prefix_cow", "naive"),
        "eviction": ("lru", "fifo"),
        "hash": ("sha256", "xxh64"),
        "backend": ("torch", "gather"),
    }
)
"""What a plugin is set beside, where it is installed; no other part of the framework depends on these names."""

UNITS: Mapping[str, str] = MappingProxyType(
    {
        "allocator": "ns a block: 16 requests of 64 blocks of 16 tokens in a pool of 2,048; lru, sha256; append is one "
        "block's extend and commit",
        "eviction": "ns a block: 1,024 blocks, called in groups of 8; a victim with the eviction it leads to",
        "hash": "ns a block of 16 tokens: 256 blocks in one call, and blocks one by one",
        "backend": "one decode step of 4 rows of 128 tokens",
    }
)


MOST_S = 20.0


@dataclass(frozen=True, slots=True)
class Cost:
    """One contender's numbers, by column, the least of all rounds and the most; or why there are none."""

    name: str
    numbers: Numbers = field(default_factory=dict)
    most: Numbers = field(default_factory=dict)
    error: str = ""


def costs(
    subject: Subject, *, against: Sequence[str] | None = None, device: str = "cpu", rounds: int = 5
) -> list[Cost]:
    """The subject's cost, then each baseline's. Rounds end early after MOST_S seconds.

    Args:
        against: names of installed plugins of the same kind; default `BASELINES`, those that are installed.

    Raises:
        UnknownPlugin: `against` names one that is not installed.
    """
    if subject.kind not in _MEASURES:
        return []  # where requests come from is no part of a step
    if against is None:
        installed = registry.names(subject.kind)
        against = [name for name in BASELINES[subject.kind] if name in installed]
    others = {name: registry.load(subject.kind, name) for name in against}
    makers = {subject.name: subject.make, **{name: cls for name, cls in others.items() if cls is not subject.cls}}
    measure = _MEASURES[subject.kind]
    if subject.kind == "backend":
        from framework_testing.attention_runs import supported

        measure = partial(measure, spec=supported(subject.make, device), device=device)
    by_name = {name: Cost(name) for name in makers}
    start = time.perf_counter()
    for turn in range(rounds):
        if turn and time.perf_counter() - start > MOST_S:
            break
        for name, make in makers.items():
            best, most = by_name[name].numbers, by_name[name].most
            if by_name[name].error:
                continue
            try:
                for column, value in measure(make).items():
                    best[column] = min(value, best.get(column, math.inf))
                    most[column] = max(value, most.get(column, 0.0))
            except Exception as error:  # of one that failed its kit: the others' numbers are wanted all the same
                by_name[name] = Cost(name, error=f"{type(error).__name__}: {error}")
    return list(by_name.values())


def busy() -> str:
    """A sentence if more wants to run on this machine than it has cores, so that times are long; else nothing."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if load <= cores + 0.5:
        return ""
    return f"the machine is busy: a load of {load:.1f} on {cores} cores; times are longer than they need be, and vary"


class _Watch:
    """Sums the time of each kind of call, and gives it per unit."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}

    def time(self, column: str, units: int, call: Callable[[], Any]) -> Any:
        start = time.perf_counter_ns()
        result = call()
        took = time.perf_counter_ns() - start
        entry = self._sums.setdefault(column, [0.0, 0.0])
        entry[0] += took
        entry[1] += units
        return result

    def numbers(self) -> Numbers:
        return {column: total / units for column, (total, units) in self._sums.items()}


def _eviction(make: Callable[[], EvictionPolicy], num_blocks: int = 1024, group: int = 8) -> Numbers:
    policy, watch = make(), _Watch()
    depth = [(block - 1) % group for block in range(num_blocks + 1)]
    columns = attached(policy, num_blocks, depth=depth, num_tokens=[16 * (above + 1) for above in depth],
                       next_use=[math.inf] * (num_blocks + 1))  # fmt: skip
    requests = [  # tuples, as the allocators hand them: a policy that changes its lists fails here
        tuple(BlockId(block) for block in range(first + group - 1, first - 1, -1))
        for first in range(1, num_blocks + 1, group)
    ]

    def again(blocks: Sequence[BlockId]) -> None:
        policy.pin(blocks, 0.0)
        policy.hit(blocks, 0.0)

    for access, blocks in enumerate(requests):
        for block in blocks:
            columns["last_access"][block] = columns["admitted"][block] = access
        watch.time("admit", group, partial(policy.admit, blocks, 0.0))
    for blocks in requests:
        watch.time("release", group, partial(policy.release, blocks, 0.0))
    for access, blocks in enumerate(requests[::2], len(requests)):
        for block in blocks:
            columns["last_access"][block], columns["hits"][block] = access, 1
        watch.time("hit", group, partial(again, blocks))
        watch.time("release", group, partial(policy.release, blocks, 0.0))
    for _ in range(num_blocks // 2):
        watch.time("victim", 1, lambda: policy.evicted(policy.victim(0.0), 0.0))
    return watch.numbers()


def _hash(make: Callable[[], HashScheme], num_blocks: int = 256, block_size: int = 16) -> Numbers:
    scheme, watch = make(), _Watch()
    tokens = as_tokens([(7919 * position) % 150_000 for position in range(num_blocks * block_size)])
    root = scheme.root(Namespace(), block_size)
    watch.time("prompt", num_blocks, lambda: scheme.blocks(root, tokens, block_size))
    for first in range(0, len(tokens), block_size):
        watch.time("single", 1, partial(scheme.block, root, tokens[first : first + block_size]))
    return watch.numbers()


def _allocator(make: Callable[..., Allocator], requests: int = 16, blocks: int = 64, size: int = 16) -> Numbers:
    scheme, policy = registry.build("hash", "sha256"), registry.build("eviction", "lru")
    allocator = fresh(make, 2 * requests * blocks, size, scheme, policy, max_model_len=(blocks + 2) * size)
    watch, space = _Watch(), Namespace()
    for number in range(requests):
        tokens = as_tokens([(number * 7919 + position) % 150_000 for position in range((blocks + 1) * size)])
        prompt, request = tokens[: blocks * size], RequestId(number + 1)
        hit = watch.time("lookup new", blocks, partial(allocator.lookup, prompt, space))
        info = RequestInfo(id=request, max_total_tokens=len(tokens))
        watch.time("allocate", blocks, partial(allocator.allocate, info, prompt, hit))
        watch.time("commit", blocks, partial(allocator.commit, request, prompt))

        def append(request: RequestId = request, tokens: Any = tokens) -> None:
            allocator.extend(request, len(tokens))
            allocator.commit(request, tokens)

        watch.time("append", 1, append)
        watch.time("lookup again", blocks, partial(allocator.lookup, prompt, space))
    for number in range(requests):
        watch.time("free", blocks + 1, partial(allocator.free, RequestId(number + 1)))
    return watch.numbers()


def _backend(make: Callable[[], AttentionBackend], *, spec: Any, device: str) -> Numbers:
    from framework.errors import Unsupported
    from framework_testing.attention_cases import Case, build_problem
    from framework_testing.attention_runs import judge, run_attention

    backend = make()
    reasons = backend.check(spec, device)
    if reasons:
        raise Unsupported("; ".join(reasons))
    backend.setup(spec, device)
    problem = build_problem(Case(spec, (128,) * 4, (1,) * 4), device)
    verdict = judge(run_attention(backend, problem)[0], problem, backend.capabilities.lossy)
    numbers = {"error vs fp64": verdict.error, "plain torch's error": verdict.plain_error, "ms a decode": math.inf}
    start = time.perf_counter()
    while time.perf_counter() - start < 0.2:
        begin = time.perf_counter_ns()
        out, _ = run_attention(backend, problem)
        out.sum().item()  # waits for the device
        numbers["ms a decode"] = min(numbers["ms a decode"], (time.perf_counter_ns() - begin) / 1e6)
    return numbers


_MEASURES: Mapping[str, Callable[..., Numbers]] = MappingProxyType(
    {"allocator": _allocator, "eviction": _eviction, "hash": _hash, "backend": _backend}
)
