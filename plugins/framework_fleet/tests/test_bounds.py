"""Bounds of a fleet's hits and times."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from fleet_helpers import run

from framework.interfaces.workload import WorkloadRequest
from framework_fleet.bounds import Bounds
from framework_fleet.replica import Sent

SIZE = 4


def sent(blocks: Sequence[int], session: str | None = None, tokens: int | None = None, number: int = 0) -> Sent:
    count = len(blocks) * SIZE + 1 if tokens is None else tokens
    item = WorkloadRequest(input_tokens=count, session=session)
    return Sent(place=0, number=number, item=item, hashes=(), blocks=np.array(blocks, dtype=np.int64))


def lru_hits(prompts: Sequence[Sequence[int]], num_blocks: int) -> int:
    """Blocks hit where each request is one access, by a list in order of last use, leading blocks used last."""
    order: list[tuple[int, ...]] = []
    hits = 0
    for prompt in prompts:
        paths = [tuple(prompt[: at + 1]) for at in range(len(prompt))]
        hits += next((at for at, path in enumerate(paths) if path not in order), len(paths))
        order = [path for path in order if path not in paths] + paths[::-1]
        order = order[-num_blocks:]
    return hits


def test_one_shared_cache_has_the_blocks_of_all_replicas() -> None:
    prompts = [[1, 2], [3, 4], [1, 2], [5], [3, 4], [1, 2]]
    made = Bounds([sent(one) for one in prompts], [2, 2], SIZE)
    found = made.results(0, {}, lambda cached, tokens: 0.0)
    assert found["shared_lru_hit_tokens"] == lru_hits(prompts, 4) * SIZE
    assert found["shared_optimum_hit_tokens"] == 5 * SIZE, "one makes room for the fourth request"
    assert found["regret_tokens"] == 5 * SIZE
    assert found["static_hit_tokens"] is None


def test_a_whole_prompt_is_never_a_hit_and_an_output_is_kept_for_later_prompts() -> None:
    rows = [sent([1, 2], tokens=8), sent([1, 2, 3], tokens=8), sent([1, 2, 3, 4], tokens=13)]
    found = Bounds(rows, [9], SIZE).results(0, {}, lambda cached, tokens: 0.0)
    assert found["shared_lru_hit_tokens"] == found["shared_optimum_hit_tokens"] == (0 + 1 + 3) * SIZE


def test_the_assignment_of_sessions_found_is_the_best_of_a_few() -> None:
    turns = {"a": [1, 2], "b": [3, 4], "c": [5], "d": [1, 2]}
    rows = [sent(turns[name], name) for name in "abcd" * 3]
    made = Bounds(rows, [3, 3], SIZE)
    best = 0
    for assignment in product((0, 1), repeat=4):
        of = dict(zip("abcd", assignment, strict=True))
        best = max(best, sum(
            lru_hits([turns[name] for name in "abcd" * 3 if of[name] == at], 3) for at in (0, 1)
        ))  # fmt: skip
    assert made.static_hit_tokens() == best * SIZE


def test_the_least_time_is_that_of_prompts_alone_with_all_that_was_ever_there() -> None:
    rows = [sent([1, 2], number=7), sent([1, 2], number=3)]
    found = Bounds(rows, [9], SIZE).results(0, {7: 30.0, 3: 10.0}, lambda cached, tokens: float(tokens - cached))
    assert found["ttft_floor_s_mean"] == (9 + 1) / 2
    assert found["ttft_regret_s"] == 15.0


@pytest.mark.parametrize("router", ["round_robin", "dynamo_kv"])
def test_no_fleet_hits_more_than_the_shared_optimum(router: str, tmp_path: Path) -> None:
    mode = {"name": "fleet", "replicas": 3, "router": router, "bounds": True}
    found = run(tmp_path, mode, cache={"block_size": 16, "num_blocks": 100})
    assert 0 < found["hit_tokens"] <= found["shared_optimum_hit_tokens"]
    assert found["static_hit_tokens"] <= found["shared_optimum_hit_tokens"]
    assert found["shared_lru_hit_tokens"] <= found["shared_optimum_hit_tokens"]
    assert found["regret_tokens"] == found["shared_optimum_hit_tokens"] - found["hit_tokens"]
    assert 0 < found["ttft_floor_s_mean"] < found["ttft_s_mean"]


def test_a_request_that_no_replica_can_hold_is_in_no_bound(tmp_path: Path) -> None:
    """A pool of 24 blocks rejects the longer prompts, which one cache of all blocks would hit."""
    mode = {"name": "fleet", "replicas": 4, "bounds": True}
    found = run(tmp_path, mode, cache={"block_size": 16, "num_blocks": 40})
    assert found["num_rejected"] > 0
    assert found["shared_optimum_hit_tokens"] <= found["prompt_tokens"]
    assert found["hit_tokens"] <= found["shared_optimum_hit_tokens"]


def test_with_room_for_all_one_replica_hits_the_shared_optimum_with_earlier_answers(tmp_path: Path) -> None:
    mode = {"name": "fleet", "bounds": True, "concurrency": 1}
    found = run(tmp_path, mode, cache={"block_size": 16, "num_blocks": 4000})
    assert found["num_evictions"] == 0
    assert found["hit_tokens"] == found["shared_optimum_hit_tokens"] > 0


def test_a_fleet_that_could_admit_nothing_says_so_and_has_no_bounds(tmp_path: Path) -> None:
    found = run(tmp_path / "run", {"name": "fleet", "bounds": True}, cache={"block_size": 16, "num_blocks": 2})
    assert found["status"] == "failed_requests", found
    assert "shared_optimum_hit_tokens" not in found, found
