"""A disk tier under a model: warm starts, damage, what others store meanwhile."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from processes import Command
from tier_helpers import over

from framework.llm import LLM, CacheOptions
from framework.sampling import Sampling

WORDS = ("workload=shared_prefix", "workload.num_requests=12", "workload.prefix_tokens=256", "workload.new_tokens=4",
         "workload.unique_tokens=40", "cache.num_blocks=64", "run.progress=false")  # fmt: skip


POOL = CacheOptions(num_blocks=40, block_size=4)


def tiers(folder: Path, **options: Any) -> dict[str, Any]:
    disk = {"store": {"name": "disk", "path": str(folder), **options}, "num_blocks": 4096}
    return over([disk], "write_through")


def prompts() -> list[list[int]]:
    stems = [[(11 * number + 5 * at) % 250 for at in range(70)] for number in range(6)]
    return [[*stems[at % 6], at] for at in range(18)]


def served(folder: Path | None, **options: Any) -> tuple[list[list[int]], dict[str, Any]]:
    """Tokens and counts of a small workload, over a disk tier where a folder is given."""
    with LLM("tiny", cache=POOL, below=tiers(folder, **options) if folder else "none") as llm:
        done = llm.generate(prompts(), Sampling(max_tokens=3, ignore_eos=True))
        llm.engine.check()
        facts = llm.stats()
    return [completion.tokens for request in done for completion in request.completions], facts


def prefilled(result: dict[str, Any]) -> int:
    return int(result["prompt_tokens"] - result["hit_tokens"])


def test_a_second_run_prefills_a_fifth_at_most(elsewhere: Path, command: Command) -> None:
    results = []
    for number in range(2):
        place = elsewhere / f"run{number}"
        command.ok(
            *WORDS, f"run.dir={place}", "+below=tiers", "below.tiering=write_through",
            f"below.tiers=[{{store: {{name: disk, path: {elsewhere / 'kv'}}}, num_blocks: 20000, eviction: lru}}]",
        )  # fmt: skip
        results.append(json.loads((place / "result.json").read_text()))
    cold, warm = results
    assert prefilled(cold) >= 5 * prefilled(warm) > 0, (prefilled(cold), prefilled(warm))
    assert warm["tier1_hit_blocks"] > 0
    assert warm["tier1_failed_loads"] == 0
    assert warm["dense_mismatches"] == cold["dense_mismatches"] == 0
    assert warm["tier1_bytes_in"] == 0, "all of it lies there already"


@pytest.fixture(scope="module")
def alone() -> list[list[int]]:
    return served(None)[0]


def test_what_another_process_stores_is_found_while_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: list[list[int]]
) -> None:
    from framework_tiers import worker

    monkeypatch.setattr(worker, "_LIST_EVERY_S", 0.05)
    with LLM("tiny", cache=POOL, below=tiers(tmp_path)) as early:
        assert served(tmp_path)[0] == alone  # another one, while `early` is open
        deadline = time.monotonic() + 30
        while not early.stats()["tier1_peak_blocks"] and time.monotonic() < deadline:
            time.sleep(0.05)
            early.generate([1, 2, 3], Sampling(max_tokens=1))
        done = early.generate(prompts()[:1], Sampling(max_tokens=3, ignore_eos=True))
        assert done[0].completions[0].tokens == alone[0]
        assert done[0].num_loaded_tokens == 68
