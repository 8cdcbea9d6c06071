"""CPU time of a process from its start: Python, torch, `import framework`, `--help`, a replay, tiny's first token.

    pytest tests/bench/test_bench_start.py --benchmark-only -s

Rounds are interleaved. What is asserted are counts: one token, and no torch, Hydra or msgspec where nothing needs them;
time is only printed. KVLAB_BENCH_ROUNDS=3 by default.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from typing import Any

import pytest

ROUNDS = int(os.environ.get("KVLAB_BENCH_ROUNDS", "3"))
HEAVY = "sorted({name.partition('.')[0] for name in sys.modules} & {'torch', 'hydra', 'msgspec', 'matplotlib'})"
FIRST_TOKEN = """
from framework import LLM
from framework.sampling import Sampling
(request,) = LLM("tiny").generate("Hello", Sampling(max_tokens=1))
print(len(request.completions[0].tokens))
"""
REPLAY = """
import sys, tempfile
from framework.run import call
with tempfile.TemporaryDirectory() as folder:
    assert call(["mode=replay", "executor=null", "workload=shared_prefix", f"run.dir={folder}/run"]) == 0
assert "torch" not in sys.modules
"""
PROGRAMS: dict[str, tuple[list[str], str | None]] = {
    "python": (["-c", "pass"], ""),
    "import torch": (["-c", "import torch"], ""),
    "import framework": (["-c", f"import sys, framework; print({HEAVY})"], "[]"),
    "--help": (["-m", "framework.run", "--help"], None),
    "short replay": (["-c", REPLAY], None),
    "first token": (["-c", FIRST_TOKEN], "1"),
}


@pytest.mark.timeout(0)
def test_from_the_start_of_a_process_to_its_first_token(benchmark: Any) -> None:
    spent: dict[str, list[float]] = {name: [] for name in PROGRAMS}

    def one_round() -> None:
        for name, (words, wanted) in PROGRAMS.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            found = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True).stdout.strip()
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            assert wanted is None or found == wanted, (name, found)
            spent[name].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    benchmark.pedantic(one_round, rounds=ROUNDS, warmup_rounds=1)
    for name, seconds in spent.items():
        seconds = sorted(seconds[1:])  # the warm-up writes byte code
        benchmark.extra_info[f"{name}, CPU s"] = [round(second, 3) for second in seconds]
        print(f"\n{name:18} {seconds[0]:.2f} to {seconds[-1]:.2f} s of CPU", end="")
