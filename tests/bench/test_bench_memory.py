"""Memory of a long-lived LLM on a CPU: prompts of ever new lengths must not make it grow for ever.

    pytest tests/bench/test_bench_memory.py --benchmark-only -s

364 calls of `generate`, in a process of their own; after a third of them memory stays within 10 %. `one` has a prompt
of 1 to 600 tokens a call and 1 or 2 new ones, `several` 1 to 6 prompts of up to 400 tokens and up to 12 new ones.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

SCRIPT = """
import random
import sys
from pathlib import Path
from framework.llm import LLM
from framework.sampling import Sampling

llm = LLM("tiny")
most_prompts, longest, most_new = map(int, sys.argv[1:])
random.seed(0)
for call in range(364):
    lengths = [random.randint(1, longest) for _ in range(random.randint(1, most_prompts))]
    prompts = [[random.randrange(256) for _ in range(length)] for length in lengths]
    requests = llm.generate(prompts, Sampling(max_tokens=random.randint(1, most_new), ignore_eos=True))
    assert all(request.status.value == "finished" for request in requests)
    if call in (0, 120, 240, 363):
        print(int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // 2**20)
"""
CALLS = {"one": (1, 600, 2), "several": (6, 400, 12)}


@pytest.mark.timeout(0)
@pytest.mark.parametrize("calls", CALLS)
def test_memory_of_an_llm_stays_where_it_is(benchmark: Any, calls: str) -> None:
    def run() -> list[int]:
        command = [sys.executable, "-c", SCRIPT, *map(str, CALLS[calls])]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        return [int(line) for line in found.stdout.split()]

    rss = benchmark.pedantic(run, rounds=1)
    benchmark.extra_info["rss_mib"] = rss
    print(f"\n{calls}: {rss} MiB after 1, 121, 241 and 364 calls", end="")
    assert rss[-1] <= 1.1 * rss[1], rss
