"""Requests of token ids with their answers, the same for every engine."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from framework.interfaces.workload import WorkloadRequest
from framework.replay.items import trace_items
from framework.sampling import Sampling
from framework.types import TokenArray
from framework_workloads.trace_file import TraceFile

FIRST_OUTPUT = 2**30 + 2**29


@dataclass(frozen=True)
class Talk:
    """One request: (n,) int32 prompt and (m,) int32 answer, m at least 1."""

    prompt: TokenArray
    output: TokenArray


@dataclass
class Outcome:
    """What an engine did. Requests are numbered in order of arrival.

    Attributes:
        hits: prompt tokens found in the cache when the request first started, by request.
        steps: tokens computed in each step, by request.
        evicted: hashes of the contents lost, in order.
        num_preemptions: rows that were thrown out to be computed again.
    """

    hits: dict[int, int] = field(default_factory=dict)
    steps: list[dict[int, int]] = field(default_factory=list)
    evicted: list[bytes] = field(default_factory=list)
    num_preemptions: int = 0


def of_trace(path: Path, count: int, *, longest: int = 10**9) -> list[Talk]:
    """The first `count` requests of a trace; answers of unique tokens, as long as recorded, at most `longest`."""
    requests = islice(iter(TraceFile(path=path).requests()), count)
    return _with_answers(trace_items(requests), longest)


def grown(count: int, *, seed: int = 0, block_size: int = 16) -> list[Talk]:
    """Made-up conversations that grow by a turn at a time, with answers; some prompts end with a block."""
    draw, talks = random.Random(seed), list[Talk]()
    known: dict[int, list[int]] = {}
    for number in range(count):
        session = draw.randrange(20)
        so_far = known.get(session) or [session] * draw.randrange(1, 6 * block_size)
        prompt = so_far + [10_000 + number] * draw.choice((1, 7, block_size, block_size + 3))
        output = [FIRST_OUTPUT + 1000 * number + i for i in range(draw.randrange(1, 3 * block_size))]
        talks.append(Talk(np.array(prompt, dtype=np.int32), np.array(output, dtype=np.int32)))
        known[session] = (prompt + output) if len(prompt) < 20 * block_size else []
    return talks


def sampled(count: int, *, width: int) -> list[Talk]:
    """Made-up prompts of which `width` samples each are drawn, as requests of their own: so does vLLM with n > 1."""
    draw, talks = random.Random(1), list[Talk]()
    for number in range(count):
        prompt = [50_000 + number] * draw.randrange(16, 128)
        for sample in range(width):
            output = [
                2 * FIRST_OUTPUT // 3 + 1000 * (width * number + sample) + i for i in range(draw.randrange(1, 40))
            ]
            talks.append(Talk(np.array(prompt, dtype=np.int32), np.array(output, dtype=np.int32)))
    return talks


def _with_answers(requests: Iterable[WorkloadRequest], longest: int) -> list[Talk]:
    talks, first = list[Talk](), FIRST_OUTPUT
    for request in requests:
        assert request.tokens is not None
        length = min(request.sampling.max_tokens, longest)
        talks.append(Talk(request.tokens, np.arange(first, first + length, dtype=np.int32)))
        first += length
    return talks


def sampling_of(request: Talk) -> Sampling:
    """As many tokens as the answer has."""
    return Sampling(max_tokens=len(request.output), ignore_eos=True)
