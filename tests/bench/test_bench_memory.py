"""Memory of a long-lived LLM on a CPU: prompts of ever new lengths must not make it grow for ever."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

SCRIPT = """
import random
from pathlib import Path
from framework.llm import LLM
from framework.sampling import Sampling

llm = LLM("tiny", num_blocks=1024)
random.seed(0)
for call in range(364):
    prompt = [random.randrange(256) for _ in range(random.randint(1, 600))]
    llm.generate([prompt], Sampling(max_tokens=2, ignore_eos=True))
    if call in (120, 363):
        print(int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // 2**20)
"""


def test_memory_of_an_llm_stays_where_it_is(benchmark: Any) -> None:
    def run() -> list[int]:
        found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
        return [int(line) for line in found.stdout.split()]

    early, late = benchmark.pedantic(run, rounds=1)
    benchmark.extra_info["rss_mib"] = (early, late)
    assert late - early < 60, f"{early} MiB after 121 calls, {late} MiB after 364"
