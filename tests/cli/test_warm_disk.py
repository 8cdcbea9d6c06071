"""A disk tier across processes: warm starts, kills, damage, full disks, shared folders, bounds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from framework.llm import LLM, CacheOptions, Tiers
from framework.sampling import Sampling

WORDS = ("workload=shared_prefix", "workload.num_requests=12", "workload.prefix_tokens=256", "workload.new_tokens=4",
         "workload.unique_tokens=40", "cache.num_blocks=64", "run.progress=false")  # fmt: skip


POOL = CacheOptions(num_blocks=40, block_size=4)


def tiers(folder: Path, **options: Any) -> Tiers:
    disk = {"store": {"name": "disk", "path": str(folder), **options}, "num_blocks": 4096}
    return Tiers(tiering="write_through", tiers=[disk])


def prompts() -> list[list[int]]:
    stems = [[(11 * number + 5 * at) % 250 for at in range(70)] for number in range(6)]
    return [[*stems[at % 6], at] for at in range(18)]


def served(folder: Path | None, **options: Any) -> tuple[list[list[int]], dict[str, Any]]:
    """Tokens and counts of a small workload, over a disk tier where a folder is given."""
    with LLM("tiny", cache=POOL, tiers=folder and tiers(folder, **options)) as llm:
        done = llm.generate(prompts(), Sampling(max_tokens=3, ignore_eos=True))
        llm.engine.check()
        facts = llm.stats()
    return [completion.tokens for request in done for completion in request.completions], facts


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.kv"))


def prefilled(result: dict[str, Any]) -> int:
    return int(result["prompt_tokens"] - result["hit_tokens"])


def test_a_second_run_prefills_a_fifth_at_most(elsewhere: Path, command: Callable[..., tuple[int, str, str]]) -> None:
    results = []
    for number in range(2):
        place = elsewhere / f"run{number}"
        status, out, err = command(
            *WORDS, f"run.dir={place}", "+tiering=write_through",
            f"tiers=[{{store: {{name: disk, path: {elsewhere / 'kv'}}}, num_blocks: 20000, eviction: lru}}]",
        )  # fmt: skip
        assert status == 0, out + err
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


def test_damaged_files_are_misses_and_reported_once(tmp_path: Path, alone: list[list[int]]) -> None:
    assert served(tmp_path)[0] == alone
    kept = files(tmp_path)
    truncated, flipped, one, other = kept[3], kept[11], kept[20], kept[30]
    truncated.write_bytes(truncated.read_bytes()[:-7])
    damaged = bytearray(flipped.read_bytes())
    damaged[len(damaged) // 2] ^= 4
    flipped.write_bytes(damaged)
    data = one.read_bytes(), other.read_bytes()
    one.write_bytes(data[1]), other.write_bytes(data[0])
    tokens, facts = served(tmp_path)
    assert tokens == alone
    assert 1 <= facts["tier1_failed_loads"] <= 4
    assert facts["tier_failure"] == "tier 1: a block was not there, or damaged"
    tokens, facts = served(tmp_path)
    assert (tokens, facts["tier1_failed_loads"]) == (alone, 0), "what was damaged was recomputed and stored again"


CHILD = """
import json, resource, signal, sys
from tests.cli.test_warm_disk import served
from pathlib import Path
limit = int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
tokens, facts = served(Path(sys.argv[1]))
print(json.dumps([tokens, facts["tier1_failed_stores"], facts["loaded_blocks"], facts["tier1_failed_loads"]]))
"""


def child(folder: Path, repository: Path, limit: int = 0) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(repository), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", textwrap.dedent(CHILD), str(folder), str(limit)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)


def test_a_full_disk_stops_stores_and_not_the_run(tmp_path: Path, repository: Path, alone: list[list[int]]) -> None:
    out, _ = child(tmp_path, repository, limit=1000).communicate(timeout=120)  # a block's file has more bytes than that
    tokens, failed, loaded, _ = json.loads(out)  # what is still to be stored counts as a hit, and cannot be loaded
    assert tokens == alone
    assert failed > 50
    assert loaded == 0
    assert not files(tmp_path)


def test_two_processes_share_a_folder(tmp_path: Path, repository: Path, alone: list[list[int]]) -> None:
    pair = [child(tmp_path, repository) for _ in range(2)]
    for process in pair:
        tokens, failed, _, lost = json.loads(process.communicate(timeout=120)[0])
        assert (tokens, failed, lost) == (alone, 0, 0)
    tokens, facts = served(tmp_path)
    assert tokens == alone
    assert facts["tier1_hit_blocks"] > 90


def test_a_process_that_is_killed_loses_what_was_under_way_at_most(
    tmp_path: Path, repository: Path, alone: list[list[int]]
) -> None:
    for wanted in (5, 60):
        process = child(tmp_path, repository)
        deadline = time.monotonic() + 120
        while len(files(tmp_path)) < wanted and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert len(files(tmp_path)) >= wanted
        before = len(files(tmp_path))
        tokens, facts = served(tmp_path)
        assert tokens == alone
        assert facts["tier1_failed_loads"] == 0, "a file is whole or not there"
        assert facts["tier1_hit_blocks"] > 0
        for path in files(tmp_path)[before // 2 :]:  # the next round begins with fewer
            path.unlink()


def test_the_size_of_a_folder_is_bounded(tmp_path: Path, alone: list[list[int]]) -> None:
    size, most = 0, 40_000
    for _ in range(2):
        tokens, _ = served(tmp_path, max_bytes=most)
        assert tokens == alone
        each = max(path.stat().st_size for path in files(tmp_path))
        size = sum(path.stat().st_size for path in files(tmp_path))
        assert size <= most + 64 * each
    assert size > 0


def test_what_another_process_stores_is_found_while_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: list[list[int]]
) -> None:
    from framework.tiers import worker

    monkeypatch.setattr(worker, "_LIST_EVERY_S", 0.05)
    with LLM("tiny", cache=POOL, tiers=tiers(tmp_path)) as early:
        assert served(tmp_path)[0] == alone  # another one, while `early` is open
        deadline = time.monotonic() + 30
        while not early.stats()["tier1_peak_blocks"] and time.monotonic() < deadline:
            time.sleep(0.05)
            early.generate([1, 2, 3], Sampling(max_tokens=1))
        done = early.generate(prompts()[:1], Sampling(max_tokens=3, ignore_eos=True))
        assert done[0].completions[0].tokens == alone[0]
        assert done[0].num_loaded_tokens == 68
